"""What several seeds say together: means, paired differences and times to an accuracy, with bootstrap intervals.

May live here: pure numpy on numbers per seed. The intervals are percentile intervals of the bootstrap (Efron and
Tibshirani, 1993, chapter 13) over seeds. Their resamples are drawn from a fixed seed, so the same numbers give the same
interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray

FEWEST_SEEDS = 5
"""With fewer seeds there is no interval: the bootstrap then gives little more than the least and the greatest value."""
CONFIDENCE = 0.95
_RESAMPLES = 5_000
ZERO = 1e-12
"""A mean up to this is 0 but for rounding."""
_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Interval:
    """A mean over the seeds, and the interval in which the bootstrap has 95 % of its means."""

    mean: float
    low: float | None
    """None with fewer than `FEWEST_SEEDS` seeds, and for a share of a mean that may be 0."""
    high: float | None
    n_seeds: int


@dataclass(frozen=True)
class PairedDifference:
    """One policy less another, seed by seed."""

    difference: Interval
    win_rate: float
    """The share of seeds in which the first value is the smaller one; a tie counts half."""


@dataclass(frozen=True)
class Waits:
    """How long each seed took to reach an accuracy, or how long it was followed without reaching it."""

    seconds: FloatArray
    """Total latency at the first evaluation that reached the accuracy, else at the last evaluation, (n_seeds,)."""
    reached: BoolArray
    """False: censored. The seed needs longer than `seconds`, and nothing else is known."""

    @property
    def followed_s(self) -> float:
        """The longest time that any seed was followed."""
        return float(self.seconds.max())


def mean_interval(values: Sequence[float] | FloatArray) -> Interval:
    """The mean of one value a seed, with its interval."""
    array = np.asarray(values, np.float64)
    return _interval(float(array.mean()), _resampled(len(array)) @ array, len(array))


def mean_band(curves: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Mean, low and high, (n_points,) each, of curves (n_seeds, n_points); None with too few seeds for an interval."""
    if len(curves) < FEWEST_SEEDS:
        return None
    mean = curves.mean(axis=0)
    low, high = np.quantile(_resampled(len(curves)) @ curves, _TAILS, axis=0)
    return mean, np.minimum(low, mean), np.maximum(high, mean)


def paired_difference(first: Sequence[float] | FloatArray, second: Sequence[float] | FloatArray) -> PairedDifference:
    """`first` − `second`; equal places hold the same seed, whose split and latency draws both share."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.shape != other.shape:
        raise ValueError(f"{one.size} values cannot be paired with {other.size}")
    return PairedDifference(mean_interval(one - other), float(np.mean((one < other) + 0.5 * (one == other))))


def relative_difference(first: Sequence[float] | FloatArray, second: Sequence[float] | FloatArray) -> Interval | None:
    """The mean of `first` over the mean of `second`, less 1; seeds are paired, and resampled in pairs.

    The means are of figures that are never below 0. A mean of 0 is no figure to compare with: None.
    """
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.shape != other.shape:
        raise ValueError(f"{one.size} values cannot be paired with {other.size}")
    if other.mean() <= ZERO:
        return None
    mean, shares = float(one.mean() / other.mean() - 1), _resampled(len(one))
    others = shares @ other
    if others.min() <= ZERO:
        return Interval(mean, None, None, len(one))
    return _interval(mean, (shares @ one) / others - 1, len(one))


def first_reached(seconds: Sequence[FloatArray], accuracies: Sequence[FloatArray], accuracy: float) -> Waits:
    """When each seed's curve first reached `accuracy`; the curves are (n_evaluations,) each."""
    reached = np.array([bool((values >= accuracy).any()) for values in accuracies])
    places = [
        int(np.argmax(values >= accuracy)) if hit else -1 for values, hit in zip(accuracies, reached, strict=True)
    ]
    return Waits(np.array([float(times[i]) for times, i in zip(seconds, places, strict=True)]), reached)


def common_horizon_s(waits: Sequence[Waits]) -> float:
    """The longest time at which restricted means of all these compare; infinite where no seed is censored.

    It is the least `followed_s` of those with censored seeds: beyond it one of them is unknown.
    """
    return min((each.followed_s for each in waits if not each.reached.all()), default=np.inf)


def restricted_mean(waits: Waits, horizon_s: float) -> Interval:
    """The mean wait up to `horizon_s`, under the Kaplan–Meier estimate, which uses censored seeds for what they tell.

    It is the area under the estimated share of seeds still waiting, from 0 to the horizon (Royston and Parmar, 2013).
    Without censored seeds and horizon it is the plain mean. An infinite horizon needs uncensored seeds.
    """
    n_seeds = len(waits.seconds)
    (mean,) = _areas(waits, horizon_s, np.ones((1, n_seeds)))
    return _interval(float(mean), _areas(waits, horizon_s, _resampled(n_seeds) * n_seeds), n_seeds)


