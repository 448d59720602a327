"""What a reproduction's runs say, small enough to keep in a repository: intervals, curves and selections by series."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pausefl.results.reading import RunData, has_diverged
from pausefl.results.selections import choices_by_group
from pausefl.results.statistics import (
    Waits,
    common_horizon_s,
    first_reached,
    mean_band,
    mean_interval,
    paired_difference,
    restricted_difference,
    restricted_mean,
    smoothed,
)
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import stable_hash
from pausefl_proto.errors import ConfigError

SMOOTHING_ROUNDS = 10
"""The window of the paper's curves (PAUSE v2, Section V-B)."""
ACCURACIES = (0.6, 0.7, 0.8)
"""The accuracies for which the time to reach them is told."""
_POINTS = 61
SeriesRuns = Mapping[str, Sequence[RunData]]
"""One run per seed, sorted by seed, by series."""
StoredCurve = Mapping[str, list[float]]
"""x, mean, low and high of one curve; low and high are the 95 % interval, or with too few seeds least and greatest."""


@dataclass(frozen=True)
class ClusterTerm:
    """What the latency of a round grows by under reward R2, eq. (22): δ_τ for each chosen client beyond its cluster's
    first."""

    clusters: int | Mapping[str, int]
    """R, or the cluster of each client by id."""
    delta_tau_s: float

    def of_run(self, run: RunData) -> float:
        """Over all rounds, in seconds; of runs too whose policy knows no clusters."""
        # As `pausefl_server.selection.clusters.cluster_of` has them.
        seed, ids, clusters = run.summary["seed"], map(str, run.clients["client_id"]), self.clusters
        if isinstance(clusters, int):
            cluster = {c: stable_hash(seed, "tie", c) % clusters for c in ids}
        else:
            cluster = {c: clusters.get(c, -1 - alone) for alone, c in enumerate(ids)}
        sets = ([cluster[client_id] for client_id in {*record.chosen}] for record in run.records)
        return self.delta_tau_s * sum(len(chosen) - len(set(chosen)) for chosen in sets)


def summarise_series(runs: SeriesRuns, cluster_term: ClusterTerm | None = None) -> dict[str, Any]:
    """What every series reached, with differences to `random`, or else to the first series, seed by seed.

    ConfigError where a run evaluated no model.
    """
    if any(not run.curve("test")[1].size for of_series in runs.values() for run in of_series):
        raise ConfigError("some run evaluated no model: a figure needs one that is trained")
    baseline = "random" if "random" in runs else next(iter(runs))
    longest_s = max(run.summary["total_latency_s"] for of_series in runs.values() for run in of_series)
    waits = {name: _waits(of_series, longest_s) for name, of_series in runs.items()}
    return {
        "baseline": baseline,
        "series": {
            name: {
                **_figures(of_series),
                **({"cluster_term_s": _interval([cluster_term.of_run(r) for r in of_series])} if cluster_term else {}),
                "time_to": {f"{level:g}": time_to(waits[name][level], waits[baseline][level]) for level in ACCURACIES},
                "against_baseline": _against(runs, waits, name, baseline),
                **_curves(of_series),
                "newcomers": _newcomers(of_series),
            }
            for name, of_series in runs.items()
        },
    }


def accuracy_at(run: RunData) -> tuple[FloatArray, FloatArray]:
    """Total latency in seconds and test accuracy, smoothed as the paper's."""
    seconds, accuracy = run.curve("test")
    rounds, _ = run.accuracy_by_round("test")
    return seconds, smoothed(rounds.astype(np.float64), accuracy, SMOOTHING_ROUNDS)


def _waits(runs: Sequence[RunData], longest_s: float) -> Mapping[float, Waits]:
    """By accuracy. A model that diverged stays without it for as long as any run was followed."""
    curves = [run.curve("test") for run in runs]
    seconds, accuracies = [x for x, _ in curves], [y for _, y in curves]
    found = {level: first_reached(seconds, accuracies, level) for level in ACCURACIES}
    lost = np.array([has_diverged(run.summary) for run in runs])
    return {
        level: Waits(np.where(lost & ~waits.reached, longest_s, waits.seconds), waits.reached)
        for level, waits in found.items()
    }


def time_to(own: Waits, baseline: Waits) -> dict[str, Any]:
    """How many seeds reached the accuracy, and the mean of their times up to a horizon, if there is one.

    Each series has a horizon of its own, which it shares with the baseline alone. One for all would be that of the
    series whose runs are the shortest, and tell nothing of the others.
    """
    horizon_s = common_horizon_s([own, baseline])
    kept_s = horizon_s if math.isfinite(horizon_s) else None
    return {"reached": int(own.reached.sum()), "horizon_s": kept_s, **asdict(restricted_mean(own, horizon_s))}


