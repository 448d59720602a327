"""UCB: chooses by latency alone, with the index of PAUSE."""

from dataclasses import dataclass

import numpy as np

from pausefl_proto.number_types import NonNegative, PositiveShare, Whole
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.latency import Recent
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.policies.pause import Pause


@dataclass(frozen=True)
class Ucb(Policy):
    """Chooses unseen clients first, then those of greatest ucb (PAUSE v2, eq. (13)), after Xia et al. (IEEE TWC 2020).

    The index and the reward τ_min/τ are PAUSE's. A client that always misses has a mean reward of 0. Only exploration
    chooses it again, after its rest.
    """

    zeta: NonNegative = 1.0
    """ζ, the weight of the latency estimate against exploration."""
    discount: PositiveShare = 1.0
    """The weights of earlier measurements are multiplied by this factor each round. 1: the plain mean."""
    window: Whole = 0
    """Only the measurements of this many last rounds count. 0: the measurements of all rounds count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.as_pause()

    def start(self) -> Recent | None:
        return self.as_pause().start()

    def observe(self, state: Recent | None, record: PolicyRound, table: ClientTable) -> Recent | None:
        return self.as_pause().observe(state, record, table)

    def select(self, state: Recent | None, context: Context) -> Selection:
        """Unseen clients, then those of greatest ucb. Ties are broken by the tie key.

        PAUSE's search is not used. To PAUSE, sets with the same least ucb are equal, even if other ucb differ.
        """
        if len(context.eligible) <= self.m:
            return Selection(context.eligible)
        choice = self.as_pause().choice(state, context)
        seen = context.table.chosen[choice.rows] > 0
        positions = np.lexsort((-choice.ucb, seen))[: self.m]
        return Selection(np.sort(choice.rows[positions]), details={"energy": choice.finite().energy(positions)})

    def as_pause(self) -> Pause:
        """The PAUSE policy that computes the index, with α = γ = 0, so that only latency counts."""
        return Pause(self.m, alpha=0.0, gamma=0.0, zeta=self.zeta, discount=self.discount, window=self.window)
