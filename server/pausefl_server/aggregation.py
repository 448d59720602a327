"""How a round's updates become the next model: pure functions of vectors in selection order."""

from collections.abc import Sequence

import numpy as np

from pausefl.wire import Vector
from pausefl_server.clients import FloatArray

# Values worked on at once: the temporaries of a block fit a processor's cache.
_BLOCK = 1 << 16


def federated_average(theta: Vector, updates: Sequence[Vector], weights: FloatArray) -> Vector:
    """θ + Σ α_k h_k with α_k = weights_k / Σ weights (PAUSE v2, eq. (2)).

    theta and updates are (d,) float32, given in selection order, so the result does not depend on who answered first.
    Without updates θ is returned as it is.
    """
    if not updates:
        return theta
    mean = weighted_mean(updates, weights)
    mean += theta
    return mean


def weighted_mean(updates: Sequence[Vector], weights: FloatArray) -> Vector:
    """Σ α_k h_k with α_k = weights_k / Σ weights, a new (d,) float32 vector; at least one update."""
    alphas = (weights / weights.sum()).astype(np.float32)
    mean: Vector = updates[0] * alphas[0]
    term = np.empty_like(mean)
    for update, alpha in zip(updates[1:], alphas[1:], strict=True):
        np.multiply(update, alpha, out=term)
        mean += term
    return mean


def squared_distance(a: Vector, b: Vector) -> float:
    """‖a − b‖² in float64, of two (d,) float32 vectors."""
    total = 0.0
    for start in range(0, a.size, _BLOCK):
        difference = np.subtract(a[start : start + _BLOCK], b[start : start + _BLOCK], dtype=np.float64)
        total += float(difference @ difference)
    return total
