"""Exact search for the set of PAUSE v2, eq. (14): argmax over |S| = m of min_{k∈S} ucb_k + Σ_{k∈S} v_k − penalty(S).

`value` is v_k = (α g_k + γ p_k)/m, so that under reward R1 (eq. (18)) the sum is αΦ_g + γΦ_p.

The paper's proof of Algorithm 2 forces the pivot into the set. That is not needed: for a threshold u, the best set
among the rows with ucb >= u has an energy of at least u + its sum. Equality holds if u is the least ucb of the optimal
set. So every search here works as follows: sort by ucb, lower the threshold row by row, keep the m greatest (adjusted)
values seen, and remember the threshold at which u + their sum was greatest.

Common to all searches: ucb and value are float64 of shape (K,), value finite; ucb may be +inf. `forced` lists rows that
must be in the set; the rest is the optimum given them. If every possible minimum is +inf, the greatest Σ v − penalty
wins. Of equal rows, the lowest index wins. The result is sorted int64 of shape (m,). Sums are running sums in float64,
so sets whose energies differ only by rounding count as equal. ValueError for NaN, -inf, m < 1, m > K and bad rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pausefl_proto.arrays import FloatArray, IntArray, are_greatest
from pausefl_server.search import sweep

Rows = Sequence[int] | IntArray

# Plain Python takes at most 30 ms for this many rows. More rows and other searches need numba: it loads in a second.
_MOST_IN_PYTHON = 1 << 16


class SetValue(Protocol):
    """The energy without the least ucb, αΦ_g + γΦ_p, of a current set that changes by swaps of two rows."""

    def reset(self, rows: IntArray) -> float:
        """Make `rows` the current set and return its value."""

    def swapped(self, out: int, incoming: int) -> float:
        """The value of the current set with `out` replaced by `incoming`. Does not change the current set."""

    def swap(self, out: int, incoming: int) -> None:
        """Replace `out` with `incoming` in the current set."""


def pivot_and_fill(ucb: npt.ArrayLike, value: npt.ArrayLike, m: int, forced: Rows = ()) -> IntArray:
    """An optimal set under reward R1 (PAUSE v2, eqs. (14) and (18), Algorithm 2). O(K log K), memory O(K)."""
    problem = Problem.of(ucb, value, m, forced)
    if problem.places == 0:
        return problem.forced
    rows = sweep.contenders(problem.ucb, problem.value, problem.places)
    order = rows[np.argsort(-problem.ucb[rows])]
    ucb, value = problem.ucb[order], problem.value[order]
    if len(order) <= _MOST_IN_PYTHON:
        threshold = sweep.best_threshold(ucb.tolist(), value.tolist(), problem.places)
    else:
        from pausefl_server.search import kernels

        threshold = kernels.best_threshold(ucb, value, problem.places)
    return problem.answer(threshold, problem.value)


def convex_pivot_and_fill(
    ucb: npt.ArrayLike,
    value: npt.ArrayLike,
    m: int,
    cluster: npt.ArrayLike,
    marginal: Sequence[float] | FloatArray,
    forced: Rows = (),
) -> IntArray:
    """An optimal set if the j-th member of a cluster costs marginal[j − 1], for any non-decreasing costs.

    cluster: integers of shape (K,); rows of the same cluster share an access point. Forced rows count as its first
    members. The last cost holds for all further members: reward R2 (PAUSE v2, eq. (22)) is marginal = (0, λ), λ = αρ.
    ValueError if costs decrease: the greedy fill fails. O(K log K + K · number of costs · log m); for R2, O(K log K).
    """
    from pausefl_server.search import kernels

    costs = _costs(marginal)
    problem = Problem.of(ucb, value, m, forced)
    if problem.places == 0:
        return problem.forced
    cluster, held = problem.clusters(cluster)
    order = np.argsort(-problem.ucb)
    rows = problem.ucb[order], problem.value[order], problem.places, cluster[order]
    threshold = kernels.best_convex_threshold(*rows, costs, held)
    return problem.answer(threshold, _adjusted(problem, threshold, cluster, held, costs))


def brute_force(
    ucb: npt.ArrayLike,
    value: npt.ArrayLike,
    m: int,
    cluster: npt.ArrayLike,
    marginal: Sequence[float] | FloatArray,
    forced: Rows = (),
) -> IntArray:
    """The optimum of `convex_pivot_and_fill`, found by trying all sets, to check it. O(binomial(K, m) · m)."""
    from pausefl_server.search import kernels

    costs = _costs(marginal)
    problem = Problem.of(ucb, value, m, forced)
    cluster, held = problem.clusters(cluster)
    rows = problem.ucb, problem.value, problem.places, cluster
    return problem.with_forced(kernels.best_combination(*rows, costs, held))


def warm_up() -> None:
    """Load the compiled kernels, or compile them if they are not cached (about 2 s), so that no round is delayed."""
    problem = np.array([1.0, 2.0, np.inf]), np.zeros(3), 2, np.array([0, 1, 1]), (0.0, 1.0)
    convex_pivot_and_fill(*problem)
    brute_force(*problem)


@dataclass(frozen=True)
class Problem:
    """The problem that remains after the forced rows are in the set: choose `places` of the `free` rows.

    The free rows' ucb are capped at the least ucb of the forced rows, because more cannot raise the minimum.
    """

    size: int
    forced: IntArray
    free: IntArray
    """The rows that are not forced."""
    ucb: FloatArray
    value: FloatArray
    places: int

    @classmethod
    def of(cls, ucb: npt.ArrayLike, value: npt.ArrayLike, m: int, forced: Rows) -> "Problem":
        """The problem of these rows; ValueError for arguments that the module's docstring rules out."""
        ucb, value = np.asarray(ucb, np.float64), np.asarray(value, np.float64)
        if ucb.ndim != 1 or ucb.shape != value.shape:
            raise ValueError(f"ucb and value have shapes {ucb.shape} and {value.shape}: must be (K,) both")
        if not 1 <= m <= len(ucb):
            raise ValueError(f"m = {m}: must be from 1 to K = {len(ucb)}")
        if not (ucb > -np.inf).all():  # also false for NaN
            raise ValueError("ucb holds NaN or -inf")
        if not np.isfinite(value).all():
            raise ValueError("value holds NaN or an infinity")
        if len(forced) == 0:
            return cls(len(ucb), np.empty(0, np.int64), np.arange(len(ucb)), ucb, value, m)
        rows = np.unique(np.asarray(forced))
        are_rows = np.issubdtype(rows.dtype, np.integer) and rows[0] >= 0 and rows[-1] < len(ucb)
        if not are_rows or not len(rows) == len(forced) <= m:
            raise ValueError(f"forced: must be at most m = {m} different rows from 0 to {len(ucb) - 1}")
        rows = rows.astype(np.int64, copy=False)
        is_free = np.ones(len(ucb), np.bool_)
        is_free[rows] = False
        free = np.flatnonzero(is_free)
        return cls(len(ucb), rows, free, np.minimum(ucb[free], ucb[rows].min()), value[free], m - len(rows))

    def clusters(self, cluster: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """The clusters of the free rows, numbered from 0 without gaps, and how many forced rows each cluster holds."""
        cluster = np.asarray(cluster)
        if cluster.shape != (self.size,) or not np.issubdtype(cluster.dtype, np.integer):
            raise ValueError(f"cluster: must be integers of shape ({self.size},)")
        names, dense = np.unique(cluster, return_inverse=True)
        held = np.bincount(dense[self.forced], minlength=len(names)).astype(np.int64)
        return dense[self.free].astype(np.int64, copy=False), held

    def answer(self, threshold: float, adjusted: FloatArray) -> IntArray:
        """The forced rows, and of the free rows with ucb >= threshold the `places` of greatest adjusted value."""
        above = np.flatnonzero(self.ucb >= threshold)
        return self.with_forced(above[are_greatest(adjusted[above], self.places)])

    def with_forced(self, positions: IntArray) -> IntArray:
        """The sorted rows of the table: the forced rows, and the free rows at these positions."""
        return np.sort(np.concatenate((self.forced, self.free[positions])))


def _costs(marginal: Sequence[float] | FloatArray) -> FloatArray:
    costs = np.asarray(marginal, np.float64)
    if costs.ndim != 1 or costs.size == 0 or not np.isfinite(costs).all() or (np.diff(costs) < 0).any():
        raise ValueError(f"marginal = {marginal}: must be finite and non-decreasing, one cost or more")
    return costs


def _adjusted(
    problem: Problem, threshold: float, cluster: IntArray, held: IntArray, marginal: FloatArray
) -> FloatArray:
    """Each value minus the cost of its rank within its cluster, for the rows whose ucb is at least the threshold.

    Ranks start after the forced rows of the cluster. Rows below the threshold keep their value: they are not used.
    """
    rows = np.flatnonzero(problem.ucb >= threshold)
    order = rows[np.lexsort((rows, -problem.value[rows], cluster[rows]))]
    grouped = cluster[order]
    starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))
    lengths = np.diff(np.append(starts, len(order)))
    rank = np.arange(len(order)) - np.repeat(starts, lengths) + held[grouped]
    adjusted = problem.value.copy()
    adjusted[order] -= marginal[np.minimum(rank, len(marginal) - 1)]
    return adjusted
