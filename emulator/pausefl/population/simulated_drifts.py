"""Laws from which a simulation, which trains no model, draws clients' path drifts (Fed-TS, eq. (7)).

Their scale is arbitrary: a threshold tells small drifts from great ones, whatever both are.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np

from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray


class DriftLaw(Protocol):
    """The law of one client's drift in a round it is chosen for, the same in all of them."""

    @property
    def mean(self) -> float:
        """E[drift]."""

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        """(n,) independent draws."""

    def share_up_to(self, threshold: float) -> float:
        """P(drift <= threshold)."""


@dataclass(frozen=True)
class BernoulliDrift:
    """0 with probability `small`, else 1: the reward of Fed-TS, eq. (6), as in its Theorem 1."""

    small: float
    """The probability of a drift of 0."""

    def __post_init__(self) -> None:
        if not 0 <= self.small <= 1:
            raise ValueError(f"small = {self.small}: must be from 0 to 1")

    @property
    def mean(self) -> float:
        """1 − small."""
        return 1 - self.small

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Zeros and ones."""
        return (rng.random(n) >= self.small).astype(np.float64)

    def share_up_to(self, threshold: float) -> float:
        """`small` for any threshold between the two values."""
        return self.small if 0 <= threshold < 1 else float(threshold >= 1)


@dataclass(frozen=True)
class LogNormalDrift:
    """A log-normal drift, close to what runs measure, even where drifts vary widely."""

    mean: float
    """The mean."""
    sd: float
    """The standard deviation."""

    def __post_init__(self) -> None:
        for name in ("mean", "sd"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} = {getattr(self, name)}: must be a finite number above 0")

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Numbers above 0."""
        logarithm = self._logarithm
        return rng.lognormal(logarithm.mean, logarithm.stdev, n)

    def share_up_to(self, threshold: float) -> float:
        """The log-normal's distribution function."""
        return self._logarithm.cdf(math.log(threshold)) if threshold > 0 else 0.0

    @property
    def _logarithm(self) -> NormalDist:
        variance = math.log1p((self.sd / self.mean) ** 2)
        return NormalDist(math.log(self.mean) - variance / 2, math.sqrt(variance))


DRIFTS = Registry("drifts", {"bernoulli": BernoulliDrift, "lognormal": LogNormalDrift})
