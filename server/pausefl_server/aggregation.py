"""How a round's updates become the next model: pure functions of vectors in selection order."""

from collections.abc import Sequence

import numpy as np

from pausefl.wire import Vector
from pausefl_server.clients import FloatArray


def federated_average(theta: Vector, updates: Sequence[Vector], weights: FloatArray) -> Vector:
    """θ + Σ α_k h_k with α_k = weights_k / Σ weights (PAUSE v2, eq. (2)).

    theta and updates are (d,) float32, given in selection order, so the result does not depend on who answered first.
    Without updates θ is returned as it is.
    """
    if not updates:
        return theta
    alphas = (weights / weights.sum()).astype(np.float32)
    mean: Vector = updates[0] * alphas[0]
    term = np.empty_like(mean)
    for update, alpha in zip(updates[1:], alphas[1:], strict=True):
        np.multiply(update, alpha, out=term)
        mean += term
    mean += theta
    return mean
