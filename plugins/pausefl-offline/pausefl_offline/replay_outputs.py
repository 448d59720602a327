"""The results of a replay as text, JSON, CSV and a picture."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pausefl.experiment.experiment import Experiment, parse_experiment, with_values
from pausefl.experiment.server_records import check_policies
from pausefl.experiment.toml_source import Overrides, override_values
from pausefl.results.reading import EPSILON_LABELS, latency_unit, read_log
from pausefl.results.tables import data_frame, write_records
from pausefl.runtime.run_dir import stored_experiment
from pausefl_offline.counterfactual import Counterfactual, play_on_log
from pausefl_offline.replay import ReplayedChoice, check_same, choices_on, rules_of
from pausefl_process.files import write_durably
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import ConfigError
from pausefl_server.records import RoundRecord
from pausefl_server.storage.round_log import RoundLog

if TYPE_CHECKING:
    import pandas as pd

CAVEAT = (
    "an estimate from another policy's log: it supposes that a client's latency does not depend on who else is chosen,"
    " and that its latencies in the log stand for those in the rounds where the log lacks it; accuracy cannot be told"
)


@dataclass(frozen=True)
class Replay:
    """The result of replaying a log with a policy."""

    choices: Sequence[ReplayedChoice]
    """The policy's choice at each attempt, based on the log before it."""
    summary: Mapping[str, Any]
    """The results, as `pausefl replay --json` prints them."""
    rounds: Sequence[Mapping[str, Any]]
    """A row per round with the recorded and estimated choice and latency. Empty for the run's own policy."""

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a DataFrame."""
        return data_frame(self.rounds)

    def __repr__(self) -> str:
        return f"<Replay of {self.summary['rounds']} rounds by {self.summary['policy']}>"


def replayed(run_dir: Path, policy: str | None, overrides: Overrides, draws: int) -> Replay:
    """Replay a run's log. Without policy and overrides, PauseflError if the run's own policy does not repeat the log.

    With either, the result is an estimate from `draws` draws. ConfigError if the policy needs data that the log lacks.
    """
    recorded = stored_experiment(run_dir)
    log = read_log(run_dir)
    if not len(log):
        raise ConfigError(f"{run_dir}: no round was played there, so there is nothing to replay")
    unfinished = log.failed_attempts()
    if policy is None and not overrides:
        choices = choices_on(log, *rules_of(recorded), unfinished)
        check_same(choices)
        return Replay(choices, _own_summary(recorded, log, unfinished, choices), ())
    experiment = _varied(recorded, policy, overrides)
    played = play_on_log(experiment, log, draws)
    choices = choices_on(log, *rules_of(experiment), unfinished)
    summary = _summary(recorded, experiment, log, unfinished, choices, played)
    return Replay(choices, summary, list(_rows(log, played)))


def in_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """The results of a replay as lines of text."""
    seconds = latency_unit([summary])
    if "draws" not in summary:
        yield (
            f"{summary['policy']}: chose the same clients in all {summary['rounds']} rounds"
            f" ({summary['attempts']} attempts); {summary['total_latency_s']:.1f} {seconds} in all"
        )
        return
    latency, spent, rests = summary["total_latency_s"], summary["max_epsilon_spent"], summary["extrapolated"]
    yield (
        f"{summary['policy']} would have waited {latency['mean']:.1f} {seconds}"
        f" ({latency['low']:.1f} to {latency['high']:.1f}, 95 %) in {summary['rounds']} rounds,"
        f" {summary['recorded_policy']} waited {summary['recorded_total_latency_s']:.1f}"
    )
    if spent is not None:
        label = EPSILON_LABELS[summary["privacy_unit"]]
        yield f"greatest {label} {spent['mean']:.3g} ({spent['low']:.3g} to {spent['high']:.3g})"
    yield (
        f"{rests['rounds']:.0%} of rounds and {rests['choices']:.0%} of choices rest on extrapolation,"
        f" {rests['choices_of_clients_never_observed']:.0%} on other clients' latencies"
    )
    if rests["choices_at_lower_bounds"]:
        yield (
            f"{rests['choices_at_lower_bounds']:.1%} of choices answer at a lower bound: the log did not wait for these"
            " clients and has no later answers of theirs; the estimate is too low there"
        )
    if (failed := summary["failed_attempts"])["high"]:
        yield f"{failed['mean']:.3g} attempts failed ({failed['low']:.3g} to {failed['high']:.3g}) and were waited for"
    if share := summary["rounds_without_update"]:
        yield f"{share:.1%} of rounds had no update in any attempt: a run would have ended at the first"
    if share := summary["rounds_beyond_budgets"]:
        yield (
            f"{share:.1%} of rounds were not played, as too few clients had budget left: a run would have ended before"
            " the first, and the totals are of fewer rounds than the log's"
        )
    if failed_s := summary["recorded_failed_attempts_s"]:
        waited = f"{summary['recorded_policy']} waited {failed_s:.1f} {seconds} more in failed attempts"
        yield f"{waited} at the next round, which no estimate has"
    same = summary["on_the_logs_history"]
    yield (
        f"on the log's own history it would choose the same set in {same['same_sets']} of {same['attempts']} attempts,"
        f" and share {same['shared_choices']:.0%} of the clients"
    )
    yield f"this is {CAVEAT}"


def write_replay(replay: Replay, folder: Path) -> list[Path]:
    """Write replay.json and, for an estimate, replay.csv, .png and .pdf to `folder`; returns the written paths."""
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / "replay.json", json.dumps(replay.summary, indent=2) + "\n")
    if not replay.rounds:
        return [folder / "replay.json"]
    rounds = [{**row, **{name: " ".join(row[name]) for name in ("recorded", "chosen")}} for row in replay.rounds]
    write_records(folder / "replay.csv", rounds)
    from pausefl.results.report.style import write_picture
    from pausefl_offline.plots import draw_replay

    write_picture(folder / "replay", lambda: draw_replay(replay.summary, replay.rounds))
    names = ("replay.json", "replay.csv", "replay.png", "replay.pdf")
    return [folder / name for name in names if (folder / name).exists()]


def _varied(recorded: Experiment, policy: str | None, overrides: Overrides) -> Experiment:
    """The run's experiment with another policy or other keys of `selection`. ConfigError for keys of other tables."""
    varied = parse_experiment(recorded.to_toml(), overrides)
    for key in override_values(overrides):
        if not key.startswith("selection."):
            raise ConfigError(f"--set {key}: a replay changes who is chosen, so it takes keys of selection alone")
    if policy is not None:
        varied = with_values(varied, "selection", policy=policy)
    # Pretend that clients disclose all: `check_log_suffices` compares the policy's needs with the log itself.
    check_policies(with_values(varied, "privacy", disclose=("loss", "labels")))
    return varied


