"""The results of simulating a policy that classifies newcomers: summary, tables, text and a figure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.groups import drift_laws_of, presence_of
from pausefl.experiment.population.availability import Presence
from pausefl.studies.simulation.curves import growth_fits, recorded_rounds
from pausefl.studies.simulation.newcomers import DriftSetting, Insertion, NewcomerResult, simulate_newcomers
from pausefl_server.selection.newcomers import NewcomerPolicy
from pausefl_server.selection.policies.fed_ts import Posteriors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CsvTable = tuple[tuple[str, ...], Iterable[Iterable[Any]]]
"""The column names and the rows of a CSV table."""

FITS_NOTE = "R²: how well a + b ln n, a + b sqrt n and a + b n fit its growth over n rounds; 1 is best"
_REGRET_IS = (
    "sum over rounds and irrelevant newcomers chosen of u(critical newcomer) - u(irrelevant one), u being the chance "
    "of a small drift and critical the relevant newcomer of the insertion with the least u: Fed-TS, Theorem 1"
)


def newcomer_findings(
    experiment: Experiment, policy: NewcomerPolicy, rounds: int
) -> tuple[dict[str, Any], dict[str, CsvTable], "Callable[[], Figure]"]:
    """The summary, the tables and a function that draws the figure. ConfigError if a group's drifts have no law."""
    from pausefl.studies.simulation.figures import draw_newcomers

    groups, seed = experiment.groups, experiment.experiment.seed
    presence = presence_of(groups, rounds, seed) or Presence.of_all(experiment.client_ids)
    setting = DriftSetting(drift_laws_of(groups), presence, seed)
    result = simulate_newcomers(policy, setting, rounds)
    tables: dict[str, CsvTable] = {
        "simulation": (("round", "regret", "relevant_chosen", "irrelevant_chosen"), _curves(result)),
        "intervals": (("join_round", "client_id", "first", "last", "mean_rounds", "mean_regret"), _intervals(result)),
        "selections": (("client_id", "chosen"), zip(result.table.ids, result.table.chosen.tolist(), strict=True)),
    }
    return _summary(experiment, policy, result), tables, lambda: draw_newcomers(result, _intervals(result))


def newcomers_in_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """The results as lines of text."""
    if summary["regret"] is None:
        yield "no regret: there are no relevant beside irrelevant newcomers"
        return
    yield "regret: for each irrelevant newcomer chosen, how much rarer its drift is small than the critical one's"
    fits = fits_in_words(summary["growth_fits"])
    yield f"    {summary['regret']:.1f}{f'; {fits}' if fits else ''}"
    if fits:
        yield FITS_NOTE
    for i in summary["insertions"]:
        chosen = f"relevant newcomers chosen {i['mean_chosen']['relevant']:.1f} times, irrelevant ones"
        yield f"joined before round {i['join_round']}: {chosen} {i['mean_chosen']['irrelevant']:.1f} times;"
        if i["intervals"]:
            means = f"{i['mean_interval_rounds']:.2f} rounds and a regret of {i['mean_interval_regret']:.3g}"
            yield f"    {i['intervals']:,} training intervals of {i['critical']}, in the mean {means}"


def fits_in_words(fits: Mapping[str, Mapping[str, float]]) -> str:
    """A text with the R² of each fit to a regret; empty without fits."""
    return ", ".join(f"{growth}: R² {fit['r_squared']:.4f}" for growth, fit in fits.items())


def _summary(experiment: Experiment, policy: NewcomerPolicy, result: NewcomerResult) -> dict[str, Any]:
    compared = [insertion for insertion in result.insertions if insertion.critical is not None]
    return {
        "policy": experiment.selection.policy,
        "seed": experiment.experiment.seed,
        "rounds": result.rounds,
        "clients": len(result.table),
        "m": policy.m,
        "drift_threshold": result.threshold if result.insertions else None,
        "regret": float(result.regret.sum()) if compared else None,
        "regret_is": _REGRET_IS,
        "growth_fits": growth_fits(np.arange(1, result.rounds + 1), np.cumsum(result.regret)),
        "classified_small": _small_drifts(result),
        "insertions": [_of_insertion(insertion, result.rounds) for insertion in compared],
    }


def _of_insertion(insertion: Insertion, rounds: int) -> dict[str, Any]:
    critical, gaps = insertion.critical, insertion.gaps[~insertion.relevant]
    assert critical is not None
    chosen, (lengths, regrets) = insertion.chosen.sum(axis=0), insertion.intervals()
    return {
        "join_round": insertion.round,
        "relevant": int(insertion.relevant.sum()),
        "irrelevant": len(gaps),
        "critical": insertion.client_ids[critical],
        "small_drift_probability": {
            "critical": float(insertion.small[critical]),
            "greatest of irrelevant": float(insertion.small[~insertion.relevant].max()),
        },
        "mean_chosen": {
            "relevant": float(chosen[insertion.relevant].mean()),
            "irrelevant": float(chosen[~insertion.relevant].mean()),
        },
        "intervals": len(lengths),
        "mean_interval_rounds": float(lengths.mean()) if len(lengths) else None,
        "mean_interval_regret": float(regrets.mean()) if len(lengths) else None,
        "greatest_interval_regret": float(regrets.max()) if len(lengths) else None,
        # Definition 2: 24 ln T/Δ², with the Δ of the irrelevant newcomer that needs the longest warm-up.
        "warm_up_rounds": 24 * math.log(rounds) / float(gaps.min()) ** 2,
    }


def _small_drifts(result: NewcomerResult) -> dict[str, float] | None:
    """The shares of relevant and of irrelevant newcomers' drifts that counted as small; None without posteriors."""
    if not isinstance(result.state, Posteriors) or not result.insertions:
        return None
    ids = [client_id for insertion in result.insertions for client_id in insertion.client_ids]
    relevant = np.concatenate([insertion.relevant for insertion in result.insertions])
    s, f = result.state.counts(result.table.rows(ids), len(result.table))
    return {
        kind: float((s[of_kind] - 1).sum() / max(1, (s[of_kind] + f[of_kind] - 2).sum()))
        for kind, of_kind in (("relevant", relevant), ("irrelevant", ~relevant))
    }


def _curves(result: NewcomerResult) -> Iterator[tuple[int, float, int, int]]:
    """The rows of simulation.csv: the running sums at each recorded round."""
    relevant, irrelevant = np.zeros(result.rounds, np.int64), np.zeros(result.rounds, np.int64)
    for insertion in result.insertions:
        relevant += insertion.chosen[:, insertion.relevant].sum(axis=1)
        irrelevant += insertion.chosen[:, ~insertion.relevant].sum(axis=1)
    sums = [np.cumsum(column).tolist() for column in (result.regret, relevant, irrelevant)]
    for t in recorded_rounds(result.rounds).tolist():
        yield (t, *(column[t - 1] for column in sums))


def _intervals(result: NewcomerResult) -> Iterator[tuple[int, str, int, int, float, float]]:
    """The rows of intervals.csv: means over I(first), ..., I(last). Each row covers twice as many as the row before."""
    for insertion in result.insertions:
        lengths, regrets = insertion.intervals()
        first = 1
        while first <= len(lengths):
            last, part = min(2 * first - 1, len(lengths)), slice(first - 1, 2 * first - 1)
            critical = insertion.client_ids[insertion.critical or 0]
            means = float(lengths[part].mean()), float(regrets[part].mean())
            yield (insertion.round, critical, first, last, *means)
            first *= 2
