"""The common base of policies that classify clients who join while training runs."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.number_types import PositiveShare
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


def is_original(table: ClientTable) -> BoolArray:
    """(K,), True for clients that were present in round 1 (Fed-TS's group I_o). All others are newcomers (I_e)."""
    original: BoolArray = table.joined_round == 1
    return original


@dataclass(frozen=True)
class NewcomerPolicy(Policy):
    """Chooses m original clients at random, and from every insertion the p newcomers of greatest promise.

    m is |S_o|, that is, P_o times the number of originals. Newcomers that joined before the same round form one
    insertion. Each insertion has its own p, which is at least 1. All chosen clients have the same aggregation weight
    (Fed-TS, eq. (4)).
    """

    needs_rounds: ClassVar[bool] = True
    newcomer_share: PositiveShare = 0.5
    """P: the share of an insertion's eligible newcomers that a round chooses. p is this share of their number."""

    def counted(self, table: ClientTable) -> BoolArray:
        return is_original(table)

    def select(self, state: Any, context: Context) -> Selection:
        """The chosen originals and newcomers. If one group has no eligible client, only the other is chosen from."""
        rows = rows_in_tie_order(context)
        original = is_original(context.table)[rows]
        originals = rows[original]
        chosen = [context.rng.choice(originals, min(self.m, len(originals)), replace=False)]
        joined_round = context.table.joined_round[rows]
        for insertion in np.unique(joined_round[~original]):
            newcomers = rows[joined_round == insertion]
            promise = self._promise(state, context, newcomers)
            size = max(1, self._size(state, context.table, newcomers))
            chosen.append(newcomers[np.argsort(-promise, kind="stable")[:size]])
        everyone = np.sort(np.concatenate(chosen))
        details = {"originals": float(len(chosen[0])), "newcomers": float(len(everyone) - len(chosen[0]))}
        return Selection(everyone, weights=np.full(len(everyone), 1 / len(everyone)), details=details)

    @abstractmethod
    def _promise(self, state: Any, context: Context, newcomers: IntArray) -> FloatArray:
        """(n,), the promise of these rows of one insertion. The greatest are chosen."""

    def _size(self, state: Any, table: ClientTable, newcomers: IntArray) -> int:
        """p, the number of newcomers to choose from this insertion."""
        return round(self.newcomer_share * len(newcomers))
