"""Progress events: what a run's processes report, as records and as lines with one JSON object each.

`pausefl server`, `pausefl client` and `pausefl evaluator` print this JSON to stdout; docs/events.md describes it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, get_args

from pausefl_proto.privacy_unit import PrivacyUnit

Outcome = Literal["completed", "budgets_spent", "failed", "interrupted"]
"""How a run ended: all rounds were played; privacy budgets ended it, as planned; it failed; a signal ended it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A server or an evaluator listens on its port."""

    kind: ClassVar[str] = "ready"
    port: int
    """The TCP port."""


@dataclass(frozen=True, slots=True)
class MetricsServed:
    """A server or a client process serves its metrics."""

    kind: ClassVar[str] = "metrics"
    url: str
    """The address of `/metrics`."""
    page: str | None = None
    """The address of the live page; null if there is none."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """The run waits for something other than clients and rounds, at its start or its end."""

    kind: ClassVar[str] = "preparing"
    what: str
    """The work, in words."""


@dataclass(frozen=True, slots=True)
class WaitingForClients:
    """The server waits for clients before round 1."""

    kind: ClassVar[str] = "waiting"
    connected: int
    """The number of clients that are connected now."""
    minimum: int
    """The number of clients that round 1 waits for."""
    missing: tuple[str, ...] = ()
    """Ids of the first few expected clients that are not connected."""


@dataclass(frozen=True, slots=True)
class RollCall:
    """The server waits for the clients that join or leave with a round."""

    kind: ClassVar[str] = "roll-call"
    round: int
    """The round that begins next."""


@dataclass(frozen=True, slots=True)
class RoundCommitted:
    """A round is saved on disk. Of many short rounds, only some are reported; the last round always is."""

    kind: ClassVar[str] = "round"
    round: int
    """The round's number, from 1."""
    rounds: int
    """The number of rounds of the whole run."""
    chosen: tuple[str, ...]
    """Ids of the chosen clients, in selection order."""
    round_latency_s: float
    """The round's latency in seconds, eq. (3). With a miss, it is at least the time waited for the missing update."""
    total_latency_s: float
    """The sum of all rounds' latencies so far and of the waits of failed attempts, in seconds."""
    max_epsilon_spent: float
    """The greatest ε that any client has told that it spent; a job without an answer may have spent more."""
    epsilon_budget: float | None
    """The privacy budget of each client; null in a run without privacy."""
    privacy_unit: PrivacyUnit | None
    """The unit that ε protects; null in a run without privacy."""
    budgets_end_after_round: int | None
    """The round after which fewer than m clients are expected to have budget left; null if no floor ends budgets."""
    connected: int
    """The number of clients that are connected now."""
    rejected: int
    """The number of hellos and updates that the server rejected since it started."""
    wall_clock_s: float
    """Seconds since the run began, without the time it was interrupted."""
    selection_s: float
    """Seconds that this round's selection took."""
    suspect: tuple[str, ...]
    """Why the round's measurements are in doubt, such as "server loop_lag_s"; empty if they are not."""
    suspect_rounds: int
    """The number of rounds so far whose measurements are in doubt."""
    missed: tuple[str, ...] = ()
    """Ids of the chosen clients that gave no update although it was needed."""
    missed_jobs: int = 0
    """The number of jobs so far that ended without an update although it was needed."""
    time_scale: float = 1.0
    """How many real seconds an emulated second of injected delay takes. Latencies are in emulated seconds."""


@dataclass(frozen=True, slots=True)
class ModelEvaluated:
    """A model was evaluated on one split of the public data."""

    kind: ClassVar[str] = "evaluation"
    round: int
    """The round whose model was evaluated."""
    split: Literal["validation", "test"]
    """The split of the data set."""
    accuracy: float
    """The share of right predictions, or another task's mean score, in [0, 1]."""
    loss: float | None
    """The mean loss; null if the model has diverged."""
    metric: str = "accuracy"
    """The name of the task's mean score, whose value is in `accuracy`."""
    subset: bool = False
    """True: evaluated on the split's fixed subset, as while rounds are played. False: on all of it, as at the end."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that a person should read."""

    kind: ClassVar[str] = "notice"
    message: str
    """The message, one sentence."""
    topic: str = ""
    """The topic: "joined", "left", "rejected", "suspect", "failed", "evaluator" or "waiting"; empty for others."""
    client: str = ""
    """The id of the client that the message is about, or of the first of several; empty if it is about none."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The process received Ctrl-C, SIGTERM or SIGHUP for the first time, and ends the run in order."""

    kind: ClassVar[str] = "interrupted"
    message: str
    """What a second Ctrl-C does."""


