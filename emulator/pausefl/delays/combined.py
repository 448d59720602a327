"""Laws made of laws: sum, mixture, floor, scale."""

import math
from dataclasses import dataclass

import numpy as np

from pausefl.delays.base import Delay, mean_of_inverse, require_not_negative, require_positive, sampled, shuffled
from pausefl_proto.arrays import FloatArray


@dataclass(frozen=True)
class Sum:
    """The sum of independent draws from several laws."""

    of: tuple[Delay, ...]
    """The laws to add."""

    def __post_init__(self) -> None:
        if not self.of:
            raise ValueError("of = []: must hold at least one law")

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """One draw of each part, in their order, added up."""
        total: FloatArray = np.sum([sampled(law, rng, n, first_round) for law in self.of], axis=0)
        return total

    def points(self) -> FloatArray:
        """The parts' points, paired at random."""
        total: FloatArray = np.sum([shuffled(law.points(), seed) for seed, law in enumerate(self.of)], axis=0)
        return total

    @property
    def mean_s(self) -> float:
        """The sum of the means."""
        return sum(law.mean_s for law in self.of)

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] over the points."""
        return mean_of_inverse(self.points()) if len(self.of) > 1 else self.of[0].mean_inverse

    @property
    def minimum_s(self) -> float:
        """The sum of the minima."""
        return sum(law.minimum_s for law in self.of)


@dataclass(frozen=True)
class Mixture:
    """One of several laws, picked anew for every exchange."""

    of: tuple[Delay, ...]
    """The laws to pick from."""
    weights: tuple[float, ...]
    """The probability of each law. They sum to 1."""

    def __post_init__(self) -> None:
        if not self.of or len(self.weights) != len(self.of):
            raise ValueError(f"weights = {list(self.weights)}: must be as many as the laws in of ({len(self.of)})")
        for weight in self.weights:
            require_not_negative(weights=weight)
        if not math.isclose(sum(self.weights), 1, abs_tol=1e-9):
            raise ValueError(f"weights = {list(self.weights)}: must sum to 1, not {sum(self.weights):g}")

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """A pick and a draw of every part per round, so that no part's draws hang on the picks."""
        return self._pick(rng, [sampled(law, rng, n, first_round) for law in self.of])

    def points(self) -> FloatArray:
        """A fixed pick among the parts' points."""
        points = [shuffled(law.points(), seed) for seed, law in enumerate(self.of)]
        return self._pick(np.random.default_rng(0), points)

    @property
    def mean_s(self) -> float:
        """The weighted mean."""
        return self._weigh([law.mean_s for law in self.of])

    @property
    def mean_inverse(self) -> float:
        """The weighted mean of E[1/τ]."""
        return self._weigh([law.mean_inverse for law in self.of])

    @property
    def minimum_s(self) -> float:
        """The least of the minima."""
        return min(law.minimum_s for law in self.of)

    def _pick(self, rng: np.random.Generator, rows: list[FloatArray]) -> FloatArray:
        n = len(rows[0])
        shares = np.array(self.weights) / sum(self.weights)
        return np.array(rows)[rng.choice(len(rows), n, p=shares), np.arange(n)]

    def _weigh(self, values: list[float]) -> float:
        # A part of weight 0 counts for nothing, though its expectation may be infinite.
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True) if weight)


@dataclass(frozen=True)
class Floor:
    """A law whose draws are never below a floor: max(floor, draw)."""

    of: Delay
    """The law to change."""
    floor_s: float
    """The floor."""

    def __post_init__(self) -> None:
        require_not_negative(floor_s=self.floor_s)

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws, none below the floor."""
        return np.maximum(sampled(self.of, rng, n, first_round), self.floor_s)

    def points(self) -> FloatArray:
        """The points, none below the floor."""
        return np.maximum(self.of.points(), self.floor_s)

    @property
    def mean_s(self) -> float:
        """The law's mean, and what the floor adds to it, over the points."""
        if self.of.minimum_s >= self.floor_s:
            return self.of.mean_s
        # The points' own mean lacks the end of a heavy tail. What lies below the floor has none.
        added_s = float(np.maximum(self.floor_s - self.of.points(), 0.0).mean())
        return max(self.floor_s, self.of.mean_s + added_s)

    @property
    def mean_inverse(self) -> float:
        """The points' E[1/τ]; where the floor never acts, the law's own."""
        return mean_of_inverse(self.points()) if self.of.minimum_s < self.floor_s else self.of.mean_inverse

    @property
    def minimum_s(self) -> float:
        """The floor, or the law's minimum where that is greater."""
        return max(self.floor_s, self.of.minimum_s)


@dataclass(frozen=True)
class Scale:
    """A law times a factor, e.g. 0.001 for values in milliseconds."""

    of: Delay
    """The law to change."""
    factor: float
    """The factor."""

    def __post_init__(self) -> None:
        require_positive(factor=self.factor)

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws times the factor."""
        return self.factor * sampled(self.of, rng, n, first_round)

    def points(self) -> FloatArray:
        """Points times the factor."""
        return self.factor * self.of.points()

    @property
    def mean_s(self) -> float:
        """Factor · mean."""
        return self.factor * self.of.mean_s

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] / factor."""
        return self.of.mean_inverse / self.factor

    @property
    def minimum_s(self) -> float:
        """Factor · minimum."""
        return self.factor * self.of.minimum_s
