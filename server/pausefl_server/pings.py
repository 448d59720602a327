"""Schedules pings of idle clients: all in turn, at a bounded rate."""

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class Ping:
    """To the coordinator, which logs it with the round under way: how long an idle client took to answer a ping."""

    client_id: str
    ping_s: float


class PingSchedule:
    """Schedules `per_s` pings a second on average, and at most one second's share of them at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._clients: OrderedDict[str, None] = OrderedDict()
        self._allowance = 0.0
        self._last_s: float | None = None

    def join(self, client_id: str) -> None:
        """Ping this client too, after all clients that wait for their turn."""
        self._clients[client_id] = None

    def leave(self, client_id: str) -> None:
        """Stop pinging the client."""
        del self._clients[client_id]

    def take_due(self, now_s: float, busy: Container[str]) -> list[str]:
        """Return the clients to ping now, and move them to the end of the queue. Busy clients keep their places."""
        if self._last_s is not None:
            earned = self._allowance + self._per_s * (now_s - self._last_s)
            self._allowance = min(earned, max(self._per_s, 1.0))
        self._last_s = now_s
        due = list(islice((c for c in self._clients if c not in busy), int(self._allowance)))
        for client_id in due:
            self._clients.move_to_end(client_id)
        self._allowance -= len(due)
        return due
