"""Laws that combine other laws: sum, mixture, floor and scale. Also the latencies of the published runs."""

import math
from dataclasses import dataclass

import numpy as np

from pausefl.experiment.delay_laws.base import Delay, mean_of_inverse, sampled, shuffled
from pausefl.experiment.delay_laws.laws import Normal
from pausefl_proto.arrays import FloatArray
from pausefl_proto.number_types import Bounded, NonNegative, Positive


@dataclass(frozen=True)
class Sum:
    """The sum of independent draws from several laws."""

    of: tuple[Delay, ...]
    """The laws to add."""

    def __post_init__(self) -> None:
        if not self.of:
            raise ValueError("of = []: must hold at least one law")

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        total: FloatArray = np.sum([sampled(law, rng, n, first_round) for law in self.of], axis=0)
        return total

    def points(self) -> FloatArray:
        """The sums of the parts' points, which are paired in a fixed random order."""
        total: FloatArray = np.sum([shuffled(law.points(), seed) for seed, law in enumerate(self.of)], axis=0)
        return total

    @property
    def mean_s(self) -> float:
        return sum(law.mean_s for law in self.of)

    @property
    def mean_inverse(self) -> float:
        return mean_of_inverse(self.points()) if len(self.of) > 1 else self.of[0].mean_inverse

    @property
    def minimum_s(self) -> float:
        return sum(law.minimum_s for law in self.of)


@dataclass(frozen=True)
class Mixture(Bounded):
    """One of several laws, picked anew for every exchange."""

    of: tuple[Delay, ...]
    """The laws to pick from."""
    weights: tuple[NonNegative, ...]
    """The probability of each law. They sum to 1."""

    def __post_init__(self) -> None:
        if not self.of or len(self.weights) != len(self.of):
            raise ValueError(f"weights = {list(self.weights)}: must be as many as the laws in of ({len(self.of)})")
        super().__post_init__()
        if not math.isclose(sum(self.weights), 1, abs_tol=1e-9):
            raise ValueError(f"weights = {list(self.weights)}: must sum to 1, not {sum(self.weights):g}")

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws every part for each round and then picks one, so that no part's draws depend on the picks."""
        return self._pick(rng, [sampled(law, rng, n, first_round) for law in self.of])

    def points(self) -> FloatArray:
        """Points picked among the parts' points, always the same."""
        points = [shuffled(law.points(), seed) for seed, law in enumerate(self.of)]
        return self._pick(np.random.default_rng(0), points)

    @property
    def mean_s(self) -> float:
        return self._weigh([law.mean_s for law in self.of])

    @property
    def mean_inverse(self) -> float:
        return self._weigh([law.mean_inverse for law in self.of])

    @property
    def minimum_s(self) -> float:
        return min(law.minimum_s for law in self.of)

    def _pick(self, rng: np.random.Generator, rows: list[FloatArray]) -> FloatArray:
        n = len(rows[0])
        shares = np.array(self.weights) / sum(self.weights)
        return np.array(rows)[rng.choice(len(rows), n, p=shares), np.arange(n)]

    def _weigh(self, values: list[float]) -> float:
        # A part of weight 0 counts for nothing, though its expectation may be infinite.
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True) if weight)


@dataclass(frozen=True)
class Floor(Bounded):
    """A law whose draws are never below a floor: max(floor, draw)."""

    of: Delay
    """The law to change."""
    floor_s: NonNegative
    """The floor."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return np.maximum(sampled(self.of, rng, n, first_round), self.floor_s)

    def points(self) -> FloatArray:
        return np.maximum(self.of.points(), self.floor_s)

    @property
    def mean_s(self) -> float:
        """The law's mean, plus the increase by the floor, which is a mean over the points."""
        if self.of.minimum_s >= self.floor_s:
            return self.of.mean_s
        # The mean of the points misses the end of a heavy tail. The part below the floor has no such tail.
        added_s = float(np.maximum(self.floor_s - self.of.points(), 0.0).mean())
        return max(self.floor_s, self.of.mean_s + added_s)

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] over the points, or the law's own if the floor never acts."""
        return mean_of_inverse(self.points()) if self.of.minimum_s < self.floor_s else self.of.mean_inverse

    @property
    def minimum_s(self) -> float:
        """The floor, or the law's minimum if that is greater."""
        return max(self.floor_s, self.of.minimum_s)


@dataclass(frozen=True)
class Scale(Bounded):
    """A law times a factor, e.g. 0.001 for values in milliseconds."""

    of: Delay
    """The law to change."""
    factor: Positive
    """The factor."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        return self.factor * sampled(self.of, rng, n, first_round)

    def points(self) -> FloatArray:
        return self.factor * self.of.points()

    @property
    def mean_s(self) -> float:
        return self.factor * self.of.mean_s

    @property
    def mean_inverse(self) -> float:
        return self.of.mean_inverse / self.factor

    @property
    def minimum_s(self) -> float:
        return self.factor * self.of.minimum_s


def published_delay(k: int, clients: int, *, floor_s: float = 0.05, sd_s: float = 0.05) -> Floor:
    """The latency of client k (from 0) as in the published runs: max(floor, Normal(mean_k, sd)).

    mean_k = floor + (0.2 − floor)(k+1)/h for k < h = ⌊K/2⌋, the fast half, else 0.7 + 0.2 (k+1−h)/(K−h). Raises
    ValueError for a floor or a standard deviation below 0.
    """
    half = clients // 2
    mean_s = floor_s + (0.2 - floor_s) * (k + 1) / half if k < half else 0.7 + 0.2 * (k + 1 - half) / (clients - half)
    return Floor(Normal(mean_s, sd_s), floor_s)
