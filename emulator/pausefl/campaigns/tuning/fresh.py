"""Holds the front against the published setting on seeds that no trial has seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pausefl.campaigns.tuning.measure import Measure
from pausefl.campaigns.tuning.plan import Objective, TuningPlan
from pausefl.campaigns.tuning.space import Point
from pausefl.campaigns.tuning.study import SearchResult
from pausefl.exit_status import RunInterrupted
from pausefl.results.statistics import Interval, relative_difference
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError, PauseflError

PUBLISHED = "published"
REAL_CLOCK: Point = {"experiment.clock": "real"}
TellLeftOut = Callable[[str], None]
"""Is told of each setting that is left out."""


@dataclass(frozen=True)
class FrontPoint:
    """A setting of the front, or the published one, measured on fresh seeds."""

    name: str
    point: Point
    """The values of the keys searched; empty for the published setting."""
    figures: Mapping[str, float]
    """The mean of each objective over the fresh seeds."""
    changes: Mapping[str, Interval]
    """How much greater each mean is than the published setting's, as a share of it.

    Empty for that setting itself, and without the objectives in which its mean is 0.
    """


def compared(plan: TuningPlan, tried: SearchResult, measure: Measure, say: TellLeftOut) -> list[FrontPoint]:
    """The front on fresh seeds, the recommended setting first, and the published setting last.

    The search has picked the best of many means, which flatters them (the winner's curse); fresh seeds do not.
    A setting with a run that failed is left out. PauseflError where the published setting's failed, or every one's.
    """
    seeds = plan.unseen_seeds
    published = _published(plan.objectives, {}, seeds, measure)
    points = []
    for trial in tried.front:
        found = _measured_or_none(plan.objectives, trial.point, seeds, measure, say)
        if found is not None:
            points.append(_front_point(plan.objectives, trial.point, found, published))
    if not points:
        raise PauseflError("every setting of the front had a run that failed on a fresh seed")
    points.sort(key=lambda point: _rank(point, plan.objectives))
    named = [FrontPoint(_name(i), p.point, p.figures, p.changes) for i, p in enumerate(points)]
    return [*named, FrontPoint(PUBLISHED, {}, _means(published), {})]


def on_real_clock(plan: TuningPlan, recommended: Point, measure: Measure, say: TellLeftOut) -> list[FrontPoint]:
    """The recommended and the published setting on the real clock, under seeds that nothing has seen before.

    The recommended one is left out where a run of it failed. PauseflError where the published one's failed.
    """
    seeds = plan.real_clock_seeds
    if not seeds:
        return []
    objectives = plan.confirmed_objectives
    published = _published(objectives, REAL_CLOCK, seeds, measure)
    found = _measured_or_none(objectives, {**recommended, **REAL_CLOCK}, seeds, measure, say)
    own = [] if found is None else [replace(_front_point(objectives, recommended, found, published), name=_name(0))]
    return [*own, FrontPoint(PUBLISHED, {}, _means(published), {})]


def _published(
    objectives: Sequence[Objective], point: Point, seeds: Sequence[int], measure: Measure
) -> Mapping[str, FloatArray]:
    """Each objective of the published setting, without which there is nothing to compare with."""
    try:
        return _measured(objectives, point, seeds, measure)
    except (RunInterrupted, ConfigError):
        raise
    except PauseflError as error:
        again = "to play it again, delete that folder, then go on with --resume"
        raise PauseflError(f"the published setting failed on a fresh seed: {error}; {again}") from error


def _measured_or_none(
    objectives: Sequence[Objective], point: Point, seeds: Sequence[int], measure: Measure, say: TellLeftOut
) -> Mapping[str, FloatArray] | None:
    """Each objective on every seed; None for a setting with a run that failed, which the search survives as well."""
    try:
        return _measured(objectives, point, seeds, measure)
    except RunInterrupted:
        raise
    except PauseflError as error:
        say(f"left out, as it failed on a fresh seed: {point} ({error})")
        return None


def _measured(
    objectives: Sequence[Objective], point: Point, seeds: Sequence[int], measure: Measure
) -> Mapping[str, FloatArray]:
    """Each objective on every seed."""
    found = [measure(point, seed) for seed in seeds]
    return {o.name: np.array([figures[o.name] for figures in found]) for o in objectives}


def _front_point(
    objectives: Sequence[Objective], point: Point, found: Mapping[str, FloatArray], published: Mapping[str, FloatArray]
) -> FrontPoint:
    changes = {o.name: relative_difference(found[o.name], published[o.name]) for o in objectives}
    known = {name: change for name, change in changes.items() if change is not None}
    return FrontPoint("", point, _means(found), known)


def _means(found: Mapping[str, FloatArray]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in found.items()}


def _rank(point: FrontPoint, objectives: Sequence[Objective]) -> tuple[float, float]:
    """The recommended first: as little worse as possible in its worst objective, then the best on the whole."""
    changes = [(point.changes[o.name].mean, o) for o in objectives if o.name in point.changes]
    worse = [change * (1 if objective.greatest is None else -1) for change, objective in changes]
    return max([0.0, *worse]), sum(worse)


def _name(place: int) -> str:
    return "recommended" if place == 0 else f"front-{place:02}"
