"""UCB: latency alone, by the index of PAUSE."""

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
    """Chooses the m clients of greatest ucb (PAUSE v2, eq. (13)), after Xia et al. (IEEE TWC 2020); unseen ones first.

    Index and reward τ_min/τ are PAUSE's; the virtual queues of Xia et al.'s second algorithm, CS-UCB-Q, are left out.
    A client that misses its rounds has a mean reward of 0: exploration alone chooses it again, after its rest.
    """

    zeta: NonNegative = 1.0
    """ζ, the weight of the latency estimate against exploration."""
    discount: PositiveShare = 1.0
    """Factor by which earlier measurements lose weight each round, 1 for the plain mean."""
    window: Whole = 0
    """Rounds after which a measurement is forgotten, 0 for never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.as_pause()

    def start(self) -> Recent | None:
        """As PAUSE."""
        return self.as_pause().start()

    def observe(self, state: Recent | None, record: PolicyRound, table: ClientTable) -> Recent | None:
        """As PAUSE."""
        return self.as_pause().observe(state, record, table)

    def select(self, state: Recent | None, context: Context) -> Selection:
        """Unseen clients first, then the greatest ucb; of equals those whose tie key is first.

        Sets of one least ucb are equal to PAUSE, whose search may leave out a greater ucb for one tied at the least.
        """
        if len(context.eligible) <= self.m:
            return Selection(context.eligible)
        choice = self.as_pause().choice(state, context)
        seen = context.table.chosen[choice.rows] > 0
        positions = np.lexsort((-choice.ucb, seen))[: self.m]
        return Selection(np.sort(choice.rows[positions]), details={"energy": choice.finite().energy(positions)})

    def as_pause(self) -> Pause:
        """The PAUSE whose index it takes, with nothing but latency to weigh."""
        return Pause(self.m, alpha=0.0, gamma=0.0, zeta=self.zeta, discount=self.discount, window=self.window)
