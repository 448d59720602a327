"""The sweep of reward R1 in plain Python, as fast for most tables as compiled by numba, with the same results."""

import heapq
import math
from collections.abc import Sequence

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray

FEW = 4096
"""Rows of which all are sorted: to look for contenders would take as long."""


def contenders(ucb: FloatArray, value: FloatArray, m: int) -> IntArray:
    """Positions, ascending, of all rows but such as m others surpass in both ucb and value: no fill takes these.

    Rows with the greatest ucb stay, and of the rest what the m-th best value among them does not surpass: of K rows in
    no order about 2√(mK), found in O(K). Sorting them all took most of the search's time.
    """
    k = len(ucb)
    if k <= FEW or 64 * m >= k:
        return np.arange(k)
    n_first = int(math.sqrt(m * k))
    bound = np.partition(ucb, k - n_first)[k - n_first]
    first = np.flatnonzero(ucb >= bound)
    least = np.partition(value[first], len(first) - m)[len(first) - m]
    ties = m - np.count_nonzero(value[first] > least)
    last = first[value[first] == least][ties - 1]  # of equal values the first one wins
    kept = (ucb > bound) | (value > least)
    kept[: last + 1] |= value[: last + 1] == least
    return np.flatnonzero(kept)


def best_threshold(ucb: Sequence[float] | FloatArray, value: Sequence[float] | FloatArray, m: int) -> float:
    """The least ucb of an optimal set: the sweep of PAUSE v2, Algorithm 2, over rows sorted by descending ucb.

    Energies are compared only where a run of equal ucb ends: there the set may hold any row of the run.
    """
    heap, total = [-math.inf for _ in range(m)], 0.0  # the m greatest values so far, and their sum
    best = threshold = -math.inf
    for i in range(len(ucb)):
        if value[i] > heap[0]:
            fallen = heapq.heapreplace(heap, value[i])
            total += value[i] - fallen if i >= m else value[i]
        if i >= m - 1 and ucb[i] + total > best and (i + 1 == len(ucb) or ucb[i + 1] < ucb[i]):
            best, threshold = ucb[i] + total, ucb[i]
    return threshold
