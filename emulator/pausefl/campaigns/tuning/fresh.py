"""Holds the front against the published setting on seeds that no trial has seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pausefl.campaigns.tuning.measure import Measure
from pausefl.campaigns.tuning.plan import Objective, TuningPlan
from pausefl.campaigns.tuning.space import Point
from pausefl.campaigns.tuning.study import SearchResult
from pausefl_proto.arrays import FloatArray

_RESAMPLES = 5_000
_LEAST = 1e-12
"""Keeps a share of nothing finite."""


@dataclass(frozen=True)
class Change:
    """How much greater a figure is than the published setting's, as a share of that, with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class FrontPoint:
    """A setting of the front, or the published one, measured on fresh seeds."""

    name: str
    point: Point
    """The values of the keys searched; empty for the published setting."""
    figures: Mapping[str, float]
    """The mean of each objective over the fresh seeds."""
    changes: Mapping[str, Change]
    """Of each objective, paired by seed; empty for the published setting."""


def compared(plan: TuningPlan, tried: SearchResult, measure: Measure) -> list[FrontPoint]:
    """The front on fresh seeds, the recommended setting first, and the published setting last.

    The search has picked the best of many means, which flatters them (the winner's curse); fresh seeds do not.
    """
    published = _measured(plan, {}, measure)
    points = [
        _front_point(plan.objectives, trial.point, _measured(plan, trial.point, measure), published)
        for trial in tried.front
    ]
    points.sort(key=lambda point: _rank(point, plan.objectives))
    named = [FrontPoint(_name(i), p.point, p.figures, p.changes) for i, p in enumerate(points)]
    return [*named, FrontPoint("published", {}, _means(published), {})]


def relative_change(values: FloatArray, published: FloatArray) -> Change:
    """The change of a mean over (n,) seeds, relative to the published one's, with a percentile bootstrap interval.

    Seeds are resampled in pairs, as both settings meet the same draws under a seed (Efron and Tibshirani, 1993).
    """
    picks = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    means, baseline = values[picks].mean(axis=1), published[picks].mean(axis=1)
    low, high = np.quantile(means / np.maximum(baseline, _LEAST) - 1, (0.025, 0.975))
    return Change(float(values.mean()) / max(float(published.mean()), _LEAST) - 1, float(low), float(high))


def _measured(plan: TuningPlan, point: Point, measure: Measure) -> Mapping[str, FloatArray]:
    """Each objective on every fresh seed."""
    found = [measure(point, seed) for seed in plan.unseen_seeds]
    return {o.name: np.array([figures[o.name] for figures in found]) for o in plan.objectives}


def _front_point(
    objectives: Sequence[Objective], point: Point, found: Mapping[str, FloatArray], published: Mapping[str, FloatArray]
) -> FrontPoint:
    changes = {o.name: relative_change(found[o.name], published[o.name]) for o in objectives}
    return FrontPoint("", point, _means(found), changes)


def _means(found: Mapping[str, FloatArray]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in found.items()}


def _rank(point: FrontPoint, objectives: Sequence[Objective]) -> tuple[float, float]:
    """The recommended first: as little worse as possible in its worst objective, then the best on the whole."""
    worse = [point.changes[o.name].mean * (1 if o.greatest is None else -1) for o in objectives]
    return max(0.0, *worse), sum(worse)


def _name(place: int) -> str:
    return "recommended" if place == 0 else f"front-{place:02}"
