"""Random selection: m clients, uniformly, without replacement."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Random(Policy):
    """Chooses m of the eligible clients, uniformly, without replacement: PAUSE's first baseline."""

    def select(self, state: Any, context: Context) -> Selection:
        rows = rows_in_tie_order(context)  # so that the draw does not depend on the order of rows
        return Selection(np.sort(context.rng.choice(rows, min(self.m, len(rows)), replace=False)))
