"""Compares the front with the published setting on seeds that no trial has used."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pausefl.results.statistics import Interval, percentile_interval, resampled_shares
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError
from pausefl_tune.measure import REACHED, Figures, SettingRefused
from pausefl_tune.plan import Objective, Point
from pausefl_tune.study import MeasureSetting, Say

_ZERO = 1e-12
"""A mean up to this value counts as 0, as rounding alone may explain it."""


@dataclass(frozen=True)
class FrontPoint:
    """A setting of the front, or the published one, measured on fresh seeds."""

    name: str
    point: Point
    """The values of the searched keys. Empty for the published setting."""
    figures: Mapping[str, float]
    """The mean of each objective over the fresh seeds."""
    changes: Mapping[str, Interval]
    """The relative change of each mean from the published setting's mean.

    Empty for the published setting itself. Objectives in which its mean is 0 are left out.
    """
    reached: int | None = None
    """With how many of the seeds a run reached the target accuracy. None without a target."""


def compared(
    points: Sequence[Point],
    seeds: Sequence[int],
    objectives: Sequence[Objective],
    measure: MeasureSetting,
    say: Say,
    clock: Point | None = None,
) -> list[FrontPoint]:
    """Measure the settings on fresh seeds. Returns the recommended setting first, and the published setting last.

    The search has picked the best of many means, which are too good by chance (the winner's curse); fresh seeds are
    fair. A setting with a failed run is left out. Raises SettingRefused if a run of the published setting failed.
    """

    def figures_of(point: Point) -> list[Figures]:
        return [measure({**point, **(clock or {})}, seed) for seed in seeds]

    try:
        published = figures_of({})
    except SettingRefused as error:
        again = "to play it again, delete that folder, then go on with --resume"
        raise SettingRefused(f"the published setting failed on a fresh seed: {error}; {again}") from error
    found = []
    for point in points:
        try:
            found.append(_front_point(point, figures_of(point), published, objectives))
        except (ConfigError, SettingRefused) as error:
            say(f"left out, as it failed on a fresh seed: {point} ({error})")
    found.sort(key=lambda point: _rank(point, objectives))
    named = [replace(each, name=f"front-{place:02}" if place else "recommended") for place, each in enumerate(found)]
    return [*named, replace(_front_point({}, published, published, objectives), name="published", changes={})]


def _front_point(
    point: Point, found: Sequence[Figures], published: Sequence[Figures], objectives: Sequence[Objective]
) -> FrontPoint:
    values, others = ({o.name: [each[o.name] for each in of] for o in objectives} for of in (found, published))
    changes = {name: relative_difference(own, others[name]) for name, own in values.items()}
    reached = [each[REACHED] for each in found if REACHED in each]
    return FrontPoint(
        "",
        point,
        {name: float(np.mean(own)) for name, own in values.items()},
        {name: change for name, change in changes.items() if change is not None},
        int(sum(reached)) if reached else None,
    )


def _rank(point: FrontPoint, objectives: Sequence[Objective]) -> tuple[float, float]:
    """The sort key of a setting: how much worse it is in its worst objective, then how good it is in total.

    If the published mean is 0, a greater mean counts as infinitely worse, or not at all if the objective is maximised.
    """
    worse = [o.sign * point.changes[o.name].mean for o in objectives if o.name in point.changes]
    from_zero = (o for o in objectives if o.name not in point.changes and o.greatest is None)
    has_left_zero = any(point.figures[o.name] > _ZERO for o in from_zero)
    return math.inf if has_left_zero else max([0.0, *worse]), sum(worse)


def relative_difference(first: Sequence[float] | FloatArray, second: Sequence[float] | FloatArray) -> Interval | None:
    """The mean of `first` over the mean of `second`, minus 1. Values are paired by seed, and resampled in pairs.

    No value is below 0. None if the mean of `second` is 0, with which nothing can be compared.
    """
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.shape != other.shape:
        raise ValueError(f"{one.size} values cannot be paired with {other.size}")
    if other.mean() <= _ZERO:
        return None
    mean, shares = float(one.mean() / other.mean() - 1), resampled_shares(len(one))
    others = shares @ other
    if others.min() <= _ZERO:
        return Interval(mean, None, None, len(one))
    return percentile_interval(mean, (shares @ one) / others - 1, len(one))
