"""The sweep for reward R1 in plain Python. For most tables it is as fast as compiled by numba; results are equal."""

import heapq
import math
from collections.abc import Sequence

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray

FEW = 4096
"""Up to this many rows, all are sorted: the search for contenders would take as long."""


def contenders(ucb: FloatArray, value: FloatArray, m: int) -> IntArray:
    """The ascending positions of the rows that an optimal set may need. m others surpass each other row in both terms.

    The √(mK) rows of greatest ucb stay, and the rows of greater value than the m-th greatest among these. In random
    order, about 2√(mK) of K rows stay. This takes O(K); sorting all rows took most of the search's time.
    """
    k = len(ucb)
    if k <= FEW or 64 * m >= k:
        return np.arange(k)
    n_first = int(math.sqrt(m * k))
    bound = np.partition(ucb, k - n_first)[k - n_first]
    first = np.flatnonzero(ucb >= bound)
    least = np.partition(value[first], len(first) - m)[len(first) - m]
    ties = m - np.count_nonzero(value[first] > least)
    last = first[value[first] == least][ties - 1]  # of equal values, the first ones win
    kept = (ucb > bound) | (value > least)
    kept[: last + 1] |= value[: last + 1] == least
    return np.flatnonzero(kept)


def best_threshold(ucb: Sequence[float] | FloatArray, value: Sequence[float] | FloatArray, m: int) -> float:
    """The least ucb of an optimal set, by the sweep of PAUSE v2, Algorithm 2, over rows sorted by descending ucb.

    Energies are compared only at the end of a run of equal ucb, where the set may hold any row of the run.
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
