"""summary.json, read: its keys, their types, and whether it is of the run as it stands."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pausefl.experiment.validation import explain
from pausefl_process.events import Outcome
from pausefl_process.files import reason
from pausefl_proto.errors import ConfigError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_server.storage.server_phase import SERVER_PHASE, ServerPhase

_MEND = "delete it and resume the run"
_MOST_NAMED = 4


class TimingError(TypedDict):
    """Quantiles of |measured − drawn|, in real seconds."""

    p50: float | None
    p99: float | None


class NoiseToClip(TypedDict):
    """Noise scale over what an update is clipped to."""

    first: float
    """At a client's first release."""
    last: float | None
    """At the last release of the client that released most; null: infinite."""


class Suspicion(TypedDict):
    """One reason to doubt measurements."""

    rounds: int
    advice: str
    clients: NotRequired[dict[str, int]]
    """By client whose host said so: rounds, most first; empty for the server's host."""


class Failure(TypedDict):
    """One reason why jobs gave no update."""

    reason: str
    jobs: int


class Summary(TypedDict):
    """summary.json. docs/reference/summary.md shows each key with its docstring."""

    policy: str
    """The policy, as the experiment names it."""
    policy_parameters: dict[str, Any]
    """Its parameters by name, m among them; null also where one is infinite."""
    seed: int
    """`experiment.seed`."""
    rounds: int
    """Rounds that were played."""
    clients: int
    """`clients.count`."""
    m: int
    """`selection.m`."""
    asked_per_round: NotRequired[list[int] | None]
    """The fewest and the most clients that a round asked: not m of them under `all`, with over-selection or newcomers.
    null: no round was played."""
    data: NotRequired[str | None]
    """How many examples there were; null: no model was evaluated."""
    model_size: int
    """Values of the model: the length of an upload."""
    test_examples: NotRequired[int | None]
    """How many the two accuracies were measured on."""
    metric: NotRequired[str]
    """The name of the task's mean score, which accuracies hold; missing in older runs, of classifications."""
    final_accuracy: float | None
    """The last model's, on all test examples."""
    best_accuracy: float | None
    """That of the model that was best on validation data; on test data it may lie below the last one's."""
    best_round: NotRequired[int | None]
    """The round of that model."""
    wall_clock_s: float
    """How long the run took, without the time it was interrupted; on the virtual clock, in its seconds."""
    mode: NotRequired[Literal["rounds", "asynchronous"]]
    """`server.mode`; missing in older runs, in rounds."""
    elapsed_s: NotRequired[float]
    """From the first job to the last commit, at the emulated scale: what rounds and asynchronous steps are compared
    by."""
    clients_at_work: NotRequired[float]
    """How many clients had a job, on average over that time."""
    idle_share: NotRequired[float | None]
    """The share of that time for which a place, of `asynchronous.concurrency` or of a round's clients, was empty."""
    staleness: NotRequired[dict[str, float] | None]
    """The mean and the greatest staleness of the updates, in steps; null: none came."""
    total_latency_s: float
    """The sum of the rounds' latencies, eq. (3) of PAUSE, failed attempts included."""
    measured_latency_s: float
    """total_latency_s without the waits for clients that missed."""
    censored_rounds: int
    """Rounds whose latency a miss decided: its wait, after which the answer had not come."""
    failed_attempts: int
    """Attempts at a round to which no client gave an update; the round was tried again."""
    unneeded_jobs: int
    """Jobs that were not waited for, as enough other clients had answered."""
    withdrawn_jobs: int
    """Jobs that clients stopped once their round had ended; they spend no ε."""
    late_updates: int
    """Updates that came after their round had ended; their ε is counted."""
    merged_updates: int
    """Late updates that went into a later model."""
    missed_jobs: dict[str, int]
    """Chosen clients without an update, by kind; `unneeded` apart."""
    failures: list[Failure]
    """Clients' reasons when a job failed with them, the most frequent first; in a private run they say no more."""
    tau_min_s: float | None
    """τ_min at the end; null: estimated, and nothing was measured."""
    clamped_latencies: int
    """Latencies below τ_min."""
    capped: dict[str, dict[str, int]] | None
    """Values that clients stated of themselves and that were cut, by client."""
    latency_signal: Literal["round_trip", "communication"]
    """`latency.signal`: what the latencies are."""
    time_scale: float
    """`latency.time_scale`."""
    clock: NotRequired[Literal["real", "virtual"]]
    """`experiment.clock`."""
    timing_error_s: TimingError | None
    """|measured − drawn|: the median and the 99 % quantile over all exchanges, in real seconds. Measured is the
    communication time, or the round trip where `latency.mode` is "total"."""
    privacy_unit: PrivacyUnit | None
    """The unit that every ε here protects, but vector_epsilon_max; null: a run without privacy."""
    epsilon_budget: float | None
    """ε̄ of each client."""
    max_epsilon_spent: float | None
    """The most that any client has spent at most: jobs whose clients were not heard of again are counted."""
    median_epsilon_spent: NotRequired[float | None]
    """The median over clients of the same."""
    vector_epsilon_max: float | None
    """max_epsilon_spent for whole uploads: with the unit "coordinate", model_size times as much."""
    private: bool
    """false: no noise, or noise from the seed, which is not private."""
    noise: Literal["laplace", "opendp", "reproducible"] | None
    """How noise is drawn."""
    delta: float | None
    """`privacy.delta`."""
    epsilon_at_delta: float | None
    """ε of (ε, δ) for the client that released most, in the privacy unit; null also without dp-accounting."""
    noise_to_clip: NotRequired[NoiseToClip | None]
    """The scale of the noise over what an update was clipped to, 2/ε_i in both privacy units."""
    epsilon_floor: float | None
    """The least ε of a release: `privacy.epsilon_floor`, or what `privacy.noise_to_clip_max` comes to if greater."""
    retired_clients: NotRequired[int | None]
    """Clients that release nothing more."""
    budget_per: Literal["run", "data holder"] | None
    """The owner of the budgets: this run, or ledgers that several runs charge."""
    disclosed: list[str]
    """Values that clients told without noise."""
    selection_s_median: float | None
    """The median time of a selection."""
    selections_by_group: NotRequired[dict[str, dict[str, Any]] | None]
    """How often the clients of each group were chosen after they joined: in all, and per client and round."""
    absent_clients: NotRequired[list[str]]
    """Clients of the experiment that never took part."""
    rejected_updates: int
    """Updates and other answers that were not accepted."""
    suspect_rounds: int
    """Rounds whose measurements are in doubt."""
    suspect_observations: NotRequired[int]
    """Measurements of clients' answers that are in doubt themselves."""
    suspect_because: dict[str, "Suspicion"] | None
    """The reasons: in how many rounds each held, what to do about it, and in how many by which client's account."""
    overruns: NotRequired[int]
    """Only where delays are totals: exchanges longer than what was drawn for them."""
    stopped_because: str
    """Why no further round was played."""
    outcome: Outcome
    """How the run ended; the exit status follows from it."""
    starts: NotRequired[list[dict[str, str]] | None]
    """When, where, by which command and with which software the run was begun and resumed."""
    missing_figures: NotRequired[dict[str, str]]
    """The keys that could not be computed, and are null, each with the reason; the run itself is as sound."""


