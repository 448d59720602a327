"""Pisces (Jiang et al., SoCC 2022, arXiv 2206.09264): utility, less so for clients whose updates are stale."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.number_types import NonNegative, Share, Whole
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import losses, rows_in_tie_order

_RECENT = 5
"""How many of a client's last updates its staleness is the mean of, and how many versions' losses are compared."""
_CREDITS = 5
"""How often a client may be an outlier before it is chosen last."""
_RADIUS = 0.5
"""ε of DBSCAN, in units of the loss."""


@dataclass(frozen=True)
class Seen:
    """Pisces's memory beyond the client table, by row; later rows have no entry."""

    staleness: FloatArray
    """(K, 5) how stale each client's last updates were, newest first; NaN where there were fewer."""
    version: IntArray
    """The model that each client's last update was made from, by its round; -1 for none."""
    credits: IntArray
    """How often each client may yet be an outlier, at least 0."""

    def grown(self, clients: int) -> "Seen":
        """The same with an entry (a copy) for every row."""
        new = (0, clients - len(self.version))
        return Seen(
            np.pad(self.staleness, (new, (0, 0)), constant_values=np.nan),
            np.pad(self.version, new, constant_values=-1),
            np.pad(self.credits, new, constant_values=_CREDITS),
        )


@dataclass(frozen=True)
class Pisces(Policy):
    """Explores unseen clients at random, and exploits those of greatest utility |D_k| loss_k / (τ̃_k + 1)^β.

    τ̃_k is the mean staleness of the client's last 5 updates, so that slow clients are chosen where their data are
    worth it. Each place explores with probability 0.3 · 0.99^(t−1), at least 0.1, in step t. A client whose loss is an
    outlier among those of the last 5 versions loses one of 5 credits (DBSCAN, ε = 0.5, half of m as least number of
    neighbours). Without any it is chosen only where others do not suffice. Constants are the authors'.

    In an asynchronous run it also paces: a step has so many updates that a job of the slowest client at work is likely
    to be b steps old at most. Where the clients at work have latencies L, updates arrive at the rate Σ 1/L, so
    K_t = ⌈max L · Σ 1/L / b⌉, and at least K.

    What differs:
    - The paper makes a step once max L / b has passed since the last one; counting updates needs no clock.
    - Clients disclose their mean loss alone, which stands in for the root mean square of their samples' losses.
    - A client that was chosen and reported no loss counts as the median one.
    """

    exploration: Share = 0.3
    """The share of unseen clients at first."""
    exploration_decay: Share = 0.99
    """Factor of that share per round or step."""
    exploration_min: Share = 0.1
    """The share never falls below this."""
    beta: NonNegative = 1.0
    """β, how strongly staleness counts."""

    staleness_bound: Whole = 0
    """b, how stale updates may be, as far as K_t can see to it; 0 stands for C."""

    needs_loss: ClassVar[bool] = True

    def start(self) -> Seen:
        """No update yet."""
        return Seen(np.empty((0, _RECENT)), np.empty(0, np.int64), np.empty(0, np.int64))

    def observe(self, state: Seen, record: PolicyRound, table: ClientTable) -> Seen:
        """Note how stale updates were, and charge those that are outliers among recent ones."""
        grown = state.grown(len(table))
        if not record.observations:
            return grown
        rows = table.rows(o.client_id for o in record.observations)
        staleness = np.array([o.staleness for o in record.observations])
        grown.staleness[rows, 1:] = grown.staleness[rows, :-1]
        grown.staleness[rows, 0] = staleness
        grown.version[rows] = record.round - 1 - staleness
        recent = (grown.version > grown.version[rows].max() - _RECENT) & (grown.version >= 0)
        compared = np.flatnonzero(recent & np.isfinite(table.last_loss))
        if len(compared) >= self.m:
            outliers = compared[is_outlier(table.last_loss[compared], _RADIUS, self.m // 2)]
            charged = np.intersect1d(outliers, rows)
            grown.credits[charged] = np.maximum(grown.credits[charged] - 1, 0)
        return grown

    def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
        """K_t; K before the first answer of those at work."""
        known = at_work[table.inverse_latency_sum[at_work] > 0]
        if not known.size:
            return buffer
        per_s = table.inverse_latency_sum[known] / table.measured[known]
        in_longest = float(per_s.mean() / per_s.min()) * len(at_work)  # updates that arrive meanwhile
        return max(buffer, min(math.ceil(in_longest / (self.staleness_bound or self.m) - 1e-9), len(at_work)))

    def select(self, state: Seen, context: Context) -> Selection:
        """Unseen ones for as many places as a binomial draw says, the others by utility."""
        rows, seen = rows_in_tie_order(context), state.grown(len(context.table))
        m = min(self.m, len(rows))
        loss = losses(context, rows)
        known = np.isfinite(loss)
        share = max(self.exploration * self.exploration_decay ** (context.round - 1), self.exploration_min)
        new = min(max(int(context.rng.binomial(m, share)), m - int(known.sum())), int((~known).sum()))
        explored = context.rng.choice(rows[~known], new, replace=False)
        utility = np.maximum(loss, 0.0) * context.table.n_examples[rows] * self._freshness(seen.staleness[rows])
        best = np.lexsort((-utility[known], seen.credits[rows[known]] == 0))[: m - new]
        return Selection(np.sort(np.concatenate((explored, rows[known][best]))))

    def _freshness(self, staleness: FloatArray) -> FloatArray:
        """1/(τ̃ + 1)^β of (n, 5) stalenesses; 1 where there are none."""
        counted = np.isfinite(staleness)
        mean: FloatArray = np.where(counted, staleness, 0.0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
        return (mean + 1.0) ** -self.beta


def is_outlier(values: FloatArray, radius: float, neighbours: int) -> BoolArray:
    """(n,) which values are noise to DBSCAN: none within the radius has so many values, itself included, within it."""
    is_near = np.abs(values[:, None] - values) <= radius
    is_core = is_near.sum(axis=1) >= neighbours
    noise: BoolArray = np.logical_not(is_near[:, is_core].any(axis=1))
    return noise
