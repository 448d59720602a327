"""Statistics of the time until seeds reach an accuracy, which some never do; and the paper's smoothing of curves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pausefl.results.statistics import Interval, PairedDifference, percentile_interval, resampled_shares
from pausefl_proto.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class Waits:
    """How long each seed took to reach an accuracy or, if it did not reach it, how long it was followed."""

    seconds: FloatArray
    """(n_seeds,) the time at the first evaluation that reached the accuracy or, without one, at the last evaluation."""
    reached: BoolArray
    """(n_seeds,) whether the seed reached it. False: censored. All that is known is that it needs longer."""

    @property
    def followed_s(self) -> float:
        """The longest time that any seed was followed."""
        return float(self.seconds.max())


def first_reached(seconds: Sequence[FloatArray], accuracies: Sequence[FloatArray], accuracy: float) -> Waits:
    """The waits until each seed's curve first reached `accuracy`. Times and accuracies are (n_evaluations,) each."""
    reached = np.array([bool((values >= accuracy).any()) for values in accuracies])
    places = [
        int(np.argmax(values >= accuracy)) if hit else -1 for values, hit in zip(accuracies, reached, strict=True)
    ]
    return Waits(np.array([float(times[i]) for times, i in zip(seconds, places, strict=True)]), reached)


def common_horizon_s(waits: Sequence[Waits]) -> float:
    """The longest horizon at which restricted means of all `waits` can be compared; infinite if no seed is censored.

    It is the least `followed_s` among those with censored seeds: beyond it, one of the means is unknown.
    """
    return min((each.followed_s for each in waits if not each.reached.all()), default=np.inf)


def restricted_mean(waits: Waits, horizon_s: float) -> Interval:
    """The mean wait up to `horizon_s` by the Kaplan–Meier estimate, which also uses the times of censored seeds.

    It is the area under the estimated share of seeds still waiting, from 0 to the horizon (Royston and Parmar, 2013).
    Without censored seeds and horizon it is the plain mean. With censored seeds, the horizon must be finite.
    """
    n_seeds = len(waits.seconds)
    (mean,) = _areas(waits, horizon_s, np.ones((1, n_seeds)))
    return percentile_interval(float(mean), _areas(waits, horizon_s, resampled_shares(n_seeds) * n_seeds), n_seeds)


def restricted_difference(first: Waits, second: Waits, horizon_s: float) -> PairedDifference:
    """The difference of two restricted means, first − second. Their seeds are resampled in pairs.

    The win of a pair goes to the seed that is known to reach the accuracy first, before the horizon. If neither is
    known to, the win is shared. ValueError for different numbers of seeds.
    """
    n_seeds = len(first.seconds)
    if n_seeds != len(second.seconds):
        raise ValueError(f"{n_seeds} waits cannot be paired with {len(second.seconds)}")
    once, weights = np.ones((1, n_seeds)), resampled_shares(n_seeds) * n_seeds
    (mean,) = _areas(first, horizon_s, once) - _areas(second, horizon_s, once)
    differences = _areas(first, horizon_s, weights) - _areas(second, horizon_s, weights)
    wins = 0.5 * (1 + _known_first(first, second, horizon_s) - _known_first(second, first, horizon_s))
    return PairedDifference(percentile_interval(float(mean), differences, n_seeds), float(wins.mean()))


def smoothed(rounds: FloatArray, values: FloatArray, window: int) -> FloatArray:
    """(n_evaluations,) at each evaluated round, the mean of the values of the last `window` rounds, itself included."""
    starts = np.searchsorted(rounds, np.asarray(rounds) - window, side="right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    smooth: FloatArray = (sums[ends] - sums[starts]) / (ends - starts)
    return smooth


def _known_first(one: Waits, other: Waits, horizon_s: float) -> FloatArray:
    """(n_seeds,) 1 where `one` reached the accuracy before `other` did and before the horizon, else 0."""
    ends_s = np.minimum(other.seconds, horizon_s)
    return ((one.seconds < ends_s) & one.reached).astype(np.float64)


def _areas(waits: Waits, horizon_s: float, weights: FloatArray) -> FloatArray:
    """(n,) the areas under the Kaplan–Meier curves of n weightings of the seeds, (n, n_seeds); a weight is a count."""
    order = np.lexsort((~waits.reached, waits.seconds))  # among equal times, seeds that reached it come first
    seconds, reached, counts = waits.seconds[order], waits.reached[order], weights[:, order]
    at_risk = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    hazard = np.where(reached & (at_risk > 0), counts / np.maximum(at_risk, 1e-300), 0.0)
    waiting = np.cumprod(1.0 - hazard, axis=1)
    still = np.concatenate([np.ones((len(weights), 1)), waiting], axis=1)
    # The last span ends at the horizon. If the horizon is infinite, the curve has fallen to zero and adds no area.
    edges = np.concatenate([[0.0], np.minimum(seconds, horizon_s)])
    areas: FloatArray = (still[:, :-1] * np.diff(edges)).sum(axis=1)
    rest_s = max(horizon_s - edges[-1], 0.0) if np.isfinite(horizon_s) else 0.0
    return areas + still[:, -1] * rest_s
