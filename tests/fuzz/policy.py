"""Chooses honest clients and one hostile one: rounds then tell how fast honest work goes on."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection


@dataclass(frozen=True)
class HonestAndOneMore(Policy):
    """m of the clients whose ids begin with "honest" and one of the others, if there is one; all uniformly.

    Without rounds, the places that are left when all honest clients are at work.
    """

    def select(self, state: Any, context: Context) -> Selection:
        """A draw of this round's generator."""
        ids = context.table.ids
        rows = context.rng.permutation(context.eligible).tolist()
        honest = [row for row in rows if ids[row].startswith("honest")][: self.m]
        others = [row for row in rows if not ids[row].startswith("honest")]
        others = others[:1] if context.concurrency is None else others[: self.m - len(honest)]
        return Selection(np.sort(np.array(honest + others, np.int64)))
