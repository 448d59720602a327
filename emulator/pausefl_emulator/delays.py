"""Latency laws: what a client's link adds to an exchange. Small frozen records, pure functions of a generator."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pausefl.errors import ConfigError

FloatArray = npt.NDArray[np.float64]

# Expectations of floored laws are midpoint sums over this many quantiles.
_QUANTILES = 20_000


class Delay(Protocol):
    """The law of one client's delay per exchange, in seconds at the emulated scale (before `latency.time_scale`)."""

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        """n independent draws, (n,) float64, all ≥ 0."""

    @property
    def mean_s(self) -> float:
        """E[τ]."""

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] (infinite when τ can be 0), so that μ_k = τ_min · E[1/τ_k] (PAUSE v2, eq. (10))."""


@dataclass(frozen=True)
class NoDelay:
    """A link that adds nothing."""

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Zeros."""
        del rng
        return np.zeros(n)

    @property
    def mean_s(self) -> float:
        """0."""
        return 0.0

    @property
    def mean_inverse(self) -> float:
        """Infinite."""
        return float("inf")


@dataclass(frozen=True)
class FlooredNormal:
    """max(floor, Normal(location, sd)), as in the published runs."""

    location_s: float
    sd_s: float
    floor_s: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.location_s, self.sd_s, self.floor_s]).all() and self.sd_s >= 0 and self.floor_s >= 0):
            raise ConfigError(
                f"latency.delay: a normal delay needs finite numbers, sd_s >= 0 and floor_s >= 0, got {self}"
            )

    def sample(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draws; all mass below the floor sits on it."""
        return np.maximum(rng.normal(self.location_s, self.sd_s, n), self.floor_s)

    @property
    def mean_s(self) -> float:
        """E[τ] over the law's quantiles."""
        return float(self._quantiles().mean())

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] over the law's quantiles."""
        with np.errstate(divide="ignore"):
            return float((1.0 / self._quantiles()).mean())

    def _quantiles(self) -> FloatArray:
        standard = NormalDist()
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        quantiles = np.array([standard.inv_cdf(level) for level in levels])
        return np.maximum(self.location_s + self.sd_s * quantiles, self.floor_s)


def published_halves(
    clients: int, *, floor_s: float = 0.05, sd_s: float = 0.05, fast_s: float = 0.2, slow_s: float = 0.7
) -> list[Delay]:
    """The published latencies: a fast and a slow half, means rising within each, normal, floored at τ_min.

    mean_k = floor + (fast − floor)(k+1)/h for k < h = K/2, else slow + 0.2 (k+1−h)/(K−h).
    """
    half = clients // 2
    return [
        FlooredNormal(
            floor_s + (fast_s - floor_s) * (k + 1) / half
            if k < half
            else slow_s + 0.2 * (k + 1 - half) / (clients - half),
            sd_s,
            floor_s,
        )
        for k in range(clients)
    ]


def known_means(laws: Mapping[str, Delay]) -> tuple[dict[str, float], dict[str, float]]:
    """E[τ_k] and E[1/τ_k] by client id, for the policies that are told the truth."""
    return {c: law.mean_s for c, law in laws.items()}, {c: law.mean_inverse for c, law in laws.items()}
