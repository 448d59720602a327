"""Random selection: m clients, uniformly, without replacement."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection


@dataclass(frozen=True)
class Random(Policy):
    """m of the eligible clients, uniformly, without replacement: PAUSE's first baseline."""

    def select(self, state: Any, context: Context) -> Selection:  # noqa: ARG002
        """A draw of this round's generator."""
        m = min(self.m, len(context.eligible))
        return Selection(np.sort(context.rng.choice(context.eligible, m, replace=False)))
