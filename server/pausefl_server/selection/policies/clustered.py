"""Clustered sampling by data size (Fraboni, Vidal, Kameni and Lorenzi, ICML 2021, Algorithm 1)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Clustered(Policy):
    """Draws one client from each of m urns. A client is drawn m|D_k|/|D| times on average, so the choice is unbiased.

    The clients lie on a line, largest first, each as a segment of length m|D_k|. Urn r is the r-th stretch of length
    |D|. A client may lie in several urns. If it is drawn twice, it trains once and counts twice. Each draw weighs 1/m.
    """

    needs_rounds: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        """The clients drawn by this round's generator, one per urn."""
        if len(context.eligible) <= self.m:
            return Selection(context.eligible)
        (rows,) = self.draws(context, [context.rng])
        return Selection(np.sort(rows), weights=np.full(self.m, 1.0 / self.m))

    def draws(self, context: Context, rngs: Iterable[np.random.Generator]) -> Iterator[IntArray]:
        """The rows that each of these generators draws in this context, one per urn."""
        rows = rows_in_tie_order(context)
        sizes = context.table.n_examples[rows]
        if not sizes.any():
            sizes = np.ones(len(rows), np.int64)
        largest_first = (-sizes).argsort(kind="stable")
        ends, urn = (self.m * sizes[largest_first]).cumsum(), int(sizes.sum())
        begins, rows = np.arange(self.m) * urn, rows[largest_first]
        return (rows[ends.searchsorted(begins + rng.integers(urn, size=self.m), side="right")] for rng in rngs)
