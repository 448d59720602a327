"""Clustered sampling by data size (Fraboni, Vidal, Kameni and Lorenzi, ICML 2021, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Clustered(Policy):
    """Draws one client from each of m urns. A client is drawn m|D_k|/|D| times on average, so the choice is unbiased.

    The clients lie on a line, largest first, each as a segment of length m|D_k|. Urn r is the r-th stretch of length
    |D|. A client may lie in several urns. If it is drawn twice, it trains once and counts twice. Each draw weighs 1/m.

    Deviation: with m or fewer eligible clients, all of them take part and are weighted by data size.
    """

    needs_rounds: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        """The clients drawn by this round's generator, one per urn."""
        if len(context.eligible) <= self.m:
            return Selection(context.eligible)
        rows = rows_in_tie_order(context)
        sizes = context.table.n_examples[rows]
        if not sizes.any():
            sizes = np.ones(len(rows), np.int64)
        largest_first = (-sizes).argsort(kind="stable")
        ends = (self.m * sizes[largest_first]).cumsum()
        urn = int(sizes.sum())
        drawn = np.arange(self.m) * urn + context.rng.integers(urn, size=self.m)
        chosen = np.sort(rows[largest_first[ends.searchsorted(drawn, side="right")]])
        return Selection(chosen, weights=np.full(self.m, 1.0 / self.m))
