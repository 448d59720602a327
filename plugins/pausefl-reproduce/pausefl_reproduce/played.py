"""Condenses a reproduction's runs into intervals, curves and selections by series, small enough for a repository."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np

from pausefl.results.reading import RunData
from pausefl.results.selections import choices_by_group
from pausefl.results.statistics import mean_band, mean_interval, paired_difference
from pausefl.results.stored_summary import Summary
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import stable_hash
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import NOT_FINITE
from pausefl_reproduce.waits import (
    Waits,
    common_horizon_s,
    first_reached,
    restricted_difference,
    restricted_mean,
    smoothed,
)

SMOOTHING_ROUNDS = 10
"""The window of the paper's curves (PAUSE v2, Section V-B)."""
ACCURACIES = (0.6, 0.7, 0.8)
"""The accuracies for which the time to reach them is reported."""
_POINTS = 61
StoredCurve = Mapping[str, Any]
"""x, mean, low and high of one curve. low and high are the 95 % interval or, with too few seeds, least and greatest.
`seeds`, if requested, has the values of each seed."""


def has_diverged(summary: Summary) -> bool:
    """Whether a run ended early because no client's update was finite any more. Its model is then useless."""
    return summary["outcome"] == "failed" and summary["rounds"] > 0 and NOT_FINITE in summary["stopped_because"]


@dataclass(frozen=True)
class ClusterTerm:
    """The latency that reward R2 adds to a round (eq. (22)): δ_τ for each chosen client beyond the first of its
    cluster."""

    clusters: int | Mapping[str, int]
    """R, the number of clusters, or the cluster of each client by client id."""
    delta_tau_s: float

    def of_run(self, run: RunData) -> float:
        """The sum of the term over a run's rounds, in seconds. The run's own policy need not know the clusters."""
        # The same clusters as in `pausefl_server.selection.policies.pause.cluster_of`.
        seed, ids, clusters = run.summary["seed"], map(str, run.clients["client_id"]), self.clusters
        if isinstance(clusters, int):
            cluster = {c: stable_hash(seed, "tie", c) % clusters for c in ids}
        else:
            cluster = {c: clusters.get(c, -1 - alone) for alone, c in enumerate(ids)}
        sets = ([cluster[client_id] for client_id in {*record.chosen}] for record in run.records)
        return self.delta_tau_s * sum(len(chosen) - len(set(chosen)) for chosen in sets)


