"""A selection policy that keeps its own state: a moving average of each client's latency.

Run it: pausefl run examples/policy/experiment.toml
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pausefl_server.clients import ClientTable
from pausefl_server.selection import Context, Policy, PolicyRound, Selection

Averages = Mapping[str, float]


@dataclass(frozen=True)
class MovingAverage(Policy):
    """Chooses the clients with the lowest moving average of latency. Clients that were never measured come first."""

    newest: float = 0.3
    """The weight of the newest latency in the average, above 0 and at most 1."""
    exploration: float = 0.1
    """The probability that a client counts as never measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.newest <= 1:
            raise ValueError(f"newest = {self.newest}: must be above 0 and at most 1")
        if not 0 <= self.exploration <= 1:
            raise ValueError(f"exploration = {self.exploration}: must be from 0 to 1")

    def start(self) -> Averages:
        """The state before round 1. The state holds averages in seconds, by client id."""
        return {}

    def observe(self, state: Averages, record: PolicyRound, table: ClientTable) -> Averages:
        """The state after a round. For a client that missed, the time that the server waited counts as its latency."""
        averages = dict(state)
        measured = [(answer.client_id, answer.latency_s) for answer in record.observations if answer.teaches]
        measured += [(miss.client_id, miss.latency_s) for miss in record.misses if miss.teaches]
        for client_id, latency_s in measured:
            before = averages.get(client_id, latency_s)
            averages[client_id] = before + self.newest * (latency_s - before)
        return averages

    def select(self, state: Averages, context: Context) -> Selection:
        """Returns the m eligible clients with the lowest averages. The table's seeded hash breaks ties."""
        table, rows = context.table, context.eligible
        averages = np.array([state.get(table.ids[row], 0.0) for row in rows])
        averages[context.rng.random(rows.size) < self.exploration] = 0.0
        order = np.lexsort((table.tie_key[rows], averages))
        return Selection(np.sort(rows[order[: self.m]]))
