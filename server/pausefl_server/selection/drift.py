"""How far a client would pull the model off its path (Fed-TS, Section V-B).

Vectors are (d,) float32 updates h = w − θ: distances between updates are those between local models.
"""

from collections.abc import Sequence

import numpy as np

from pausefl_proto.wire import Vector
from pausefl_server.model.aggregation import squared_distance, weighted_mean


def path_drifts(originals: Sequence[Vector], newcomers: Sequence[Vector], weight: float | None) -> list[float]:
    """‖w_oi − w_o‖² of each newcomer i (Fed-TS, eqs. (7) and (8)); `weight` is ε, None for |S_o|.

    w_o is the mean of the n > 0 originals and w_oi = (n w_o + ε w_i)/(n + ε), so w_oi − w_o = ε (w_i − w_o)/(n + ε).
    """
    share = _share(len(originals), weight)
    centre = _mean(originals)
    return [share**2 * squared_distance(newcomer, centre) for newcomer in newcomers]


def leave_one_out_drifts(originals: Sequence[Vector], weight: float | None) -> list[float]:
    """The drift of each original if it were the newcomer and the n − 1 > 0 others the originals.

    With w_o the mean of all n, w_j lies n/(n − 1) times as far from the others' mean as from w_o.
    """
    n = len(originals)
    share = _share(n - 1, weight) * n / (n - 1)
    centre = _mean(originals)
    return [share**2 * squared_distance(original, centre) for original in originals]


def two_means(values: Sequence[float], centroids: tuple[float, float]) -> tuple[float, float]:
    """The centroids, low and high, of the two-means clustering of n values started from these (Fed-TS, eq. (9)).

    A cluster that nothing is near keeps its centroid. Lloyd's boundary between two clusters on a line only ever moves
    one way, so n steps suffice.
    """
    points, (low, high) = np.asarray(values), sorted(centroids)
    for _ in values:
        is_high = np.abs(points - high) < np.abs(points - low)
        low = float(points[~is_high].mean()) if not is_high.all() else low
        high = float(points[is_high].mean()) if is_high.any() else high
    return min(low, high), max(low, high)


def _share(n: int, weight: float | None) -> float:
    """ε/(n + ε)."""
    return 0.5 if weight is None else weight / (n + weight)


def _mean(vectors: Sequence[Vector]) -> Vector:
    return weighted_mean(vectors, np.ones(len(vectors)))
