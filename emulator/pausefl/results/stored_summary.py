"""Reads summary.json: its keys, their types, and a check that it describes the run's latest state."""

import json
import shlex
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, cast

from pydantic import ValidationError
from typing_extensions import TypedDict

from pausefl.experiment.kinds import adapter_of
from pausefl.experiment.validation import explain
from pausefl_process.events import Outcome
from pausefl_process.files import reason
from pausefl_proto.errors import ConfigError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_server.storage.store import SERVER_PHASE, ServerPhase

_MEND = "delete it and resume the run"
_MOST_NAMED = 4
_OF_STARTS = "machine", "own_code"


class TimingError(TypedDict):
    """Quantiles of |measured − drawn|, in real seconds."""

    p50: float | None
    p99: float | None


class NoiseToClip(TypedDict):
    """The ratio of the noise scale to the clip bound."""

    first: float
    """At a client's first release."""
    last: float | None
    """At the last release of the client with the most releases; null: infinite."""


class Suspicion(TypedDict):
    """One reason to doubt measurements, with the number of rounds it affected and advice."""

    rounds: int
    advice: str
    clients: dict[str, int]
    """Affected rounds by client whose host gave the reason, most rounds first. Empty if the server's host gave it."""


class Failure(TypedDict):
    """One reason why clients gave no update, and how many jobs it ended."""

    reason: str
    jobs: int


class Summary(TypedDict):
    """summary.json. docs/reference/summary.md shows each key with its docstring."""

    policy: str
    """The policy, as the experiment names it."""
    policy_parameters: dict[str, Any]
    """The policy's parameters by name, including m. null: the value is infinite, or the parameter is not set."""
    seed: int
    """`experiment.seed`."""
    rounds: int
    """How many rounds (asynchronous: steps) were played."""
    clients: int
    """`clients.count`."""
    m: int
    """`selection.m`."""
    asked_per_round: list[int] | None
    """The fewest and the most clients that a round asked. They differ from m under the policy `all`, with
    over-selection or with newcomers. null: no round was played."""
    data: str | None
    """The data set, and how many examples were for training, validation and test; null: no model was evaluated."""
    model_size: int
    """How many values an upload holds: those of the model that are trained, and with SCAFFOLD as many again."""
    test_examples: int | None
    """How many test examples `final_accuracy` and `best_accuracy` were measured on."""
    metric: str
    """The name of the task's mean score, which keys named "accuracy" hold."""
    final_accuracy: float | None
    """The score of the last model on all test examples."""
    best_accuracy: float | None
    """The test score of the best model on validation data. It may be below `final_accuracy`. null: none was rated."""
    best_round: int | None
    """The round that produced the model of `best_accuracy`."""
    wall_clock_s: float
    """How long the run took, without interruptions. On the virtual clock these are virtual seconds."""
    mode: Literal["rounds", "asynchronous"]
    """`server.mode`."""
    elapsed_s: float
    """The time from the first job to the last commit, at the emulated scale. It compares rounds with asynchronous
    steps."""
    clients_at_work: float
    """How many clients had a job, on average over `elapsed_s`."""
    idle_share: float | None
    """The mean share of empty places. The places are `asynchronous.concurrency`, or the most clients a round asked."""
    staleness: dict[str, float] | None
    """The mean and the greatest staleness of the updates that came in time, in steps; null: none did."""
    total_latency_s: float
    """The sum of the round latencies (eq. (3) of PAUSE), including failed attempts."""
    measured_latency_s: float
    """total_latency_s without the waits for clients that missed."""
    censored_rounds: int
    """Rounds whose latency is the wait for a miss. The true latency is longer and unknown."""
    failed_attempts: int
    """Attempts at a round in which no client gave an update. The round was then tried again."""
    unneeded_jobs: int
    """Jobs that the server did not wait for because enough other clients had answered."""
    withdrawn_jobs: int
    """Jobs that clients stopped because their round had ended. They spend no ε."""
    late_updates: int
    """Updates that came after their round had ended. Their ε is counted."""
    merged_updates: int
    """Late updates that entered a later model."""
    missed_jobs: dict[str, int]
    """Jobs that gave no update, by kind of miss. Jobs of the kind `unneeded` are counted in `unneeded_jobs` instead."""
    failures: list[Failure]
    """Why jobs failed on clients, the most frequent reasons first. In a private run clients give no details."""
    tau_min_s: float | None
    """τ_min at the end; null: it is estimated from measurements, and nothing was measured."""
    clamped_latencies: int
    """How many latencies were below τ_min, and so counted as τ_min."""
    capped: dict[str, dict[str, int]] | None
    """Values that clients reported about themselves and that the server cut to its limits, by client."""
    latency_signal: Literal["round_trip", "communication"]
    """`latency.signal`: whether latencies are round trips or communication times."""
    time_scale: float
    """`latency.time_scale`."""
    clock: Literal["real", "virtual"]
    """`experiment.clock`."""
    timing_error_s: TimingError | None
    """|measured − drawn|: the median and the 99 % quantile over all exchanges, in real seconds. Measured is the
    communication time, or the round trip if `latency.mode` is "total"."""
    privacy_unit: PrivacyUnit | None
    """The privacy unit of every ε here except vector_epsilon_max; null: a run without privacy."""
    epsilon_budget: float | None
    """The budget ε̄ of each client."""
    max_epsilon_spent: float | None
    """The greatest ε that any client may have spent: an upper bound, which counts jobs that were never answered."""
    median_epsilon_spent: float | None
    """The median over clients of the ε that each may have spent, with the same upper bound."""
    vector_epsilon_max: float | None
    """max_epsilon_spent for whole upload vectors: with the unit "coordinate", model_size times as much."""
    private: bool
    """false: the run added no noise, or drew it from the seed, which is not private."""
    noise: Literal["laplace", "opendp", "reproducible"] | None
    """How noise is drawn: as `privacy.sampler` says, or with `privacy.reproducible_noise`."""
    delta: float | None
    """`privacy.delta`."""
    epsilon_at_delta: float | None
    """ε of (ε, δ) for the client with the most releases, in the privacy unit. null also without dp-accounting."""
    noise_to_clip: NoiseToClip | None
    """The ratio of the noise scale to the clip bound, 2/ε_i in both privacy units."""
    epsilon_floor: float | None
    """The least ε of a release: `privacy.epsilon_floor`, or the ε that `privacy.noise_to_clip_max` gives if greater."""
    retired_clients: int | None
    """How many clients retired: they release nothing more."""
    budget_per: Literal["run", "data holder"] | None
    """Whose budget ε̄ is: of this run alone, or of a data holder whose ledger several runs charge."""
    disclosed: list[str]
    """What clients sent without noise."""
    selection_s_median: float | None
    """The median time that a selection took, in seconds. On the virtual clock it takes none."""
    selections_by_group: dict[str, dict[str, Any]] | None
    """How often the clients of each group were chosen after they joined: in total, and per client and round."""
    absent_clients: list[str]
    """Clients of the experiment that never took part."""
    rejected_updates: int
    """How many updates and other answers the server did not accept."""
    suspect_rounds: int
    """Rounds whose measurements are in doubt."""
    suspect_observations: int
    """How many single measurements of clients' answers are in doubt."""
    suspect_because: dict[str, "Suspicion"] | None
    """By reason for doubt: how many rounds it affected, advice, and rounds by client whose host gave it."""
    overruns: NotRequired[int]
    """Exchanges that took longer than the total drawn for them. Only present if `latency.mode` is "total"."""
    stopped_because: str
    """Why no further round was played."""
    outcome: Outcome
    """How the run ended; the exit status follows from it."""
    starts: list[dict[str, str]] | None
    """When, where, with which command, software and own code the run was started and each time resumed."""
    missing_figures: dict[str, str]
    """The reason for each key that is null because it could not be computed. The run itself is not affected."""