@dataclass(frozen=True)
class PlayedSeed:
    """The data of one run that figures need: some kilobytes as JSON, so that runs are kept and seeds can be added."""

    seed: int
    rounds: int
    diverged: bool
    budgets_spent: bool
    last_accuracy: float | None
    best_accuracy: float
    total_latency_s: float
    is_whole: bool
    """Whether the run played all its rounds. Otherwise its total cannot be compared with others."""
    greatest_leak: float | None
    median_leak: float | None
    epsilon_budget: float | None
    privacy_unit: str | None
    suspect_rounds: int
    wall_clock_s: float
    evaluations: Mapping[str, Sequence[float]]
    """Columns round, seconds (total latency, or elapsed time) and accuracy, with an entry per evaluation."""
    leakage: Mapping[str, Sequence[float]]
    """Columns round, seconds and epsilon (the greatest of any client after the round); if seconds are elapsed time,
    also median. Empty without privacy."""
    newcomers: Mapping[str, Mapping[str, Any]]
    """For each client that joined later, by client id: its role, and chosen: how often it was chosen."""
    newcomers_by_round: Sequence[int]
    """How often newcomers were chosen in each round."""
    cluster_term_s: float | None = None
    by_speed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Columns with an entry per client, the fastest first. epsilon: its ε after half of the time. retired_s: when its
    budget was used up (0: it was not). Empty unless seconds are elapsed time."""
    software: str = ""
    hardware: str = ""
    started: str = ""

    @property
    def smoothed_accuracy(self) -> FloatArray:
        """The accuracy of each evaluation, smoothed over `SMOOTHING_ROUNDS` as in the paper."""
        rounds, accuracy = (np.array(self.evaluations[column], np.float64) for column in ("round", "accuracy"))
        return smoothed(rounds, accuracy, SMOOTHING_ROUNDS)


SeriesRuns = Mapping[str, Sequence[PlayedSeed]]
"""By series: one run per seed, sorted by seed."""


def played_seed(
    run: RunData, cluster_term: ClusterTerm | None, hardware: str, *, is_elapsed: bool = False
) -> PlayedSeed:
    """The data to keep of a run. Its seconds are elapsed time if `is_elapsed`, else the sum of latencies (eq. (3)).
    ConfigError if the run evaluated no model."""
    summary = run.summary
    rounds, accuracy = run.curve("test", "round")
    if not accuracy.size:
        raise ConfigError("some run evaluated no model: a figure needs one that is trained")
    totals = dict(zip(run.round_latency["round"], run.round_latency["total_latency_s"], strict=True))
    by_round = run.greatest_leakage
    leak: dict[str, Any] = {"round": by_round["round"], "epsilon": by_round["max_epsilon_spent"]}
    by_speed: dict[str, list[float]] = {}
    if is_elapsed:
        totals = {record.round: record.elapsed_s for record in run.records}
        leak, by_speed = _leakage_of(run)
    newcomers, newcomers_by_round = _newcomers_of(run)
    start: Mapping[str, str] = next(iter(summary["starts"] or []), {})
    return PlayedSeed(
        seed=summary["seed"],
        rounds=summary["rounds"],
        diverged=has_diverged(summary),
        budgets_spent=summary["outcome"] == "budgets_spent",
        last_accuracy=summary["final_accuracy"],
        best_accuracy=_best(run),
        total_latency_s=max(totals.values(), default=0.0) if is_elapsed else summary["total_latency_s"],
        is_whole=summary["rounds"] >= run.settings["experiment"]["rounds"],
        greatest_leak=summary["max_epsilon_spent"],
        median_leak=summary["median_epsilon_spent"],
        epsilon_budget=summary["epsilon_budget"] if run.privacy else None,
        privacy_unit=summary["privacy_unit"],
        suspect_rounds=summary["suspect_rounds"],
        wall_clock_s=summary["wall_clock_s"],
        evaluations=_columns(round=rounds, seconds=[totals.get(t, 0.0) for t in rounds], accuracy=accuracy),
        leakage=_columns(seconds=[totals[t] for t in leak["round"]], **leak) if run.privacy else {},
        by_speed=by_speed,
        newcomers=newcomers,
        newcomers_by_round=newcomers_by_round,
        cluster_term_s=cluster_term.of_run(run) if cluster_term else None,
        software=" ".join(start.get(name, "") for name in ("version", "commit")).strip(),
        hardware=hardware,
        started=start.get("started", ""),
    )


def _leakage_of(run: RunData) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """`PlayedSeed.leakage` without its seconds, at no more than about 200 rounds; and `PlayedSeed.by_speed`.

    Clients are sorted by mean latency.
    """
    ids = [str(client_id) for client_id in run.clients["client_id"]]
    spent, latencies_s = dict.fromkeys(ids, 0.0), {client_id: list[float]() for client_id in ids}
    half = spent
    leak: dict[str, list[float]] = {"round": [], "epsilon": [], "median": []}
    records = list(run.records)
    every = 1 + len(records) // 200
    for record in records:
        told = [(event.client_id, event.epsilon_spent) for attempt in record.attempts for event in attempt.events]
        told += [(observation.client_id, observation.epsilon_spent) for observation in record.observations]
        if record is records[-1]:  # what became known after it counts as known then
            told += zip(ids, run.clients["epsilon_spent"].tolist(), strict=True)
        spent = spent | {client_id: max(spent[client_id], epsilon) for client_id, epsilon in told}
        half = spent if record.elapsed_s <= records[-1].elapsed_s / 2 else half
        for observation in record.observations:
            latencies_s[observation.client_id].append(observation.latency_s)
        if record.round % every and record is not records[-1]:
            continue
        for name, value in zip(leak, (record.round, max(spent.values()), median(spent.values())), strict=True):
            leak[name].append(value)
    commits_s = [0.0, *(record.elapsed_s for record in records)]
    retired_s = [commits_s[max(0, t - 1)] for t in run.clients["retired_before"].tolist()]
    order = sorted(range(len(ids)), key=lambda k: fmean(latencies_s[ids[k]] or [math.inf]))
    by_speed = _columns(epsilon=[half[ids[k]] for k in order], retired_s=[retired_s[k] for k in order])
    return leak, by_speed


def _best(run: RunData) -> float:
    """The greatest accuracy of all evaluations; if clients join later, only of those since the first joined."""
    rounds, accuracy = run.curve("test", "round")
    joins = [group.join_round for group in run.groups.values() if group.join_round > 1]
    since = accuracy[rounds >= min(joins)] if joins else accuracy
    return float(since.max(initial=0.0))


def summarise_series(runs: SeriesRuns, *, each_seed: bool = False) -> dict[str, Any]:
    """The results of every series, with differences by seed to the baseline: `random`, or without it the first series.

    With `each_seed`, curves also hold the values of each seed.
    """
    baseline = "random" if "random" in runs else next(iter(runs))
    longest_s = max(run.total_latency_s for of_series in runs.values() for run in of_series)
    waits = {name: _waits(of_series, longest_s) for name, of_series in runs.items()}
    until_s = min(run.total_latency_s for of_series in runs.values() for run in of_series)
    return {
        "baseline": baseline,
        "shortest_s": until_s,
        "series": {
            name: {
                **_figures(of_series),
                "time_to": {f"{level:g}": time_to(waits[name][level], waits[baseline][level]) for level in ACCURACIES},
                "against_baseline": _against(runs, waits, name, baseline),
                **_curves(of_series, each_seed=each_seed),
                "newcomers": _newcomers(of_series),
                **_by_speed(of_series, until_s),
            }
            for name, of_series in runs.items()
        },
    }


def _waits(runs: Sequence[PlayedSeed], longest_s: float) -> Mapping[float, Waits]:
    """The waits of a series, by accuracy. A diverged run counts as followed without success until `longest_s`."""
    seconds, accuracies = ([np.array(run.evaluations[column]) for run in runs] for column in ("seconds", "accuracy"))
    found = {level: first_reached(seconds, accuracies, level) for level in ACCURACIES}
    lost = np.array([run.diverged for run in runs])
    return {
        level: Waits(np.where(lost & ~waits.reached, longest_s, waits.seconds), waits.reached)
        for level, waits in found.items()
    }


def time_to(own: Waits, baseline: Waits) -> dict[str, Any]:
    """How many seeds reached the accuracy, the horizon, and the restricted mean of their times up to it.

    Each series has its own horizon, shared with the baseline only. A horizon for all series would be that of the series
    with the shortest runs, and hide most of the others. `horizon_s` is None if no seed is censored.
    """
    horizon_s = common_horizon_s([own, baseline])
    kept_s = horizon_s if math.isfinite(horizon_s) else None
    return {"reached": int(own.reached.sum()), "horizon_s": kept_s, **asdict(restricted_mean(own, horizon_s))}


def _figures(runs: Sequence[PlayedSeed]) -> dict[str, Any]:
    best, last = [run.best_accuracy for run in runs], [run.last_accuracy for run in runs]
    found = {
        "seeds": [run.seed for run in runs],
        "rounds": max(run.rounds for run in runs),
        "diverged_after": [run.rounds for run in runs if run.diverged],
        "budgets_spent_after": [run.rounds for run in runs if run.budgets_spent],
        "last_accuracy": _interval(last),
        "last_by_seed": last,
        "best_accuracy": _interval(best),
        "best_by_seed": best,
        "total_latency_s": _interval([_total_s(run) for run in runs]),
        "greatest_leak": _interval([run.greatest_leak for run in runs]),
        "median_leak": _interval([run.median_leak for run in runs]),
        "suspect_rounds": sum(run.suspect_rounds for run in runs),
        "wall_clock_s": sum(run.wall_clock_s for run in runs),
    }
    terms = _interval([run.cluster_term_s for run in runs])
    return {**found, "cluster_term_s": terms} if terms else found


def _total_s(run: PlayedSeed) -> float | None:
    return run.total_latency_s if run.is_whole else None


def _interval(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    return asdict(mean_interval(known)) if len(known) == len(values) and known else None


def _against(
    runs: SeriesRuns, waits: Mapping[str, Mapping[float, Waits]], name: str, base: str
) -> dict[str, Any] | None:
    """Paired differences to another baseline: in total latency, and in time to accuracies that either reached."""
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


def _curves(runs: Sequence[PlayedSeed], *, each_seed: bool) -> dict[str, Any]:
    accuracies = [(run.evaluations, run.smoothed_accuracy) for run in runs]
    leaks = [run.leakage for run in runs if run.leakage]
    curves: dict[str, Sequence[tuple[Any, Any]]] = {
        "accuracy_by_latency": [(of["seconds"], accuracy) for of, accuracy in accuracies],
        "accuracy_by_round": [(of["round"], accuracy) for of, accuracy in accuracies],
        "leak_by_round": [(leak["round"], leak["epsilon"]) for leak in leaks],
        "leak_by_latency": [(leak["seconds"], leak["epsilon"]) for leak in leaks],
        "median_leak_by_latency": [(leak["seconds"], leak["median"]) for leak in leaks if "median" in leak],
    }
    return {name: _stored(of_seeds, each_seed=each_seed) for name, of_seeds in curves.items()}


def _by_speed(runs: Sequence[PlayedSeed], until_s: float) -> dict[str, Any]:
    """Means over the seeds: ε by client, the fastest first; and how many of each fifth had retired by `until_s`."""
    if not runs[0].by_speed:
        return {}
    epsilon, retired_s = (np.array([run.by_speed[name] for run in runs]) for name in ("epsilon", "retired_s"))
    (until_s,) = _columns(seconds=[until_s])["seconds"]  # with as many digits as the times that are kept
    retired = ((retired_s > 0) & (retired_s <= until_s)).mean(axis=0)
    return {
        "epsilon_by_speed": np.round(epsilon.mean(axis=0), 2).tolist(),
        "retired_by_fifth": [round(float(fifth.sum()), 2) for fifth in np.array_split(retired, 5)],
    }


def _stored(curves: Sequence[tuple[Any, Any]], *, each_seed: bool = False) -> dict[str, Any] | None:
    """The mean and band of the curves over the x range that all have in common; None if there is none."""
    if not curves or not all(len(x) for x, _ in curves):
        return None
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if end < start:
        return None
    grid = np.linspace(start, end, _POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in curves])
    rows = {"x": grid, **dict(zip(("mean", "low", "high"), mean_band(values), strict=True))}
    stored: dict[str, Any] = {name: _rounded(row) for name, row in rows.items()}
    return {**stored, "seeds": [_rounded(row) for row in values]} if each_seed else stored


def _rounded(values: FloatArray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _newcomers(runs: Sequence[PlayedSeed]) -> dict[str, Any] | None:
    """The role and mean selections of each newcomer, and how many newcomers were chosen in each round."""
    if not (ids := runs[0].newcomers):
        return None
    by_round = [(np.arange(1, len(run.newcomers_by_round) + 1), run.newcomers_by_round) for run in runs]
    chosen = {c: [run.newcomers[c]["chosen"] if c in run.newcomers else 0 for run in runs] for c in ids}
    return {
        "selections": {c: {"role": ids[c]["role"], "mean": round(fmean(chosen[c]), 2)} for c in ids},
        "by_round": _stored(by_round),
    }


def _newcomers_of(run: RunData) -> tuple[dict[str, dict[str, Any]], list[int]]:
    """`PlayedSeed.newcomers` and `PlayedSeed.newcomers_by_round` of a run."""
    choices = choices_by_group(run.records, run.groups)
    joined = [group for group in choices.values() if (group.join_round or 1) > 1]
    found: dict[str, dict[str, Any]] = {c: {"role": g.role, "chosen": 0} for g in joined for c in g.client_ids}
    for record in run.records:
        for client_id in record.chosen:
            if client_id in found:
                found[client_id]["chosen"] += 1
    return found, np.sum([group.chosen for group in joined], axis=0).tolist() if joined else []


def _columns(**columns: Any) -> dict[str, list[float]]:
    return {name: [float(f"{value:.7g}") for value in values] for name, values in columns.items()}
