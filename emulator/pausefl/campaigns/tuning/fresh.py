"""Holds the front against the published setting on seeds that no trial has seen."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pausefl.campaigns.tuning.measure import REACHED, Figures, Measure, SettingRefused
from pausefl.campaigns.tuning.plan import Objective, TuningPlan
from pausefl.campaigns.tuning.space import Point
from pausefl.campaigns.tuning.study import SearchResult
from pausefl.results.statistics import ZERO, Interval, relative_difference
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError

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
    reached: int | None = None
    """Under how many of the seeds a run reached the target accuracy; None without one."""


def compared(plan: TuningPlan, tried: SearchResult, measure: Measure, say: TellLeftOut) -> list[FrontPoint]:
    """The front on fresh seeds, the recommended setting first, and the published setting last.

    The search has picked the best of many means, which flatters them (the winner's curse); fresh seeds do not.
    A setting with a run that failed is left out. SettingRefused where the published setting's failed, or every one's.
    """
    seeds = plan.unseen_seeds
    published = _published({}, seeds, measure)
    points = []
    for trial in tried.front:
        found = _measured_or_none(trial.point, seeds, measure, say)
        if found is not None:
            points.append(_front_point(plan.objectives, trial.point, found, published))
    if not points:
        raise SettingRefused("every setting of the front had a run that failed on a fresh seed")
    points.sort(key=lambda point: _rank(point, plan.objectives))
    return [*(replace(p, name=_name(i)) for i, p in enumerate(points)), _published_point(plan.objectives, published)]


def on_real_clock(plan: TuningPlan, recommended: Point, measure: Measure, say: TellLeftOut) -> list[FrontPoint]:
    """The recommended and the published setting on the real clock, under seeds that nothing has seen before.

    The recommended one is left out where a run of it failed. SettingRefused where the published one's failed.
    """
    seeds = plan.real_clock_seeds
    if not seeds:
        return []
    objectives = plan.confirmed_objectives
    published = _published(REAL_CLOCK, seeds, measure)
    found = _measured_or_none({**recommended, **REAL_CLOCK}, seeds, measure, say)
    own = [] if found is None else [replace(_front_point(objectives, recommended, found, published), name=_name(0))]
    return [*own, _published_point(objectives, published)]


def _published(point: Point, seeds: Sequence[int], measure: Measure) -> list[Figures]:
    """The published setting's figures under every seed, without which there is nothing to compare with."""
    try:
        return [measure(point, seed) for seed in seeds]
    except SettingRefused as error:
        again = "to play it again, delete that folder, then go on with --resume"
        raise SettingRefused(f"the published setting failed on a fresh seed: {error}; {again}") from error


def _measured_or_none(point: Point, seeds: Sequence[int], measure: Measure, say: TellLeftOut) -> list[Figures] | None:
    """The figures under every seed; None for a setting with a run that failed, which the search survives as well."""
    try:
        return [measure(point, seed) for seed in seeds]
    except (ConfigError, SettingRefused) as error:
        say(f"left out, as it failed on a fresh seed: {point} ({error})")
        return None


def _front_point(
    objectives: Sequence[Objective], point: Point, found: Sequence[Figures], published: Sequence[Figures]
) -> FrontPoint:
    changes = {o.name: relative_difference(_values(found, o), _values(published, o)) for o in objectives}
    known = {name: change for name, change in changes.items() if change is not None}
    return FrontPoint("", point, _means(objectives, found), known, _reached(found))


def _published_point(objectives: Sequence[Objective], published: Sequence[Figures]) -> FrontPoint:
    return FrontPoint(PUBLISHED, {}, _means(objectives, published), {}, _reached(published))


def _values(found: Sequence[Figures], objective: Objective) -> FloatArray:
    return np.array([figures[objective.name] for figures in found])


def _means(objectives: Sequence[Objective], found: Sequence[Figures]) -> dict[str, float]:
    return {o.name: float(_values(found, o).mean()) for o in objectives}


def _reached(found: Sequence[Figures]) -> int | None:
    reached = [figures[REACHED] for figures in found if REACHED in figures]
    return int(sum(reached)) if reached else None


def _rank(point: FrontPoint, objectives: Sequence[Objective]) -> tuple[float, float]:
    """The recommended first: as little worse as possible in its worst objective, then the best on the whole.

    What is worse than a published mean of 0 is infinitely worse. How much better something is than 0 has no measure.
    """
    changes = [(point.changes[o.name].mean, o) for o in objectives if o.name in point.changes]
    worse = [change * (1 if objective.greatest is None else -1) for change, objective in changes]
    return math.inf if _has_left_zero(point, objectives) else max([0.0, *worse]), sum(worse)


def _has_left_zero(point: FrontPoint, objectives: Sequence[Objective]) -> bool:
    """Whether some objective that should be small is 0 for the published setting, and above it here."""
    from_zero = (o for o in objectives if o.name not in point.changes)
    return any(o.greatest is None and point.figures[o.name] > ZERO for o in from_zero)


def _name(place: int) -> str:
    return "recommended" if place == 0 else f"front-{place:02}"
