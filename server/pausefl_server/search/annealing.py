"""Simulated annealing over sets of m users (PAUSE v2, Algorithm 3; v1, Algorithm 2), for objectives no search solves.

The chain's vertices are sets of m users. Two sets are neighbours if they differ in one user. Except for plain swaps,
one of these two users must also be the least of its set along an axis (ucb in v2; ucb, g and p in v1). A neighbour is
drawn uniformly without a list of all. A set has K − m active neighbours, which swap out its least user. If r users lie
below its least user, it has (m − 1)·r passive ones too: another user is swapped for one of the r, which is then least.

The printed algorithm is corrected twice: a worse set is accepted with probability exp((E(U) − E(V))/τ_j), since the
printed sign accepts everything; and the best set seen is returned, the start included.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.search import SetValue
from pausefl_server.search.kernels import compiled

CHUNK = 512
"""The number of compiled steps between two reads of the clock: about 0.1 ms."""


@dataclass(frozen=True)
class Cooling:
    """The temperatures τ_j = C / (κ ln(1 + j)) for steps j = 1..steps (PAUSE v2, Section IV-A and V-D)."""

    scale: float
    """C/κ."""
    steps: int
    time_cap_s: float = math.inf

    def deadline(self, clock: Callable[[], float] | None) -> Callable[[], bool]:
        """A function that tells whether the time, counted from now, is up. ValueError for a cap without a clock."""
        if self.time_cap_s == math.inf:
            return lambda: False
        if clock is None:
            raise ValueError(f"time_cap_s = {self.time_cap_s}: needs a clock")
        end_s = clock() + self.time_cap_s
        return lambda: clock() >= end_s


class Chain(NamedTuple):
    """The current set, and tables to draw a neighbour from. There are A axes, n free rows and m members."""

    rank: IntArray
    """(A, n): the rank of each row along each axis, ascending."""
    row_at: IntArray
    """(A, n): the row of each rank, the inverse of `rank`."""
    members: IntArray
    """(A, m): the ranks of the current set, ascending along each axis."""
    outside: IntArray
    """(n − m,): the rows outside the set, in any order."""
    where: IntArray
    """(n,): the position of each row in `outside`, -1 for a member."""
    random: npt.NDArray[np.uint64]
    """(1,): the state of the random generator."""


def anneal_additive(
    ucb: FloatArray,
    value: FloatArray,
    start: IntArray,
    axes: tuple[FloatArray, ...],
    cooling: Cooling,
    seed: int,
    clock: Callable[[], float] | None,
    cluster: IntArray,
    marginal: FloatArray,
    held: IntArray,
) -> tuple[IntArray, int]:
    """Anneal min ucb + Σ value − cluster penalty from `start`. Returns the best set seen, and the number of steps.

    ucb, value, cluster: (n,), finite. start: (m,) rows. axes: the axes that define neighbours, (n,) each, ucb first; an
    empty tuple allows all swaps. marginal: the cost of the first, second, ... member of a cluster. held: how many rows
    outside this problem each cluster holds already.
    """
    if len(start) == len(ucb):  # one set, no neighbours
        return np.sort(start), 0
    chain = chain_of(ucb, start, axes, seed)
    counts, total = held.copy(), float(value[start].sum())
    for c in cluster[start]:
        total -= marginal[min(counts[c], len(marginal) - 1)]
        counts[c] += 1
    energy = np.full(2, ucb[start].min() + total)
    best = start.copy()
    time_is_up, done = cooling.deadline(clock), 0
    while done < cooling.steps and not time_is_up():
        until = min(done + CHUNK, cooling.steps)
        _anneal(chain, ucb, value, cluster, marginal, counts, len(axes) == 0, cooling.scale, done, until, energy, best)
        done = until
    return np.sort(best), done


def anneal(
    ucb: FloatArray,
    value: SetValue,
    start: IntArray,
    axes: tuple[FloatArray, ...],
    cooling: Cooling,
    seed: int,
    clock: Callable[[], float] | None,
) -> tuple[IntArray, int]:
    """`anneal_additive` for any value of the set, in plain Python. For the same seed, both take the same steps."""
    if len(start) == len(ucb):
        return np.sort(start), 0
    chain = chain_of(ucb, start, axes, seed)
    energy = float(ucb[start].min()) + value.reset(start)
    best, best_energy = start.copy(), energy
    time_is_up = cooling.deadline(clock)
    for j in range(1, cooling.steps + 1):
        if time_is_up():
            return np.sort(best), j - 1
        out, incoming, least = propose_swap(chain, len(axes) == 0)
        proposed = float(ucb[least]) + value.swapped(out, incoming)
        chance = _uniform(chain.random)
        if proposed >= energy or chance < math.exp((proposed - energy) * math.log1p(j) / cooling.scale):
            apply_swap(chain, out, incoming)
            value.swap(out, incoming)
            energy = proposed
            if energy > best_energy:
                best, best_energy = chain.row_at[0, chain.members[0]], energy
    return np.sort(best), cooling.steps


def chain_of(ucb: FloatArray, start: IntArray, axes: tuple[FloatArray, ...], seed: int) -> Chain:
    """The chain at its start. For ucb, start, axes and seed, see `anneal_additive`."""
    row_at = np.array([np.argsort(axis, kind="stable") for axis in axes or (ucb,)])
    rank = np.empty_like(row_at)
    np.put_along_axis(rank, row_at, np.arange(len(ucb))[None, :], axis=1)
    where = np.zeros(len(ucb), np.int64)
    where[start] = -1
    outside = np.flatnonzero(where == 0)
    where[outside] = np.arange(len(outside))
    members = np.sort(np.ascontiguousarray(rank[:, start]), axis=1)  # one memory layout: numba compiles once
    return Chain(rank, row_at, members, outside, where, np.array([seed], np.uint64))


def warm_up() -> None:
    """Load the compiled kernels, or compile them if they are not cached, so that no round is delayed."""
    ucb, rows = np.array([1.0, 2.0, 3.0]), np.array([0, 1])
    cluster, cooling = np.zeros(3, np.int64), Cooling(1.0, 2)
    anneal_additive(ucb, ucb, rows, (ucb,), cooling, 0, None, cluster, np.zeros(1), np.zeros(1, np.int64))


@compiled
def _uniform(random: npt.NDArray[np.uint64]) -> float:
    """A random number in [0, 1) by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * 2.0**-53


