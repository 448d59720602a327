"""A selection policy in a package of its own. The entry point in pyproject.toml adds it to pausefl on installation.

Run it: pip install ./examples/plugin && pausefl run demo --set selection.policy=equal-turns
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection import Context, Policy, Selection


@dataclass(frozen=True)
class EqualTurns(Policy):
    """Chooses the clients that were chosen least often. Among equals, those with more data come first."""

    slack: int = 1
    """Counts of turns are divided by this and rounded down, so that smaller differences do not matter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slack < 1:
            raise ValueError(f"slack = {self.slack}: must be at least 1")

    def select(self, state: Any, context: Context) -> Selection:
        """Returns the m eligible clients with the fewest turns."""
        table, rows = context.table, context.eligible
        turns = table.chosen[rows] // self.slack
        order = np.lexsort((table.tie_key[rows], -table.n_examples[rows], turns))
        return Selection(np.sort(rows[order[: self.m]]))
