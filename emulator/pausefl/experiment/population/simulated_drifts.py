"""Laws from which a simulation, which trains no model, draws clients' path drifts (Fed-TS, eq. (7)).

Their scale is arbitrary: only a threshold decides which drifts are small and which are great.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pausefl.experiment.delay_laws.base import logarithm_of
from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray
from pausefl_proto.number_types import Bounded, Positive, Share


class DriftLaw(Protocol):
    """The law of one client's drift in a round for which it is chosen. It is the same in all rounds."""

    @property
    def mean(self) -> float: ...
    def sample(self, rng: np.random.Generator, n: int) -> FloatArray: ...
    def share_up_to(self, threshold: float) -> float: ...


@dataclass(frozen=True)
class BernoulliDrift(Bounded):
    """0 with probability `small`, else 1: the reward of Fed-TS, eq. (6), as in its Theorem 1."""

    small: Share
    """The probability of a drift of 0."""

    @property
    def mean(self) -> float:
        return 1 - self.small

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        return (rng.random(n) >= self.small).astype(np.float64)

    def share_up_to(self, threshold: float) -> float:
        """P(drift <= threshold): `small` for any threshold between the two values."""
        return self.small if 0 <= threshold < 1 else float(threshold >= 1)


@dataclass(frozen=True)
class LogNormalDrift(Bounded):
    """A log-normal drift, close to what runs measure, even where drifts vary widely."""

    mean: Positive
    """The mean."""
    sd: Positive
    """The standard deviation."""

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        logarithm = logarithm_of(self.mean, self.sd)
        return rng.lognormal(logarithm.mean, logarithm.stdev, n)

    def share_up_to(self, threshold: float) -> float:
        return logarithm_of(self.mean, self.sd).cdf(math.log(threshold)) if threshold > 0 else 0.0


DRIFTS = Registry(
    "drifts",
    {"bernoulli": BernoulliDrift, "lognormal": LogNormalDrift},
    base="pausefl.experiment.population.simulated_drifts:DriftLaw",
)