@compiled
def _below(random: npt.NDArray[np.uint64], n: int) -> int:
    """A random integer from 0 to n − 1."""
    return int(_uniform(random) * n)


@compiled
def propose_swap(chain: Chain, any_swap: bool) -> tuple[int, int, int]:
    """A uniformly drawn neighbour of the current set, as (row out, row in, row of the least ucb after the swap)."""
    if any_swap:
        out = chain.row_at[0, chain.members[0, _below(chain.random, chain.members.shape[1])]]
        incoming = chain.outside[_below(chain.random, len(chain.outside))]
    else:
        out, incoming = _tailored(chain)
    ranks, left = chain.members[0], chain.rank[0, out]
    least = chain.rank[0, incoming]
    if ranks[0] != left:
        least = min(least, ranks[0])
    elif len(ranks) > 1:
        least = min(least, ranks[1])
    return out, incoming, chain.row_at[0, least]


@compiled
def _tailored(chain: Chain) -> tuple[int, int]:
    """A swap (row out, row in), drawn uniformly from the union of the axes' active and passive neighbours.

    A swap that is a neighbour along n axes would be drawn n times as often, so it is accepted with probability 1/n.
    """
    n_axes, m = chain.members.shape
    active = len(chain.outside)
    total = 0
    for x in range(n_axes):
        total += active + (m - 1) * chain.members[x, 0]
    while True:
        i, x = _below(chain.random, total), 0
        while i >= active + (m - 1) * chain.members[x, 0]:
            i -= active + (m - 1) * chain.members[x, 0]
            x += 1
        if i < active:
            out, incoming = chain.row_at[x, chain.members[x, 0]], chain.outside[i]
        else:
            member, below = (i - active) % (m - 1), (i - active) // (m - 1)
            out, incoming = chain.row_at[x, chain.members[x, 1 + member]], chain.row_at[x, below]
        ways = 0
        for y in range(n_axes):
            least = chain.members[y, 0]
            ways += chain.rank[y, out] == least or chain.rank[y, incoming] < least
        if ways == 1 or _below(chain.random, ways) == 0:
            return out, incoming


@compiled
def apply_swap(chain: Chain, out: int, incoming: int) -> None:
    """Make the neighbour the current set. O(m) per axis."""
    n_axes, m = chain.members.shape
    for x in range(n_axes):
        ranks, new = chain.members[x], chain.rank[x, incoming]
        i = np.searchsorted(ranks, chain.rank[x, out])
        while i + 1 < m and ranks[i + 1] < new:
            ranks[i] = ranks[i + 1]
            i += 1
        while i > 0 and ranks[i - 1] > new:
            ranks[i] = ranks[i - 1]
            i -= 1
        ranks[i] = new
    place = chain.where[incoming]
    chain.outside[place] = out
    chain.where[out], chain.where[incoming] = place, -1


@compiled
def _anneal(
    chain: Chain,
    ucb: FloatArray,
    value: FloatArray,
    cluster: IntArray,
    marginal: FloatArray,
    counts: IntArray,
    any_swap: bool,
    scale: float,
    done: int,
    until: int,
    energy: FloatArray,
    best: IntArray,
) -> None:
    """Run steps done + 1 to until, and update the arrays. energy: (2,), of the current set and of the best."""
    last = len(marginal) - 1
    total = energy[0] - ucb[chain.row_at[0, chain.members[0, 0]]]
    for j in range(done + 1, until + 1):
        out, incoming, least = propose_swap(chain, any_swap)
        left, joined = cluster[out], cluster[incoming]
        gain = value[incoming] - value[out]
        if left != joined:
            gain += marginal[min(counts[left] - 1, last)] - marginal[min(counts[joined], last)]
        proposed = ucb[least] + total + gain
        chance = _uniform(chain.random)
        if proposed >= energy[0] or chance < math.exp((proposed - energy[0]) * math.log1p(j) / scale):
            apply_swap(chain, out, incoming)
            counts[left] -= 1
            counts[joined] += 1
            total += gain
            energy[0] = proposed
            if proposed > energy[1]:
                energy[1] = proposed
                best[:] = chain.row_at[0][chain.members[0]]
