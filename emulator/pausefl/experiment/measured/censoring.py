"""Estimates of a law from values and lower bounds: Kaplan and Meier (JASA, 1958)."""

import numpy as np

from pausefl_proto.arrays import FloatArray


def kaplan_meier(values: FloatArray, bounds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points, ascending, and their shares of a law with these values, and with more that exceed these bounds.

    Each bound hands its share on, equally, to all that is later (redistribution to the right); a bound that exceeds
    every value keeps its own.
    """
    points, is_value = np.concatenate([values, bounds]), np.arange(len(values) + len(bounds)) < len(values)
    order = np.lexsort((~is_value, points))  # of equal ones, values come first
    points, is_value = points[order], is_value[order]
    later = np.arange(len(points))[::-1]
    hands_on = ~is_value & (np.cumsum(is_value[::-1])[::-1] > 0)
    growth = np.where(hands_on, 1 + 1 / np.maximum(later, 1), 1.0)
    shares = np.cumprod(np.concatenate([[1 / len(points)], growth[:-1]]))
    return points[~hands_on], shares[~hands_on]


def equal_values(values: FloatArray, bounds: FloatArray) -> FloatArray:
    """As many equally likely values, ascending, as there are values and lower bounds together."""
    points, shares = kaplan_meier(values, bounds)
    count = len(values) + len(bounds)
    places = np.searchsorted(shares.cumsum(), (np.arange(count) + 0.5) / count)
    return np.asarray(points[places.clip(max=len(points) - 1)])
