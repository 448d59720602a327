"""The inner loops of `search`, compiled by numba at first use and cached on disk.

Their arguments are arrays that `search` has checked, sorted and reduced. The only other caller is
`pausefl.studies.simulation.kernel`, which explains the effect of a change of `sweep` there.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.search import sweep

F = TypeVar("F", bound=Callable[..., object])

NO_SLOT = -1


def compiled(function: F) -> F:
    """`numba.njit`, with a cache beside the source or in the user's cache directory, if one of them is writable."""
    # For an account without a home, numba would create a folder called `~` in the working directory.
    has_home = os.path.expanduser("~") != "~"  # noqa: PTH111  # as numba does; pathlib would raise an error
    sources = Path(function.__code__.co_filename).parent
    has_cache = has_home or "NUMBA_CACHE_DIR" in os.environ or os.access(sources, os.W_OK)
    try:
        return cast(F, numba.njit(cache=has_cache)(function))
    except RuntimeError:  # numba finds no writable directory, as in a read-only container
        return cast(F, numba.njit(function))


@compiled
def sift_down(heap: FloatArray, owner: IntArray, place: IntArray, i: int, size: int) -> None:
    """Restore the min-heap below `i`. Keeps `place[owner]` up to date, the position of each entry with an owner."""
    value, own = heap[i], owner[i]
    child = 2 * i + 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[i], owner[i] = heap[child], owner[child]
        if owner[i] >= 0:
            place[owner[i]] = i
        i = child
        child = 2 * i + 1
    heap[i], owner[i] = value, own
    if own >= 0:
        place[own] = i


@compiled
def sift_up(heap: FloatArray, owner: IntArray, place: IntArray, i: int) -> None:
    """Restore the min-heap above `i`, and keep `place` up to date."""
    value, own = heap[i], owner[i]
    while i > 0:
        parent = (i - 1) // 2
        if heap[parent] <= value:
            break
        heap[i], owner[i] = heap[parent], owner[parent]
        if owner[i] >= 0:
            place[owner[i]] = i
        i = parent
    heap[i], owner[i] = value, own
    if own >= 0:
        place[own] = i


@compiled
def offer(
    heap: FloatArray, owner: IntArray, place: IntArray, size: int, total: float, value: float, own: int
) -> tuple[int, float]:
    """Add a value to the heap if it is among the greatest len(heap) values. Returns the heap's new size and sum."""
    if size < len(heap):
        heap[size], owner[size] = value, own
        sift_up(heap, owner, place, size)
        return size + 1, total + value
    if value > heap[0]:
        if owner[0] >= 0:
            place[owner[0]] = NO_SLOT
        total += value - heap[0]
        heap[0], owner[0] = value, own
        sift_down(heap, owner, place, 0, size)
    return size, total


contenders, best_threshold = compiled(sweep.contenders), compiled(sweep.best_threshold)


@compiled
def best_convex_threshold(
    ucb: FloatArray, value: FloatArray, m: int, cluster: IntArray, marginal: FloatArray, occupied: IntArray
) -> float:
    """The least ucb of an optimal set if the j-th best row of a cluster pays marginal[occupied + j], non-decreasing.

    It sweeps as `sweep.best_threshold` does. A new row lowers those behind it by one rank: each rank's adjusted value
    rises or stays, and there is one more. So a value that fell out of the m greatest never comes back, and a heap with
    the position of each rank's value is enough. `slot` numbers the ranks of all clusters that do not pay the last cost:
    rows that pay it rise no more. O(number of costs · log m) a row; O(log m) under eq. (22), whose costs are 0 and λ.
    """
    last = len(marginal) - 1
    members = np.minimum(np.bincount(cluster, minlength=len(occupied)), m)
    ranks = np.minimum(members, np.maximum(last - occupied, 0))
    first_slot = np.concatenate((np.zeros(1, np.int64), np.cumsum(ranks)))
    ranked, held = np.empty(first_slot[-1]), np.zeros(len(occupied), np.int64)
    heap, owner, place = np.empty(m), np.full(m, NO_SLOT), np.full(first_slot[-1], NO_SLOT)
    size, total = 0, 0.0
    best, threshold = -np.inf, -np.inf
    for i in range(len(ucb)):
        c, v = cluster[i], value[i]
        for rank in range(held[c]):
            slot = first_slot[c] + rank
            if v <= ranked[slot]:
                continue
            ranked[slot], v = v, ranked[slot]
            raised = ranked[slot] - marginal[occupied[c] + rank]
            if place[slot] >= 0:
                total += raised - heap[place[slot]]
                heap[place[slot]] = raised
                sift_down(heap, owner, place, place[slot], size)
            else:
                size, total = offer(heap, owner, place, size, total, raised, slot)
        cost, slot = marginal[min(occupied[c] + held[c], last)], NO_SLOT
        if held[c] < ranks[c]:
            slot = first_slot[c] + held[c]
            ranked[slot] = v
            held[c] += 1
        size, total = offer(heap, owner, place, size, total, v - cost, slot)
        run_ends = i + 1 == len(ucb) or ucb[i + 1] < ucb[i]
        if run_ends and size == m and ucb[i] + total > best:
            best, threshold = ucb[i] + total, ucb[i]
    return threshold


@compiled
def best_combination(
    ucb: FloatArray, value: FloatArray, m: int, cluster: IntArray, marginal: FloatArray, occupied: IntArray
) -> IntArray:
    """The sorted positions of the m-subset of greatest energy, the first in lexicographic order. Tries every subset."""
    n = len(ucb)
    rows, best_rows = np.arange(m), np.arange(m)
    best_least, best_total = -np.inf, 0.0
    while True:
        least, total = np.inf, 0.0
        held = occupied.copy()
        for row in rows:
            least = min(least, ucb[row])
            total += value[row] - marginal[min(held[cluster[row]], len(marginal) - 1)]
            held[cluster[row]] += 1
        # If both minima are +inf, the greater sum wins.
        gain = total - best_total if least == best_least == np.inf else (least + total) - (best_least + best_total)
        if gain > 0:
            best_least, best_total = least, total
            best_rows[:] = rows
        i = m - 1
        while i >= 0 and rows[i] == n - m + i:
            i -= 1
        if i < 0:
            return best_rows
        rows[i] += 1
        for j in range(i + 1, m):
            rows[j] = rows[j - 1] + 1
