"""The published runs' latencies: a fast and a slow half of the clients."""

from dataclasses import dataclass

import numpy as np

from pausefl.delays.base import Delay, mean_of_inverse, require_finite, require_not_negative, standard_normal_quantiles
from pausefl_proto.arrays import FloatArray


@dataclass(frozen=True)
class FlooredNormal:
    """max(floor, Normal(location, sd)), as in the published runs."""

    location_s: float
    """The mean before the floor."""
    sd_s: float
    """The standard deviation before the floor."""
    floor_s: float
    """The least delay, τ_min."""

    def __post_init__(self) -> None:
        require_not_negative(sd_s=self.sd_s, floor_s=self.floor_s)
        require_finite(location_s=self.location_s)

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws; all mass below the floor sits on it."""
        del first_round
        return np.maximum(rng.normal(self.location_s, self.sd_s, n), self.floor_s)

    def points(self) -> FloatArray:
        """Quantiles."""
        return np.maximum(self.location_s + self.sd_s * standard_normal_quantiles(), self.floor_s)

    @property
    def mean_s(self) -> float:
        """E[τ] over the law's quantiles."""
        return float(self.points().mean())

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] over the law's quantiles."""
        return mean_of_inverse(self.points())

    @property
    def minimum_s(self) -> float:
        """The floor."""
        return self.floor_s


def published_halves(clients: int, *, floor_s: float = 0.05, sd_s: float = 0.05) -> list[Delay]:
    """The published latencies of so many clients."""
    return [published_delay(k, clients, floor_s=floor_s, sd_s=sd_s) for k in range(clients)]


def published_delay(k: int, clients: int, *, floor_s: float = 0.05, sd_s: float = 0.05) -> FlooredNormal:
    """The published latencies: normal, floored at τ_min, with a fast and a slow half of the clients.

    Client k has mean_k = floor + (0.2 − floor)(k+1)/h for k < h = K/2, else 0.7 + 0.2 (k+1−h)/(K−h).
    """
    half = clients // 2
    fast = k < half
    mean_s = floor_s + (0.2 - floor_s) * (k + 1) / half if fast else 0.7 + 0.2 * (k + 1 - half) / (clients - half)
    return FlooredNormal(mean_s, sd_s, floor_s)