def restricted_difference(first: Waits, second: Waits, horizon_s: float) -> PairedDifference:
    """Difference of two restricted means, whose seeds are resampled in pairs.

    A pair is won by the seed known to be first, at the horizon at the latest; where neither is known to be, it counts
    half.
    """
    n_seeds = len(first.seconds)
    if n_seeds != len(second.seconds):
        raise ValueError(f"{n_seeds} waits cannot be paired with {len(second.seconds)}")
    once, weights = np.ones((1, n_seeds)), _resampled(n_seeds) * n_seeds
    (mean,) = _areas(first, horizon_s, once) - _areas(second, horizon_s, once)
    differences = _areas(first, horizon_s, weights) - _areas(second, horizon_s, weights)
    wins = 0.5 * (1 + _known_first(first, second, horizon_s) - _known_first(second, first, horizon_s))
    return PairedDifference(_interval(float(mean), differences, n_seeds), float(wins.mean()))


def smoothed(rounds: FloatArray, values: FloatArray, window: int) -> FloatArray:
    """At each round the mean of the values of the last `window` rounds, as many as there are, (n_evaluations,)."""
    starts = np.searchsorted(rounds, np.asarray(rounds) - window, side="right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    smooth: FloatArray = (sums[ends] - sums[starts]) / (ends - starts)
    return smooth


def _known_first(one: Waits, other: Waits, horizon_s: float) -> FloatArray:
    """1 where `one` reached its accuracy before `other` did and before the horizon, (n_seeds,)."""
    ends_s = np.minimum(other.seconds, horizon_s)
    return ((one.seconds < ends_s) & one.reached).astype(np.float64)


def _areas(waits: Waits, horizon_s: float, weights: FloatArray) -> FloatArray:
    """Areas under the Kaplan–Meier curves of weighted seeds, (n,) from weights (n, n_seeds); a weight is a count."""
    order = np.lexsort((~waits.reached, waits.seconds))  # of equal times, those that were reached come first
    seconds, reached, counts = waits.seconds[order], waits.reached[order], weights[:, order]
    at_risk = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    hazard = np.where(reached & (at_risk > 0), counts / np.maximum(at_risk, 1e-300), 0.0)
    waiting = np.cumprod(1.0 - hazard, axis=1)
    still = np.concatenate([np.ones((len(weights), 1)), waiting], axis=1)
    # The last span ends at the horizon; a curve at zero has no area there, which also covers an infinite horizon.
    edges = np.concatenate([[0.0], np.minimum(seconds, horizon_s)])
    areas: FloatArray = (still[:, :-1] * np.diff(edges)).sum(axis=1)
    rest_s = max(horizon_s - edges[-1], 0.0) if np.isfinite(horizon_s) else 0.0
    return areas + still[:, -1] * rest_s


def _interval(mean: float, resampled: FloatArray, n_seeds: int) -> Interval:
    """The percentile interval; the mean lies in it, whatever rounding does."""
    if n_seeds < FEWEST_SEEDS:
        return Interval(mean, None, None, n_seeds)
    low, high = np.quantile(resampled, _TAILS)
    return Interval(mean, min(float(low), mean), max(float(high), mean), n_seeds)


@cache
def _resampled(n_seeds: int) -> FloatArray:
    """The share of each seed in each resample, (n_resamples, n_seeds)."""
    counts = np.random.default_rng(n_seeds).multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), _RESAMPLES)
    shares: FloatArray = counts / n_seeds
    shares.flags.writeable = False
    return shares


@dataclass(frozen=True)
class Spread:
    """A number over the seeds."""

    mean: float
    sd: float | None
    """The standard deviation of the sample; None for a single seed."""
    least: float
    greatest: float
    n_seeds: int
    low: float | None = None
    """The lower end of the bootstrap's 95 % interval of the mean; None with too few seeds for an interval."""
    high: float | None = None
    """Its upper end."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """The spread of one value a seed; None where some seed has none."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        sd = stdev(known) if len(known) > 1 else None
        found = mean_interval(known)
        return cls(fmean(known), sd, min(known), max(known), len(known), found.low, found.high)

    def text(self, form: Callable[[float], str]) -> tuple[str, str]:
        """The mean, and its 95 % interval or, with too few seeds, least–greatest; empty where there is no spread."""
        if self.sd is None or self.least == self.greatest:
            return form(self.mean), ""
        if self.low is None or self.high is None:
            return form(self.mean), f"{form(self.least)}–{form(self.greatest)}"
        return form(self.mean), f"[{form(self.low)}, {form(self.high)}]"


def three_digits(value: float) -> str:
    """A number as tables and figures show it: three significant digits, or all before the point."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"
