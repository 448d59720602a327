"""A selection policy that an installed package adds, by the entry point in pyproject.toml.

Run it: pip install ./examples/plugin && pausefl run demo --set selection.policy=equal-turns
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection import Context, Policy, Selection


@dataclass(frozen=True)
class EqualTurns(Policy):
    """Chooses the clients that had the fewest turns; among these, those with much data first."""

    slack: int = 1
    """By how many turns a client may be ahead before others come first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slack < 1:
            raise ValueError(f"slack = {self.slack}: must be at least 1")

    def select(self, state: Any, context: Context) -> Selection:
        """The m clients with the fewest turns."""
        table, rows = context.table, context.eligible
        turns = table.chosen[rows] // self.slack
        order = np.lexsort((table.tie_key[rows], -table.n_examples[rows], turns))
        return Selection(np.sort(rows[order[: self.m]]))
