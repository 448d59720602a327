"""Statistics over several seeds: means and paired differences, with bootstrap intervals.

May live here: pure numpy on numbers per seed. The intervals are bootstrap percentile intervals over seeds (Efron and
Tibshirani, 1993, chapter 13). Resamples come from a fixed seed, so the same numbers give the same interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import stdev

import numpy as np

from pausefl_proto.arrays import FloatArray, read_only

FEWEST_SEEDS = 5
"""With fewer seeds no interval is computed: the bootstrap would give little more than the least and greatest value."""
CONFIDENCE = 0.95
_RESAMPLES = 5_000
_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Interval:
    """A mean over the seeds, with the interval that holds 95 % of the bootstrap's means."""

    mean: float
    low: float | None
    """The lower end. None with fewer than `FEWEST_SEEDS` seeds, and for a ratio to a mean that may be 0."""
    high: float | None
    n_seeds: int


@dataclass(frozen=True)
class PairedDifference:
    """The difference between two policies, first minus second, paired by seed."""

    difference: Interval
    win_rate: float
    """The share of seeds in which the first value is smaller; a tie counts half."""


def mean_interval(values: Sequence[float] | FloatArray) -> Interval:
    """The mean over the seeds, with its bootstrap interval. `values` has one value per seed."""
    array = np.asarray(values, np.float64)
    return percentile_interval(float(array.mean()), resampled_shares(len(array)) @ array, len(array))


def quartiles(values: Sequence[float] | FloatArray) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile over the seeds. `values` has one value per seed."""
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return lower, median, upper


def mean_band(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The mean over the seeds, and the ends of its interval; with too few seeds, the least and the greatest value.

    `values` has a number or a curve per seed.
    """
    mean = values.mean(axis=0)
    if len(values) < FEWEST_SEEDS:
        return mean, values.min(axis=0), values.max(axis=0)
    low, high = np.quantile(resampled_shares(len(values)) @ values, _TAILS, axis=0)
    return mean, np.minimum(low, mean), np.maximum(high, mean)


def paired_difference(first: Sequence[float] | FloatArray, second: Sequence[float] | FloatArray) -> PairedDifference:
    """`first` − `second`, paired by seed: the same index holds the same seed, so the same split and latency draws."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.shape != other.shape:
        raise ValueError(f"{one.size} values cannot be paired with {other.size}")
    return PairedDifference(mean_interval(one - other), float(np.mean((one < other) + 0.5 * (one == other))))


def shares_saved(own_s: Sequence[float | None], other_s: Sequence[float | None]) -> list[float | None]:
    """1 − own/other by seed; None where a time is not known, or the other is 0, of which nothing is a share."""
    return [1 - own / other if own is not None and other else None for own, other in zip(own_s, other_s, strict=True)]


def percentile_interval(mean: float, resampled: FloatArray, n_seeds: int) -> Interval:
    """The percentile interval of the resampled means. It is widened if rounding would leave `mean` outside it."""
    if n_seeds < FEWEST_SEEDS:
        return Interval(mean, None, None, n_seeds)
    low, high = np.quantile(resampled, _TAILS)
    return Interval(mean, min(float(low), mean), max(float(high), mean), n_seeds)


@cache
def resampled_shares(n_seeds: int) -> FloatArray:
    """The weight of each seed in each bootstrap resample, (n_resamples, n_seeds); each row sums to 1. Read-only."""
    counts = np.random.default_rng(n_seeds).multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), _RESAMPLES)
    return read_only(counts / n_seeds)


@dataclass(frozen=True)
class Spread(Interval):
    """How a number is spread over the seeds, with its mean's interval."""

    sd: float | None
    """The standard deviation of the sample; None for a single seed."""
    least: float
    greatest: float
    quartiles: tuple[float, float, float]
    """The lower quartile, the median and the upper quartile."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """The spread of `values`, one per seed. None if a seed has no value."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        found, sd = mean_interval(known), stdev(known) if len(known) > 1 else None
        return cls(**vars(found), sd=sd, least=min(known), greatest=max(known), quartiles=quartiles(known))

    def text(self, form: Callable[[float], str], *, is_skewed: bool) -> tuple[str, str]:
        """Two texts: the mean and its spread, with numbers formatted by `form`.

        The spread: the 95 % interval; if `is_skewed`, median (quartiles); with too few seeds, least–greatest; or empty.
        """
        if self.sd is None or self.least == self.greatest:
            return form(self.mean), ""
        if self.low is None or self.high is None:
            return form(self.mean), f"{form(self.least)}–{form(self.greatest)}"
        if is_skewed:
            lower, median, upper = map(form, self.quartiles)
            return form(self.mean), f"{median} ({lower}–{upper})"
        return form(self.mean), f"[{form(self.low)}, {form(self.high)}]"


def saving_in_words(policy: str, baseline: str, saved: Spread, until: str = "") -> str:
    """A sentence on the share of the baseline's waiting time that a policy saved, with its interval."""
    sign = 1 if saved.mean >= 0 else -1
    bounds = (saved.least, saved.greatest) if saved.low is None or saved.high is None else (saved.low, saved.high)
    least, greatest = sorted(100 * sign * bound for bound in bounds)
    within = f"{'' if saved.low is None else '95 % interval '}{least:z.1f} to {greatest:.1f} %, {saved.n_seeds} seeds"
    if saved.low is None:
        within += ", too few for an interval"
    if saved.n_seeds == 1:
        within = "one seed, so no interval"
    unclear = ": no difference is shown" if least <= 0 else ""  # the mean has the sign that makes it positive
    than = f"{'less' if sign > 0 else 'more'} than {baseline} ({within}){until}{unclear}"
    return f"{policy} waits {100 * abs(saved.mean):.1f} % {than}"


def three_digits(value: float) -> str:
    """A number as tables and figures show it: three significant digits, or more if more stand before the point."""
    size = abs(float(f"{value:.3g}"))  # as 9.999 is shown as 10.0
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:.3g}" if 0 < size < 0.1 else f"{value:,.{decimals}f}"
