"""Random selection: m clients, uniformly, without replacement."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Random(Policy):
    """Chooses m of the eligible clients, uniformly, without replacement: PAUSE's first baseline."""

    def select(self, state: Any, context: Context) -> Selection:
        (rows,) = self.draws(context, [context.rng])
        return Selection(np.sort(rows))

    def draws(self, context: Context, rngs: Iterable[np.random.Generator]) -> Iterator[IntArray]:
        """The rows that each of these generators draws in this context."""
        rows = rows_in_tie_order(context)  # so that the draw does not depend on the order of rows
        m = min(self.m, len(rows))
        return (rng.choice(rows, m, replace=False) for rng in rngs)
