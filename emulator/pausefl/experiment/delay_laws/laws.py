"""The elementary latency laws: independent draws. Fields are the keys of TOML tables. Bad values raise ValueError."""

import math
from dataclasses import dataclass, field

import numpy as np

from pausefl.experiment.delay_laws.base import POINTS, levels, logarithm_of, standard_normal_quantiles
from pausefl_proto.arrays import FloatArray
from pausefl_proto.number_types import Bounded, Finite, NonNegative, Positive


class _AboveZero(Bounded):
    @property
    def minimum_s(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Constant(Bounded):
    """A delay that is always the same. A negative value is allowed only inside a law with a floor."""

    value_s: Finite
    """The delay."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return np.full(n, self.value_s)

    def points(self) -> FloatArray:
        return np.full(POINTS, self.value_s)

    @property
    def mean_s(self) -> float:
        return self.value_s

    @property
    def mean_inverse(self) -> float:
        return 1.0 / self.value_s if self.value_s else math.inf

    @property
    def minimum_s(self) -> float:
        return self.value_s


@dataclass(frozen=True)
class NoDelay(Constant):
    """No delay."""

    value_s: float = field(default=0.0, init=False)


@dataclass(frozen=True)
class Normal(Bounded):
    """A normal distribution. It can be negative, so it needs a floor."""

    mean_s: Finite
    """The mean."""
    sd_s: NonNegative
    """The standard deviation."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return rng.normal(self.mean_s, self.sd_s, n)

    def points(self) -> FloatArray:
        return self.mean_s + self.sd_s * standard_normal_quantiles()

    @property
    def mean_inverse(self) -> float:
        """1/mean if sd_s is 0. Otherwise infinite: the density at 0 is positive."""
        return 1.0 / self.mean_s if self.sd_s == 0 and self.mean_s else math.inf

    @property
    def minimum_s(self) -> float:
        """−inf, or the mean if sd_s is 0."""
        return -math.inf if self.sd_s else self.mean_s


@dataclass(frozen=True)
class LogNormal(_AboveZero):
    """A log-normal distribution, given by its own mean and standard deviation, not those of its logarithm."""

    mean_s: Positive
    """The mean."""
    sd_s: NonNegative
    """The standard deviation."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        logarithm = logarithm_of(self.mean_s, self.sd_s)
        return rng.lognormal(logarithm.mean, logarithm.stdev, n)

    def points(self) -> FloatArray:
        logarithm = logarithm_of(self.mean_s, self.sd_s)
        return np.exp(logarithm.mean + logarithm.stdev * standard_normal_quantiles())

    @property
    def mean_inverse(self) -> float:
        """exp(−μ + σ²/2) for the logarithm's mean μ and variance σ²."""
        return (1 + (self.sd_s / self.mean_s) ** 2) / self.mean_s


@dataclass(frozen=True)
class Exponential(_AboveZero):
    """An exponential distribution."""

    mean_s: Positive
    """The mean."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return rng.exponential(self.mean_s, n)

    def points(self) -> FloatArray:
        return -self.mean_s * np.log1p(-levels())

    @property
    def mean_inverse(self) -> float:
        """Infinite: the density at 0 is positive."""
        return math.inf


@dataclass(frozen=True)
class Gamma(_AboveZero):
    """A gamma distribution. Shape 1 is the exponential; a great shape is nearly constant."""

    mean_s: Positive
    """The mean."""
    shape: Positive
    """The shape k."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return rng.gamma(self.shape, self.mean_s / self.shape, n)

    def points(self) -> FloatArray:
        """A fixed sample: the quantiles have no closed form."""
        return self.sample(np.random.default_rng(0), POINTS)

    @property
    def mean_inverse(self) -> float:
        """k / (mean (k − 1)), infinite for k ≤ 1."""
        return self.shape / (self.mean_s * (self.shape - 1)) if self.shape > 1 else math.inf


@dataclass(frozen=True)
class Weibull(_AboveZero):
    """A Weibull distribution. A shape below 1 has a heavy tail."""

    scale_s: Positive
    """The scale λ."""
    shape: Positive
    """The shape k."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return self.scale_s * rng.weibull(self.shape, n)

    def points(self) -> FloatArray:
        return self.scale_s * (-np.log1p(-levels())) ** (1 / self.shape)

    @property
    def mean_s(self) -> float:
        """λ Γ(1 + 1/k). Infinite if it is too large for a float."""
        try:
            return self.scale_s * math.gamma(1 + 1 / self.shape)
        except OverflowError:
            return math.inf

    @property
    def mean_inverse(self) -> float:
        """Γ(1 − 1/k) / λ, infinite for k ≤ 1."""
        return math.gamma(1 - 1 / self.shape) / self.scale_s if self.shape > 1 else math.inf


@dataclass(frozen=True)
class Pareto(Bounded):
    """A Pareto distribution: P(τ > x) = (minimum / x)^shape."""

    minimum_s: Positive
    """The least delay."""
    shape: Positive
    """The exponent of the tail. The mean is infinite for a shape of at most 1."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return self.minimum_s * (1 + rng.pareto(self.shape, n))

    def points(self) -> FloatArray:
        return self.minimum_s * (1 - levels()) ** (-1 / self.shape)

    @property
    def mean_s(self) -> float:
        """shape · minimum / (shape − 1), infinite for a shape ≤ 1."""
        return self.shape * self.minimum_s / (self.shape - 1) if self.shape > 1 else math.inf

    @property
    def mean_inverse(self) -> float:
        """shape / ((shape + 1) minimum)."""
        return self.shape / ((self.shape + 1) * self.minimum_s)


@dataclass(frozen=True)
class Values(Bounded):
    """Measured values, each equally likely, drawn with replacement."""

    values_s: tuple[NonNegative, ...]
    """The values."""

    def __post_init__(self) -> None:
        if not self.values_s:
            raise ValueError("values_s = []: must hold at least one value")
        super().__post_init__()

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return np.array([self.values_s[i] for i in rng.integers(len(self.values_s), size=n)])

    def points(self) -> FloatArray:
        ranked = np.sort(self.values_s)
        return ranked[(levels() * len(ranked)).astype(np.int64)]

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.values_s))

    @property
    def mean_inverse(self) -> float:
        return math.inf if 0 in self.values_s else float(np.mean(1 / np.array(self.values_s)))

    @property
    def minimum_s(self) -> float:
        return min(self.values_s)


@dataclass(frozen=True)
class Recorded(Values):
    """Measured values in the order of their measurement, one for each round. After the last value comes the first."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """The values of rounds `first_round` to `first_round` + n − 1."""
        return np.array(self.values_s)[np.arange(first_round - 1, first_round - 1 + n) % len(self.values_s)]