def read_summary(path: Path) -> Summary:
    """Read summary.json of the run directory `path`. ConfigError if it is missing, damaged or of an older version."""
    file = path / "summary.json"
    try:
        summary = json.loads(text_in(path, "summary.json"))
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON ({error}); {_MEND}") from error
    if not isinstance(summary, dict):
        raise ConfigError(f"{file}: is no JSON object; {_MEND}")
    if missing := sorted(Summary.__required_keys__ - summary.keys()):
        more = f" and {len(missing) - _MOST_NAMED} keys more" if len(missing) > _MOST_NAMED else ""
        raise ConfigError(f"{file}: lacks {', '.join(missing[:_MOST_NAMED])}{more}; it may be of an older version")
    try:
        adapter_of(Summary).validate_python(summary, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{file}: {explain(error, None)}; {_MEND}") from None
    if summary["privacy_unit"] is not None:
        for key in ("epsilon_budget", "max_epsilon_spent", "vector_epsilon_max"):
            if summary[key] is None:
                raise ConfigError(f"{file}: {key} = None: must be a number in a private run; {_MEND}")
    return cast(Summary, summary)


def check_is_last(summary: Mapping[str, Any], path: Path, database: sqlite3.Connection) -> None:
    """Raise ConfigError if the run was resumed after its summary was written and has not ended again."""
    (last,) = database.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()
    phase = database.execute("SELECT value FROM meta WHERE key = ?", (SERVER_PHASE,)).fetchone()
    if summary["rounds"] != last or phase not in (None, (ServerPhase.SUMMARISED,)):
        raise ConfigError(
            f"{path}: was resumed since its summary.json was written, and has not ended in order again; wait for its"
            " end, or resume it"
        )


def text_in(path: Path, name: str) -> str:
    """The text of a file in the run directory `path`. ConfigError if it is missing or cannot be read."""
    try:
        return (path / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        is_cut_short = name == "summary.json" and (path / "run.db").exists()
        go_on = f"the run goes on, or was cut short; go on with it: pausefl run --resume {shlex.quote(str(path))}"
        raise ConfigError(f"{path}: has no {name}; {go_on if is_cut_short else 'is it a run directory?'}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path / name}: cannot be read ({reason(error)})") from error


def told_at_starts(summary: Mapping[str, Any]) -> dict[str, str]:
    """The machines that a run was played on and the versions of the user's own code, sorted, with "; " between."""
    starts = summary["starts"] or ()
    return {name: "; ".join(sorted({s[name] for s in starts if name in s})) for name in _OF_STARTS}


def unequal_starts(runs: Sequence[Mapping[str, Any]]) -> str:
    """A warning that runs were played on different machines, or with different versions of a module. Empty otherwise.

    Each run is a mapping with the keys of `told_at_starts`.
    """
    machines, code = ({each for run in runs for each in run.get(of, "").split("; ") if each} for of in _OF_STARTS)
    versions = Counter(version.partition(" ")[0] for version in code)
    changed = ", ".join(sorted(module for module, n in versions.items() if n > 1))
    unequal = f"played on unequal machines: {'; '.join(sorted(machines))}" if len(machines) > 1 else ""
    return "; ".join(filter(None, (unequal, changed and f"the code of {changed} was changed between runs")))
