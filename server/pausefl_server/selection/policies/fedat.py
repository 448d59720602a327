"""FedAT (Chai et al., SC 2021, arXiv 2010.05958): tiers of clients of similar latency, each with its own rounds."""

from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.number_types import Count
from pausefl_server.clients import ClientTable, grown
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import quantile_tiers, rows_in_tie_order


@dataclass(frozen=True)
class FedAt(Policy):
    """Chooses clients of one tier uniformly, while no client of this tier is at work. Unmeasured clients go first.

    It needs `asynchronous.rule` "fedat", which makes a step of each tier's round. A tier's round has K clients, and
    C = `tiers` · K.

    The paper profiles latencies before round 1. Here the tiers are random at first, by the seed. They are formed anew
    once, by latency, when all connected clients were measured. A round under way then belongs to the slowest tier of
    its clients. Clients that join later belong to the slowest tier of all.
    """

    tiers: Count = 5
    """M, the number of tiers."""

    def start(self) -> tuple[int, ...]:
        """An empty tuple: no tier is known yet."""
        return ()

    def observe(self, state: tuple[int, ...], record: PolicyRound, table: ClientTable) -> tuple[int, ...]:
        """The tier of each row, once all connected clients that have budget left were measured; empty before."""
        is_due = not state and (rows := table.eligible()).size and table.measured[rows].all()
        return tuple(quantile_tiers(table, self.tiers).tolist()) if is_due else state

    def tiers_of(self, state: tuple[int, ...], table: ClientTable) -> IntArray:
        """The tier of each row, (K,): by latency once the tiers were formed, at random before."""
        if state:
            return grown(np.array(state), len(table), self.tiers - 1)
        return (np.argsort(np.argsort(table.tie_key)) % self.tiers).astype(np.int64)

    def select(self, state: tuple[int, ...], context: Context) -> Selection:
        """m of the eligible clients, at random. Clients that were never measured go first."""
        shuffled = context.rng.permutation(rows_in_tie_order(context))
        unseen_first = np.argsort(context.table.measured[shuffled] > 0, kind="stable")
        return Selection(np.sort(shuffled[unseen_first][: self.m]))
