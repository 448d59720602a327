"""The inner loops of `search`, compiled by numba at first use and cached on disk.

Their arguments are arrays that `search` has checked, sorted and reduced. The only other caller is
`pausefl.studies.simulation.kernel`, which explains the effect of a change of `sweep` there.
"""

import heapq
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
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
def offer(
    heap: list[tuple[float, int]], inside: BoolArray, adjusted: FloatArray, total: float, value: float, slot: int
) -> float:
    """Add a value to the heap if it is among the greatest len(heap) values. Returns the sum of these.

    `adjusted` has the value of each slot, and `inside` whether it is in the heap. There it may have risen since it was
    added: it is put in its place once it is the heap's least.
    """
    while heap[0][1] != NO_SLOT and adjusted[heap[0][1]] > heap[0][0]:
        heapq.heapreplace(heap, (adjusted[heap[0][1]], heap[0][1]))
    if value <= heap[0][0]:
        return total
    least, fallen = heapq.heapreplace(heap, (value, slot))
    if fallen != NO_SLOT:
        inside[fallen] = False
    if slot != NO_SLOT:
        inside[slot] = True
    return total + (value - least if least > -np.inf else value)


contenders, best_threshold = compiled(sweep.contenders), compiled(sweep.best_threshold)


@compiled
def best_convex_threshold(
    ucb: FloatArray, value: FloatArray, m: int, cluster: IntArray, marginal: FloatArray, occupied: IntArray
) -> float:
    """The least ucb of an optimal set if the j-th best row of a cluster pays marginal[occupied + j], non-decreasing.

    It sweeps as `sweep.best_threshold` does. A new row lowers those behind it by one rank: each rank's adjusted value
    rises or stays, and there is one more. So a value that fell out of the m greatest never comes back, and one heap is
    enough. `slot` numbers the ranks of all clusters that do not pay the last cost: rows that pay it rise no more.
    O(number of costs · log m) a row; O(log m) under eq. (22), whose costs are 0 and λ.
    """
    last = len(marginal) - 1
    members = np.minimum(np.bincount(cluster, minlength=len(occupied)), m)
    ranks = np.minimum(members, np.maximum(last - occupied, 0))
    first_slot = np.concatenate((np.zeros(1, np.int64), np.cumsum(ranks)))
    ranked, adjusted = np.empty(first_slot[-1]), np.empty(first_slot[-1])
    held, inside = np.zeros(len(occupied), np.int64), np.zeros(first_slot[-1], np.bool_)
    heap, total = [(-np.inf, NO_SLOT) for _ in range(m)], 0.0
    best, threshold = -np.inf, -np.inf
    for i in range(len(ucb)):
        c, v = cluster[i], value[i]
        for rank in range(held[c]):
            slot = first_slot[c] + rank
            if v > ranked[slot]:
                ranked[slot], v = v, ranked[slot]
                before, adjusted[slot] = adjusted[slot], ranked[slot] - marginal[occupied[c] + rank]
                if inside[slot]:
                    total += adjusted[slot] - before
                else:
                    total = offer(heap, inside, adjusted, total, adjusted[slot], slot)
        paid, slot = v - marginal[min(occupied[c] + held[c], last)], NO_SLOT
        if held[c] < ranks[c]:
            slot = first_slot[c] + held[c]
            ranked[slot], adjusted[slot] = v, paid
            held[c] += 1
        total = offer(heap, inside, adjusted, total, paid, slot)
        run_ends = i + 1 == len(ucb) or ucb[i + 1] < ucb[i]
        if run_ends and heap[0][0] > -np.inf and ucb[i] + total > best:
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
