"""PNS: clients whose updates speed convergence are drawn more often (FedPNS; Wu and Wang, IEEE TNSE 9(5), 2022)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.number_types import Positive, PositiveShare, Share
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.model.aggregation import inner_product
from pausefl_server.selection.base import Context, Inspection, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import rows_in_tie_order

# Beside the others' weights it is nothing, and yet a client that has lost all of its own can be drawn.
_LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class Standing:
    """Knowledge of the clients, by row of the table; later rows have no entry."""

    weight: FloatArray
    """K p_k: 1 at first, and for clients that join."""
    exclusions: IntArray
    """How often a client's update was left out."""

    def grown(self, clients: int) -> "Standing":
        """The same with an entry (a copy) for every row."""
        new = clients - len(self.weight)
        return Standing(np.pad(self.weight, (0, new), constant_values=1.0), np.pad(self.exclusions, (0, new)))


@dataclass(frozen=True)
class Pns(Policy):
    """Draws m clients by probabilities p_k, and lowers p_k of those whose updates oppose the round's others.

    Optimal Aggregation leaves out the update without which Σ_i ⟨h_i, h̄⟩ over the rest, h̄ being their mean, is greatest,
    as long as that is greater than with it, and down to `least_share` of the updates. A client left out gives away
    p_k min((r_k + β)^α, 1), where r_k is the share of its rounds in which it was; the others get it in equal parts.
    The authors also test each exclusion on the server's data, which a server here has not. α, β and the least share
    are those of their code.
    """

    alpha: Positive = 2.0
    """α, by which what a client loses grows with how often its updates are left out."""
    beta: Share = 0.7
    """β, added to the share of a client's rounds in which it was left out. From a share of 1 − β on it loses all."""
    least_share: PositiveShare = 0.8
    """The share of a round's updates, rounded up, that always enters the model."""

    def start(self) -> Standing:
        """All alike."""
        return Standing(np.empty(0), np.empty(0, np.int64))

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        """Find the updates that Optimal Aggregation leaves out of the model."""
        admitted = optimal_subset(updates, math.ceil(self.least_share * len(updates)))
        return Inspection([{"excluded": float(not is_in)} for is_in in admitted], admitted)

    def observe(self, state: Standing, record: PolicyRound, table: ClientTable) -> Standing:
        """Lower the probabilities of the clients that were left out."""
        rows = table.rows(o.client_id for o in record.observations if o.statistics.get("excluded") == 1)
        if not len(rows):
            return state
        grown, others = state.grown(len(table)), np.ones(len(table), np.bool_)
        others[rows] = False
        grown.exclusions[rows] += 1
        share = grown.exclusions[rows] / table.chosen[rows]
        lost = grown.weight[rows] * np.minimum((share + self.beta) ** self.alpha, 1.0)
        grown.weight[rows] -= lost
        grown.weight[others] += lost.sum() / others.sum()
        return grown

    def select(self, state: Standing, context: Context) -> Selection:
        """A draw without replacement."""
        rows = rows_in_tie_order(context)
        weight = np.maximum(state.grown(len(context.table)).weight[rows], _LEAST_WEIGHT)
        drawn = context.rng.choice(rows, min(self.m, len(rows)), replace=False, p=weight / weight.sum())
        return Selection(np.sort(drawn))


def optimal_subset(updates: Sequence[Vector], least: int) -> BoolArray:
    """(n,) which updates stay, at least `least` of them; of equals the first is left out.

    Over a set S, Σ_{i∈S} ⟨h_i, h̄_S⟩ is Σ_{i,j∈S} ⟨h_i, h_j⟩/|S|, so the products are needed once.
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
