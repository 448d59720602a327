"""PNS: draws clients more often if their updates speed convergence (FedPNS; Wu and Wang, IEEE TNSE 9(5), 2022)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.number_types import Positive, PositiveShare, Share
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable, grown
from pausefl_server.model.aggregation import inner_product
from pausefl_server.selection.base import Context, Inspection, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import rows_in_tie_order

# Negligible beside other weights, but a client that has lost all its weight can still be drawn.
_LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class Standing:
    """PNS's state beyond the client table, by row. The newest rows may have no entry."""

    weight: FloatArray
    """K p_k, in proportion to the client's probability. It begins at 1, also for clients that join."""
    exclusions: IntArray
    """How many times the client's update was excluded from the model."""

    def grown(self, clients: int) -> "Standing":
        """A copy with an entry for every row of a table of `clients` rows."""
        return Standing(grown(self.weight, clients, 1.0), grown(self.exclusions, clients))


@dataclass(frozen=True)
class Pns(Policy):
    """Draws m clients with probabilities p_k, and lowers p_k if the client's update opposes the others of its round.

    Optimal Aggregation scores a set of updates by Σ_i ⟨h_i, h̄⟩, where h̄ is the set's mean. It repeatedly excludes the
    update whose removal gives the greatest score, while the score grows and at least `least_share` of the updates stay.
    An excluded client loses p_k min((r_k + β)^α, 1), where r_k is the share of its rounds in which it was excluded. The
    loss is divided equally among all clients not excluded.
    """

    alpha: Positive = 2.0
    """α, the exponent of an excluded client's loss of probability."""
    beta: Share = 0.7
    """β, added to the share of a client's rounds in which it was excluded. From a share of 1 − β, it loses all."""
    least_share: PositiveShare = 0.8
    """The share of a round's updates, rounded up, that always enters the model."""

    def start(self) -> Standing:
        return Standing(np.empty(0), np.empty(0, np.int64))

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        """Which updates Optimal Aggregation excludes from the model."""
        admitted = optimal_subset(updates, math.ceil(self.least_share * len(updates)))
        return Inspection([{"excluded": float(not is_in)} for is_in in admitted], admitted)

    def observe(self, state: Standing, record: PolicyRound, table: ClientTable) -> Standing:
        """Lower the probabilities of the excluded clients."""
        rows = table.rows(o.client_id for o in record.observations if o.statistics.get("excluded") == 1)
        if not len(rows):
            return state
        standing, others = state.grown(len(table)), np.ones(len(table), np.bool_)
        others[rows] = False
        standing.exclusions[rows] += 1
        share = standing.exclusions[rows] / table.chosen[rows]
        lost = standing.weight[rows] * np.minimum((share + self.beta) ** self.alpha, 1.0)
        standing.weight[rows] -= lost
        standing.weight[others] += lost.sum() / others.sum()
        return standing

    def select(self, state: Standing, context: Context) -> Selection:
        rows = rows_in_tie_order(context)
        weight = np.maximum(state.grown(len(context.table)).weight[rows], _LEAST_WEIGHT)
        drawn = context.rng.choice(rows, min(self.m, len(rows)), replace=False, p=weight / weight.sum())
        return Selection(np.sort(drawn))


def optimal_subset(updates: Sequence[Vector], least: int) -> BoolArray:
    """(n,), whether each update stays, at least `least` of them. Of equally bad updates, the first is excluded.

    For a set S, Σ_{i∈S} ⟨h_i, h̄_S⟩ is Σ_{i,j∈S} ⟨h_i, h_j⟩/|S|, so the inner products are computed only once.
    """
    products = np.array([[inner_product(a, b) for b in updates] for a in updates])
    stays = np.ones(len(updates), np.bool_)
    while stays.sum() > max(least, 1):
        inside = np.flatnonzero(stays)
        of_set = products[np.ix_(inside, inside)]
        total = of_set.sum()
        without = (total - of_set.sum(axis=0) - of_set.sum(axis=1) + of_set.diagonal()) / (len(inside) - 1)
        if without.max() <= total / len(inside):
            break
        stays[inside[without.argmax()]] = False
    return stays
