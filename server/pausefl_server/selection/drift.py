"""Path drifts: how far a client would pull the model off its path (Fed-TS, Section V-B).

Vectors are updates h = w − θ, (d,) float32. The distance of two updates equals the distance of their local models w.
"""

from collections.abc import Sequence

import numpy as np

from pausefl_proto.wire import Vector
from pausefl_server.model.aggregation import squared_distance, weighted_mean


def path_drifts(originals: Sequence[Vector], newcomers: Sequence[Vector], weight: float | None) -> list[float]:
    """The drift ‖w_oi − w_o‖² of each newcomer i (Fed-TS, eqs. (7) and (8)). `weight` is ε; None stands for n = |S_o|.

    w_o is the mean of the n > 0 originals and w_oi = (n w_o + ε w_i)/(n + ε), so w_oi − w_o = ε (w_i − w_o)/(n + ε).
    """
    share = _share(len(originals), weight)
    centre = weighted_mean(originals, np.ones(len(originals)))
    return [share**2 * squared_distance(newcomer, centre) for newcomer in newcomers]


def leave_one_out_drifts(originals: Sequence[Vector], weight: float | None) -> list[float]:
    """The drift that each original would have as the only newcomer beside the n − 1 > 0 other originals.

    With w_o the mean of all n, w_j lies n/(n − 1) times as far from the others' mean as from w_o.
    """
    n = len(originals)
    share = _share(n - 1, weight) * n / (n - 1)
    centre = weighted_mean(originals, np.ones(len(originals)))
    return [share**2 * squared_distance(original, centre) for original in originals]


def two_means(values: Sequence[float], centroids: tuple[float, float]) -> tuple[float, float]:
    """The low and the high centroid after two-means clustering of n values from these centroids (Fed-TS, eq. (9)).

    An empty cluster keeps its centroid. On a line, the boundary between two clusters only moves in one direction under
    Lloyd's algorithm, so n steps suffice.
    """
    points, (low, high) = np.asarray(values), sorted(centroids)
    for _ in values:
        before = low, high
        is_high = np.abs(points - high) < np.abs(points - low)
        low = float(points[~is_high].mean()) if not is_high.all() else low
        high = float(points[is_high].mean()) if is_high.any() else high
        if (low, high) == before:  # all further steps change nothing either
            break
    return min(low, high), max(low, high)


def _share(n: int, weight: float | None) -> float:
    """ε/(n + ε), the share of a newcomer in the mean with n originals."""
    return 0.5 if weight is None else weight / (n + weight)
