"""The published runs' latencies: a fast and a slow half of the clients."""

from pausefl.delays.base import require_not_negative
from pausefl.delays.combined import Floor
from pausefl.delays.laws import Normal


def published_halves(clients: int) -> list[Floor]:
    """The published latencies of so many clients."""
    return [published_delay(k, clients) for k in range(clients)]


def published_delay(k: int, clients: int, *, floor_s: float = 0.05, sd_s: float = 0.05) -> Floor:
    """The latency of client k (from 0) as in the published runs: max(floor, Normal(mean_k, sd)).

    mean_k = floor + (0.2 − floor)(k+1)/h for k < h = ⌊K/2⌋, the fast half, else 0.7 + 0.2 (k+1−h)/(K−h). ValueError for
    a floor or a standard deviation below 0.
    """
    require_not_negative(sd_s=sd_s, floor_s=floor_s)
    half = clients // 2
    fast = k < half
    mean_s = floor_s + (0.2 - floor_s) * (k + 1) / half if fast else 0.7 + 0.2 * (k + 1 - half) / (clients - half)
    return Floor(Normal(mean_s, sd_s), floor_s)