def _own_summary(
    experiment: Experiment, log: RoundLog, unfinished: Sequence[RoundRecord], choices: Sequence[ReplayedChoice]
) -> dict[str, Any]:
    return {
        "policy": experiment.selection.policy,
        "rounds": len(log),
        "attempts": len(choices),
        "same_choices": sum(choice.is_same for choice in choices),
        "total_latency_s": _total_s(log) + _waited_s(unfinished),
        "time_scale": experiment.latency.time_scale,
    }


def _summary(
    recorded: Experiment,
    experiment: Experiment,
    log: RoundLog,
    unfinished: Sequence[RoundRecord],
    choices: Sequence[ReplayedChoice],
    played: Counterfactual,
) -> dict[str, Any]:
    waited_s, failed, extrapolated, asked = map(
        played.by_round, ("waited_s", "failed_attempts", "extrapolated", "asked")
    )
    n_asked, n_draws = max(int(asked.sum()), 1), len(played.draws)
    times = Counter(c for rounds in played.draws for of_round in rounds for c in of_round.chosen)
    is_private = experiment.privacy.enabled
    return {
        "policy": experiment.selection.policy,
        "recorded_policy": recorded.selection.policy,
        "rounds": len(log),
        "time_scale": recorded.latency.time_scale,
        "draws": n_draws,
        "recorded_total_latency_s": _total_s(log),
        "recorded_failed_attempts_s": _waited_s(unfinished),
        "total_latency_s": _interval(waited_s.sum(axis=1)),
        "failed_attempts": _interval(failed.sum(axis=1)),
        "rounds_without_update": float(played.by_round("without_update").mean()),
        "rounds_beyond_budgets": float(played.by_round("beyond_budgets").mean()),
        "max_epsilon_spent": _interval(played.max_epsilon_spent) if is_private else None,
        "privacy_unit": experiment.privacy.unit if is_private else None,
        "extrapolated": {
            "rounds": int((extrapolated > 0).sum()) / max(int((asked > 0).sum()), 1),
            "choices": int(extrapolated.sum()) / n_asked,
            "choices_of_clients_never_observed": int(played.by_round("never_observed").sum()) / n_asked,
            "choices_at_lower_bounds": int(played.by_round("at_bounds").sum()) / n_asked,
        },
        "on_the_logs_history": {
            "attempts": len(choices),
            "same_sets": sum(choice.is_same for choice in choices),
            "shared_choices": sum(c.shared for c in choices) / sum(len(set(c.chosen)) for c in choices),
        },
        "times_chosen": {client_id: times[client_id] / n_draws for client_id in played.client_ids},
        "caveat": CAVEAT,
    }


def _waited_s(attempts: Iterable[RoundRecord]) -> float:
    return sum((attempt.round_latency_s for attempt in attempts), 0.0)


def _total_s(records: Iterable[RoundRecord]) -> float:
    return sum((_waited_s(record.attempts) for record in records), 0.0)


def _rows(log: RoundLog, played: Counterfactual) -> Iterator[dict[str, Any]]:
    waited_s, is_extrapolated = played.by_round("waited_s"), played.by_round("extrapolated") > 0
    low, high = np.quantile(waited_s, (0.025, 0.975), axis=0)
    for t, record in enumerate(log):
        yield {
            "round": record.round,
            "recorded": record.chosen,
            "chosen": played.draws[0][t].chosen,
            "recorded_s": _waited_s(record.attempts),
            "waited_s": float(waited_s[:, t].mean()),
            "low_s": float(low[t]),
            "high_s": float(high[t]),
            "extrapolated": float(is_extrapolated[:, t].mean()),
        }


def _interval(values: FloatArray | IntArray) -> dict[str, float]:
    """The mean of the draws and the percentiles that enclose 95 % of them."""
    low, high = np.quantile(values, (0.025, 0.975))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def as_json(replay: Replay) -> str:
    """The summary, the rounds, and all choices that differ from the log's, as JSON."""
    differing = [asdict(choice) for choice in replay.choices if not choice.is_same]
    return json.dumps({**replay.summary, "rounds_played": list(replay.rounds), "differing": differing})
