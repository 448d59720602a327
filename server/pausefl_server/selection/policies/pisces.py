"""Pisces (Jiang et al., SoCC 2022, arXiv 2206.09264): chooses by utility, which stale updates lower."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.number_types import NonNegative, Share, Whole
from pausefl_server.clients import ClientTable, grown
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import losses, rows_in_tie_order

_RECENT = 5
"""A client's staleness is the mean over this many last updates. Losses of this many model versions are compared."""
_CREDITS = 5
"""How many times a client may be an outlier before it is chosen last."""
_RADIUS = 0.5
"""ε of DBSCAN, in units of the loss."""


@dataclass(frozen=True)
class Seen:
    """Pisces's state beyond the client table, by row. The newest rows may have no entry."""

    staleness: FloatArray
    """(K, 5), the staleness of each client's last updates, newest first; NaN where there were fewer."""
    version: IntArray
    """The round of the model that each client's last update was made from; -1 for none."""
    credits: IntArray
    """How many more times each client may be an outlier, at least 0."""

    def grown(self, clients: int) -> "Seen":
        """A copy with an entry for every row of a table of `clients` rows."""
        staleness, version = grown(self.staleness, clients, np.nan), grown(self.version, clients, -1)
        return Seen(staleness, version, grown(self.credits, clients, _CREDITS))


@dataclass(frozen=True)
class Pisces(Policy):
    """Explores unseen clients at random, and exploits those of greatest utility |D_k| loss_k / (τ̃_k + 1)^β.

    τ̃_k is the mean staleness of the client's last 5 updates, so a slow client is chosen only if its data are worth it.
    In step t, each place explores with probability 0.3 · 0.99^(t−1), at least 0.1. A client loses one of 5 credits if
    its loss is an outlier among those of the last 5 model versions (DBSCAN, ε = 0.5, least number of neighbours m/2).
    Without credits, it is chosen only if there are too few others. The constants are the authors'.

    In an asynchronous run, the policy also sets the number of updates per step, K_t, so that the update of the slowest
    client at work is probably at most b steps stale. If L are the latencies of the clients at work, updates arrive at
    the rate Σ 1/L. So K_t = ⌈max L · Σ 1/L / b⌉, and at least K.

    docs/selection.md lists what differs from the paper.
    """

    exploration: Share = 0.3
    """The share of unseen clients in the first round or step."""
    exploration_decay: Share = 0.99
    """The factor by which that share falls each round or step."""
    exploration_min: Share = 0.1
    """The share never falls below this."""
    beta: NonNegative = 1.0
    """β, how strongly staleness counts."""

    staleness_bound: Whole = 0
    """b, the staleness that K_t tries to keep updates below or at, in steps. 0 stands for C."""

    needs_loss: ClassVar[bool] = True

    def start(self) -> Seen:
        return Seen(np.empty((0, _RECENT)), np.empty(0, np.int64), np.empty(0, np.int64))

    def observe(self, state: Seen, record: PolicyRound, table: ClientTable) -> Seen:
        """Note the staleness of the round's updates. Their clients lose a credit if their loss is an outlier."""
        seen = state.grown(len(table))
        if not record.observations:
            return seen
        rows = table.rows(o.client_id for o in record.observations)
        staleness = np.array([o.staleness for o in record.observations])
        seen.staleness[rows, 1:] = seen.staleness[rows, :-1]
        seen.staleness[rows, 0] = staleness
        seen.version[rows] = record.round - 1 - staleness
        recent = seen.version > seen.version[rows].max() - _RECENT
        compared = np.flatnonzero(recent & np.isfinite(table.last_loss))
        if len(compared) >= self.m:
            outliers = compared[is_outlier(table.last_loss[compared], _RADIUS, self.m // 2)]
            charged = np.intersect1d(outliers, rows)
            seen.credits[charged] = np.maximum(seen.credits[charged] - 1, 0)
        return seen

    def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
        """K_t; `buffer` (K) while no client at work has answered before."""
        known = at_work[table.inverse_latency_sum[at_work] > 0]
        if not known.size:
            return buffer
        per_s = table.inverse_latency_sum[known] / table.measured[known]
        in_longest = float(per_s.mean() / per_s.min()) * len(at_work)  # updates that arrive in the greatest latency
        return max(buffer, min(math.ceil(in_longest / (self.staleness_bound or self.m) - 1e-9), len(at_work)))

    def select(self, state: Seen, context: Context) -> Selection:
        """Unseen clients for a binomial number of places, and those of greatest utility for the others."""
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
        """1/(τ̃ + 1)^β of (n, 5) stalenesses; 1 for clients without any."""
        counted = np.isfinite(staleness)
        mean: FloatArray = np.where(counted, staleness, 0.0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
        return (mean + 1.0) ** -self.beta


def is_outlier(values: FloatArray, radius: float, neighbours: int) -> BoolArray:
    """(n,), whether each value is noise to DBSCAN: no value within the radius has at least `neighbours` values near."""
    is_near = np.abs(values[:, None] - values) <= radius
    is_core = is_near.sum(axis=1) >= neighbours
    noise: BoolArray = np.logical_not(is_near[:, is_core].any(axis=1))
    return noise
