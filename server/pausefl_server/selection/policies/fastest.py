"""Fastest in expectation: chooses the m clients of least mean latency, which is known in advance."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Fastest(Policy):
    """Chooses the m eligible clients with the least E[τ_k]: PAUSE's baseline that ignores leakage and data."""

    needs_oracle: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        """The m fastest eligible clients: the same in every round while these are eligible."""
        if context.oracle is None:
            raise ValueError("fastest needs the true mean latencies")
        rows = rows_in_tie_order(context)
        means = np.array([context.oracle.mean_latency_s[context.table.ids[row]] for row in rows.tolist()])
        return Selection(np.sort(rows[np.argsort(means, kind="stable")[: self.m]]))
