"""Progress events: what the processes of a run report about it, as records and as one JSON object a line.

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
"""How a run ended: every round was played; privacy budgets ended it, as planned; for another reason; by a signal."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A server or an evaluator listens."""

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
    """The address of the live page; null where there is none."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """The run waits for something else than clients and rounds, at its start or its end."""

    kind: ClassVar[str] = "preparing"
    what: str
    """The work, in words."""


@dataclass(frozen=True, slots=True)
class WaitingForClients:
    """The server waits for clients before round 1."""

    kind: ClassVar[str] = "waiting"
    connected: int
    """Clients that are connected now."""
    minimum: int
    """Clients that round 1 waits for."""
    missing: tuple[str, ...] = ()
    """Ids of clients that are expected and not connected, the first few."""


@dataclass(frozen=True, slots=True)
class RollCall:
    """The server waits for the clients that join or leave with a round."""

    kind: ClassVar[str] = "roll-call"
    round: int
    """The round that will begin next."""


@dataclass(frozen=True, slots=True)
class RoundCommitted:
    """A round is on disk. Short rounds are thinned out; the last round is always reported."""

    kind: ClassVar[str] = "round"
    round: int
    """The round's number, from 1."""
    rounds: int
    """Rounds of the whole run."""
    chosen: tuple[str, ...]
    """Ids of the chosen clients, in selection order."""
    round_latency_s: float
    """The round's latency in seconds, eq. (3); with a miss at least what was waited for."""
    total_latency_s: float
    """The sum of all rounds' latencies so far, and of the waits of failed attempts, in seconds."""
    max_epsilon_spent: float
    """The greatest ε that a client has spent."""
    epsilon_budget: float | None
    """The privacy budget of each client; null in a run without privacy."""
    privacy_unit: PrivacyUnit | None
    """The unit that ε protects; null in a run without privacy."""
    budgets_end_after_round: int | None
    """The round after which fewer than m clients are expected to have budget left; null where no floor ends budgets."""
    connected: int
    """Clients that are connected now."""
    rejected: int
    """Hellos and updates that were not accepted since the server started."""
    wall_clock_s: float
    """Seconds since the run began, without the time it was interrupted."""
    selection_s: float
    """Seconds that this round's selection took."""
    suspect: tuple[str, ...]
    """Why the round's measurements are in doubt, as in "server loop_lag_s"; empty: they are not."""
    suspect_rounds: int
    """Rounds so far whose measurements are in doubt."""
    missed: tuple[str, ...] = ()
    """Ids of the chosen clients that gave no update, without those that were not needed."""
    missed_jobs: int = 0
    """Jobs so far that ended without an update, without those that were not needed."""
    time_scale: float = 1.0
    """How many real seconds an emulated second of injected delay takes; latencies are in emulated ones."""


@dataclass(frozen=True, slots=True)
class ModelEvaluated:
    """A model was evaluated on one split of the public data."""

    kind: ClassVar[str] = "evaluation"
    round: int
    """The round that the model came from."""
    split: Literal["validation", "test"]
    """The part of the data."""
    accuracy: float
    """Share of right answers, or another task's mean score, in [0, 1]."""
    loss: float | None
    """Mean loss; null where the model has diverged."""
    metric: str = "accuracy"
    """The name of the task's mean score, which `accuracy` holds."""
    subset: bool = False
    """True: on the split's fixed subset, as while rounds are played. False: on all of it, as at the end."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should read."""

    kind: ClassVar[str] = "notice"
    message: str
    """One sentence."""
    topic: str = ""
    """The topic: "joined", "left", "rejected", "suspect", "failed" or "evaluator"; empty: something else."""
    client: str = ""
    """The client that it is about, the first of several; empty: none."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Ctrl-C, SIGTERM or SIGHUP came once: the run finishes."""

    kind: ClassVar[str] = "interrupted"
    message: str
    """The effect of a second Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Finished:
    """No further round is played; results are written next."""

    kind: ClassVar[str] = "finished"
    reason: str
    """Why no further round is played."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Tasks and open descriptors that the server did not give back; all 0 in order."""
    outcome: Outcome = "completed"
    """How the run ended: the exit status follows from it."""


@dataclass(frozen=True, slots=True)
class SpentInAllRuns:
    """A run is over for a client that stays: what it has spent in all of its runs."""

    kind: ClassVar[str] = "spent"
    client_id: str
    """The client."""
    run: str
    """The id of the run that is over."""
    released: int
    """Private releases of the client's life."""
    epsilon: float
    """ε of all of them."""
    epsilon_lifetime: float | None
    """The ε it may spend in all; null: each run's budget alone bounds it."""
    privacy_unit: PrivacyUnit
    """The unit that ε protects."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process ends with an error."""

    kind: ClassVar[str] = "error"
    message: str
    """The mistake, and what to change."""
    bad_input: bool
    """Whether the configuration is at fault, rather than the run."""


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
"""Any event; `kind` tells them apart."""

Report = Callable[[ProgressEvent], None]
"""Takes one event. Called on the event loop: it must not wait."""

EVENT_TYPES: Mapping[str, type[ProgressEvent]] = {record.kind: record for record in get_args(ProgressEvent)}
"""Kind -> record."""


def to_json(event: ProgressEvent) -> dict[str, Any]:
    """The event as a JSON object: "kind" and its fields."""
    return {"kind": event.kind} | {f.name: getattr(event, f.name) for f in fields(event)}


def from_json(value: Mapping[str, Any]) -> ProgressEvent:
    """The event of a JSON object; ValueError when its kind is unknown or its fields are not this kind's."""
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
"""The environment variable that names the run in each line of this process."""
_ENVELOPE = {"time", "level", "run"}


def level_of(event: ProgressEvent) -> str:
    """How grave it is, as of a line of a log."""
    return "error" if isinstance(event, Failed) else "warning" if isinstance(event, Notice | Interrupted) else "info"


def envelope(level: str, at_s: float) -> dict[str, str]:
    """The beginning of a JSON line of any process: when it was written, how grave it is, and of which run it is."""
    at, run = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"), os.environ.get(RUN, "")
    return {"time": at, "level": level, **({"run": run} if run else {})}


def to_line(event: ProgressEvent) -> str:
    """The event as a line of stdout, without the line feed."""
    return json.dumps({**envelope(level_of(event), time.time()), **to_json(event)})


def from_line(line: str) -> ProgressEvent:
    """The event of a line of stdout; ValueError when the line is not one."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {line!r}")
    return from_json(value)


def write_event(event: ProgressEvent) -> None:
    """Write the event to stdout as one line, past its buffer: a thread that waits here for a reader locks nothing."""
    data, stdout = f"{to_line(event)}\n".encode(), sys.stdout.fileno()
    while data:
        data = data[os.write(stdout, data) :]


def print_event(event: ProgressEvent) -> None:
    """Print the event to stdout as one line, at once."""
    print(to_line(event), flush=True)
