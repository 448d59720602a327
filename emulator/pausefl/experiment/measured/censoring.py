"""Estimates of a law from values and lower bounds: Kaplan and Meier (JASA, 1958)."""

import numpy as np

from pausefl_proto.arrays import FloatArray


def kaplan_meier(values: FloatArray, bounds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The points of the estimated law, ascending, and their shares. `bounds` are lower bounds of values not measured.

    Each bound passes its share on to all later points, in equal parts (redistribution to the right). A bound that
    exceeds every value keeps its share.
    """
    points, is_value = np.concatenate([values, bounds]), np.arange(len(values) + len(bounds)) < len(values)
    order = np.lexsort((~is_value, points))  # values come before equal bounds
    points, is_value = points[order], is_value[order]
    later = np.arange(len(points))[::-1]
    hands_on = ~is_value & (np.cumsum(is_value[::-1])[::-1] > 0)
    growth = np.where(hands_on, 1 + 1 / np.maximum(later, 1), 1.0)
    shares = np.cumprod(np.concatenate([[1 / len(points)], growth[:-1]]))
    return points[~hands_on], shares[~hands_on]


def equal_values(values: FloatArray, bounds: FloatArray) -> FloatArray:
    """Equally likely values of the estimated law, ascending: as many as `values` and `bounds` together."""
    points, shares = kaplan_meier(values, bounds)
    count = len(values) + len(bounds)
    places = np.searchsorted(shares.cumsum(), (np.arange(count) + 0.5) / count)
    return np.asarray(points[places.clip(max=len(points) - 1)])