def _figures(runs: Sequence[RunData]) -> dict[str, Any]:
    summaries = [run.summary for run in runs]
    best = [_best(run) for run in runs]
    private = runs[0].privacy is not None
    return {
        "seeds": [summary["seed"] for summary in summaries],
        "rounds": max(summary["rounds"] for summary in summaries),
        "diverged_after": [summary["rounds"] for summary in summaries if has_diverged(summary)],
        "budgets_spent_after": [s["rounds"] for s in summaries if s["outcome"] == "budgets_spent"],
        "last_accuracy": _interval([summary["final_accuracy"] for summary in summaries]),
        "best_accuracy": _interval(best),
        "best_by_seed": best,
        "total_latency_s": _interval([_total_s(run) for run in runs]),
        "greatest_leak": _interval([summary["max_epsilon_spent"] for summary in summaries] if private else [None]),
        "median_leak": _interval([summary.get("median_epsilon_spent") for summary in summaries]),
        "suspect_rounds": sum(summary["suspect_rounds"] for summary in summaries),
        "wall_clock_s": sum(summary["wall_clock_s"] for summary in summaries),
    }


def _best(run: RunData) -> float:
    """The greatest of all evaluations; where clients join later, of those since the first did."""
    rounds, accuracy = run.accuracy_by_round("test")
    joins = [group.join_round for group in run.groups.values() if group.join_round > 1]
    since = accuracy[rounds >= min(joins)] if joins else accuracy
    return float(since.max(initial=0.0))


def _total_s(run: RunData) -> float | None:
    """None of a run that ended before its last round: its total compares with no other's."""
    ended_early = run.summary["rounds"] < run.settings["experiment"]["rounds"]
    return None if ended_early else run.summary["total_latency_s"]


def _interval(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    return asdict(mean_interval(known)) if len(known) == len(values) and known else None


def _against(
    runs: SeriesRuns,
    waits: Mapping[str, Mapping[float, Waits]],
    name: str,
    base: str,
) -> dict[str, Any] | None:
    """Paired differences to the baseline: its total latency, and the time to each accuracy that either reached."""
    if name == base:
        return None
    totals = [[_total_s(run) for run in runs[each]] for each in (name, base)]
    known = [[total for total in of_series if total is not None] for of_series in totals]
    found = {"total_latency_s": asdict(paired_difference(*known))} if known == totals else {}
    for level in ACCURACIES:
        own, other = waits[name][level], waits[base][level]
        if own.reached.any() or other.reached.any():
            difference = restricted_difference(own, other, common_horizon_s([own, other]))
            found[f"time_to_{level:g}_s"] = asdict(difference)
    return found


def _curves(runs: Sequence[RunData]) -> dict[str, Any]:
    by_latency = [accuracy_at(run) for run in runs]
    by_round = [
        (run.accuracy_by_round("test")[0], accuracy) for run, (_, accuracy) in zip(runs, by_latency, strict=True)
    ]
    leaks = [run.greatest_leakage for run in runs] if runs[0].privacy else []
    totals = [dict(zip(run.round_latency["round"], run.round_latency["total_latency_s"], strict=True)) for run in runs]
    over_s = [
        (np.array([of_run[r] for r in leak["round"]]), leak["max_epsilon_spent"])
        for leak, of_run in zip(leaks, totals, strict=False)
    ]
    return {
        "accuracy_by_latency": _stored(by_latency),
        "accuracy_by_round": _stored(by_round),
        "leak_by_round": _stored([(leak["round"], leak["max_epsilon_spent"]) for leak in leaks]),
        "leak_by_latency": _stored(over_s),
    }


def _stored(curves: Sequence[tuple[Any, Any]]) -> dict[str, list[float]] | None:
    """The curves' mean and band where every seed has a value; None where there is no such place."""
    if not curves or not all(len(x) for x, _ in curves):
        return None
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if end < start:
        return None
    grid = np.linspace(start, end, _POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in curves])
    band = mean_band(values) or (values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    rows = {"x": grid, **dict(zip(("mean", "low", "high"), band, strict=True))}
    return {name: [float(f"{value:.4g}") for value in row] for name, row in rows.items()}


def _newcomers(runs: Sequence[RunData]) -> dict[str, Any] | None:
    """Of each client that joined later: its role and mean selections; and how many newcomers were chosen each round."""
    choices = [choices_by_group(run.records, run.groups) for run in runs]
    joined = {name: group for name, group in choices[0].items() if (group.join_round or 1) > 1}
    if not joined:
        return None
    ids = {client_id: group.role for group in joined.values() for client_id in group.client_ids}
    chosen = dict.fromkeys(ids, 0)
    for run in runs:
        for record in run.records:
            for client_id in record.chosen:
                if client_id in chosen:
                    chosen[client_id] += 1
    by_round = [np.sum([of_run[name].chosen for name in joined], axis=0) for of_run in choices]
    rounds = [np.arange(1, len(counts) + 1) for counts in by_round]
    return {
        "selections": {c: {"role": ids[c], "mean": round(chosen[c] / len(runs), 2)} for c in ids},
        "by_round": _stored([(x, np.asarray(y, np.float64)) for x, y in zip(rounds, by_round, strict=True)]),
    }
