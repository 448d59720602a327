"""FedAT (Chai et al., SC 2021, arXiv 2010.05958): tiers of similar latency, each of which plays rounds of its own."""

from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.number_types import Count
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.policies.tifl import quantile_tiers
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class FedAt(Policy):
    """Chooses uniformly among the clients of a tier of which none is at work; those never measured go first.

    Goes with `asynchronous.rule` "fedat", which makes a step of each round of a tier. A round has K clients, and
    C = `tiers` · K.

    What differs:
    - The paper profiles latencies before round 1. Here clients are dealt into tiers at random first, by the seed. Once
      all that are there were measured, they are dealt anew by what was, once, and rounds that are out are of the
      slowest tier that one of their clients is in. Clients that come later are of the slowest tier of all.
    """

    tiers: Count = 5
    """M, how many tiers there are."""

    def start(self) -> tuple[int, ...]:
        """No tier is known yet."""
        return ()

    def observe(self, state: tuple[int, ...], record: PolicyRound, table: ClientTable) -> tuple[int, ...]:
        """The tier of each row, once all clients that are there have been measured."""
        is_due = not state and table.measured[table.eligible()].all()
        return tuple(quantile_tiers(table, self.tiers).tolist()) if is_due else state

    def tiers_of(self, state: tuple[int, ...], table: ClientTable) -> IntArray:
        """By latency where it is known, else at random."""
        if state:
            return np.pad(state, (0, len(table) - len(state)), constant_values=self.tiers - 1)
        return (np.argsort(np.argsort(table.tie_key)) % self.tiers).astype(np.int64)

    def select(self, state: tuple[int, ...], context: Context) -> Selection:
        """m of those eligible."""
        shuffled = context.rng.permutation(rows_in_tie_order(context))
        unseen_first = np.argsort(context.table.measured[shuffled] > 0, kind="stable")
        return Selection(np.sort(shuffled[unseen_first][: self.m]))