def read_summary(path: Path) -> Summary:
    """summary.json of the run directory `path`; ConfigError when it is missing, damaged or of an older version."""
    file = path / "summary.json"
    try:
        summary = json.loads(text_in(path, "summary.json"))
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON ({error}); {_MEND}") from error
    if not isinstance(summary, dict):
        raise ConfigError(f"{file}: is no JSON object; {_MEND}")
    if missing := sorted(Summary.__required_keys__ - summary.keys()):
        more = f" and {len(missing) - _MOST_NAMED} keys more" if len(missing) > _MOST_NAMED else ""
        raise ConfigError(
            f"{file}: lacks {', '.join(missing[:_MOST_NAMED])}{more}; an older version may have written it"
        )
    try:
        _checker().validate_python(summary, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{file}: {explain(error, None)}; {_MEND}") from None
    if summary["privacy_unit"] is not None:
        for key in ("epsilon_budget", "max_epsilon_spent", "vector_epsilon_max"):
            if summary[key] is None:
                raise ConfigError(f"{file}: {key} = None: must be a number in a private run; {_MEND}")
    return cast(Summary, summary)


@cache
def _checker() -> TypeAdapter[Summary]:
    """The checker of types; it takes a hundred times as long to make as to use."""
    return TypeAdapter(Summary)


def check_is_last(summary: Mapping[str, Any], path: Path, database: sqlite3.Connection) -> None:
    """ConfigError where a run was resumed since its summary was written, and has not ended again."""
    (last,) = database.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()
    phase = database.execute("SELECT value FROM meta WHERE key = ?", (SERVER_PHASE,)).fetchone()
    if summary["rounds"] != last or phase not in (None, (ServerPhase.SUMMARISED,)):
        raise ConfigError(
            f"{path}: was resumed since its summary.json was written, and has not ended in order again; wait for its"
            " end, or resume it"
        )


def text_in(path: Path, name: str) -> str:
    """A text file of the run directory `path`; ConfigError where it is missing, or cannot be read."""
    try:
        return (path / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        is_cut_short = name == "summary.json" and (path / "run.db").exists()
        go_on = f"the run goes on, or was cut short; go on with it: pausefl run --resume {path}"
        raise ConfigError(f"{path}: has no {name}; {go_on if is_cut_short else 'is it a run directory?'}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path / name}: cannot be read ({reason(error)})") from error


def machines_of(summary: Mapping[str, Any]) -> list[str]:
    """The machines that a run was played on, in words."""
    return sorted({start["machine"] for start in summary.get("starts") or () if "machine" in start})


def unequal_machines(machines: Iterable[str]) -> str:
    """A caveat for runs that were played on these machines; empty where they are alike."""
    found = sorted(set(machines))
    return f"played on unequal machines: {'; '.join(found)}" if len(found) > 1 else ""
