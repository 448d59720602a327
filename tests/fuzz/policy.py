"""A policy that chooses honest clients and one hostile one, so that rounds measure the pace of honest work."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection


@dataclass(frozen=True)
class HonestAndOneMore(Policy):
    """m of the clients whose ids begin with "honest", and one of the others if there is one; drawn uniformly.

    In the asynchronous mode, the others get the places that are free when all honest clients are at work.
    """

    def select(self, state: Any, context: Context) -> Selection:
        """Draw clients by the round's generator."""
        ids = context.table.ids
        rows = context.rng.permutation(context.eligible).tolist()
        honest = [row for row in rows if ids[row].startswith("honest")][: self.m]
        others = [row for row in rows if not ids[row].startswith("honest")]
        others = others[:1] if context.concurrency is None else others[: self.m - len(honest)]
        return Selection(np.sort(np.array(honest + others, np.int64)))