@dataclass(frozen=True, slots=True)
class Finished:
    """No further round is played; results are written next."""

    kind: ClassVar[str] = "finished"
    reason: str
    """Why no further round is played."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Numbers of tasks and open file descriptors that the server did not release; all are 0 if all is well."""
    outcome: Outcome = "completed"
    """How the run ended. It determines the exit status."""


@dataclass(frozen=True, slots=True)
class SpentInAllRuns:
    """A run is over for a client that outlives runs (`--stay`): the privacy it has spent in all of its runs."""

    kind: ClassVar[str] = "spent"
    client_id: str
    """The client's id."""
    run: str
    """The id of the run that is over."""
    released: int
    """The number of private releases in all of the client's runs."""
    epsilon: float
    """The sum of ε over these releases."""
    epsilon_lifetime: float | None
    """The ε that the client may spend over all of its runs; null if only each run's own budget bounds it."""
    privacy_unit: PrivacyUnit
    """The unit that ε protects."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process ends with an error."""

    kind: ClassVar[str] = "error"
    message: str
    """What is wrong, and what to change."""
    bad_input: bool
    """Whether the cause is the configuration, not the run."""


@dataclass(frozen=True, slots=True)
class Done:
    """The run's results are written; the process ends."""

    kind: ClassVar[str] = "done"


ProgressEvent = (
    Ready
    | MetricsServed
    | Preparing
    | WaitingForClients
    | RollCall
    | RoundCommitted
    | ModelEvaluated
    | Notice
    | Interrupted
    | Finished
    | SpentInAllRuns
    | Failed
    | Done
)
"""Any event. Its `kind` names its type."""

Report = Callable[[ProgressEvent], None]
"""Receives one event. It is called on the event loop, so it must not block."""

EVENT_TYPES: Mapping[str, type[ProgressEvent]] = {record.kind: record for record in get_args(ProgressEvent)}
"""Kind -> class of the event."""


def to_json(event: ProgressEvent) -> dict[str, Any]:
    """The event as a JSON object: "kind" and the event's fields."""
    return {"kind": event.kind} | {f.name: getattr(event, f.name) for f in fields(event)}


def from_line(line: str) -> ProgressEvent:
    """The event in a line of stdout. ValueError if the line is no JSON object with the fields of a known kind."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {line!r}")
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items()}
    kind = given.pop("kind", None)
    record: Callable[..., ProgressEvent] | None = EVENT_TYPES.get(str(kind))
    for name in _ENVELOPE - getattr(record, "__annotations__", {}).keys():
        given.pop(name, None)
    if record is None:
        raise ValueError(f"kind = {kind!r}: must be one of {', '.join(EVENT_TYPES)}")
    try:
        return record(**given)
    except TypeError as error:
        raise ValueError(f"{kind}: {error}") from error


RUN = "PAUSEFL_RUN"
"""The environment variable with the run's name, which each line of this process states."""
_ENVELOPE = {"time", "level", "run"}


def level_of(event: ProgressEvent) -> str:
    """The severity of an event, as a log level: "error", "warning" or "info"."""
    if isinstance(event, Failed):
        return "error"
    return "warning" if isinstance(event, Notice | Interrupted) else "info"


def envelope(level: str, at_s: float) -> dict[str, str]:
    """The first fields of a JSON line of any process: the time, the log level, and the run if it is known."""
    at, run = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"), os.environ.get(RUN, "")
    return {"time": at, "level": level, **({"run": run} if run else {})}


def to_line(event: ProgressEvent) -> str:
    """The event as a line of stdout, without the line feed."""
    return json.dumps({**envelope(level_of(event), time.time()), **to_json(event)})


def write_event(event: ProgressEvent) -> None:
    """Write the event to stdout as one line, without its buffer: a thread that blocks here then holds no lock."""
    data, stdout = f"{to_line(event)}\n".encode(), sys.stdout.fileno()
    while data:
        data = data[os.write(stdout, data) :]


def print_event(event: ProgressEvent) -> None:
    """Print the event to stdout as one line, at once."""
    print(to_line(event), flush=True)
