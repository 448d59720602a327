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


def is_original(table: ClientTable, rows: IntArray) -> BoolArray:
    """True for clients that were there in round 1 (Fed-TS's group I_o); all others are newcomers (I_e)."""
    original: BoolArray = table.joined_round[rows] == 1
    return original


@dataclass(frozen=True)
class NewcomerPolicy(Policy):
    """Takes m of the original clients at random, and of every insertion the newcomers of greatest promise.

    So m is |S_o|, P_o times the number of originals. Clients that joined before the same round are one insertion: it
    has its own number of newcomers and its own participation size p, which is never below 1. The model averages
    everyone chosen uniformly (Fed-TS, eq. (4)).
    """

    needs_rounds: ClassVar[bool] = True
    newcomer_share: PositiveShare = 0.5
    """P: an insertion's p is this share of its newcomers who are there now."""

    def select(self, state: Any, context: Context) -> Selection:
        """Without newcomers, the originals alone; and the other way round."""
        rows = rows_in_tie_order(context)
        original = is_original(context.table, rows)
        originals = rows[original]
        chosen = [context.rng.choice(originals, min(self.m, len(originals)), replace=False)] if len(originals) else []
        joined_round = context.table.joined_round[rows]
        for insertion in np.unique(joined_round[~original]):
            newcomers = rows[joined_round == insertion]
            promise = self._promise(state, context, newcomers)
            size = max(1, self._size(state, context.table, newcomers))
            chosen.append(newcomers[np.argsort(-promise, kind="stable")[:size]])
        everyone = np.sort(np.concatenate(chosen))
        details = {
            "originals": float(is_original(context.table, everyone).sum()),
            "newcomers": float((~is_original(context.table, everyone)).sum()),
        }
        return Selection(everyone, weights=np.full(len(everyone), 1 / len(everyone)), details=details)

    @abstractmethod
    def _promise(self, state: Any, context: Context, newcomers: IntArray) -> FloatArray:
        """(n,) the greater the better, of these rows, which are one insertion's."""

    def _size(self, state: Any, table: ClientTable, newcomers: IntArray) -> int:
        """p of this insertion."""
        return round(self.newcomer_share * len(newcomers))
