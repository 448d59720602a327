"""Counts of malformed messages sent, by the layer they target and the way they were made."""

import asyncio
import time
from collections import Counter


class Tally:
    """Counts messages, and lets senders send while the fuzz is on and the limit is not reached."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent: Counter[tuple[str, str]] = Counter()
        self.answers: Counter[str] = Counter()
        """Counts of the other side's answers, by their first words."""
        self.total = 0
        self._on = asyncio.Event()
        self.active_s = 0.0
        self._since_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether enough messages were sent."""
        return self.total >= self.limit

    def add(self, layer: str, way: str, count: int = 1) -> None:
        """Count messages that were sent."""
        self.sent[layer, way] += count
        self.total += count

    def by_layer(self) -> dict[str, dict[str, int]]:
        """Layer -> way -> count, both in order of their names."""
        found: dict[str, dict[str, int]] = {}
        for (layer, way), count in sorted(self.sent.items()):
            found.setdefault(layer, {})[way] = count
        return found

    def start(self) -> None:
        """Let all senders send."""
        self._since_s = time.monotonic()
        self._on.set()

    def pause(self) -> None:
        """Let all senders wait after their present message."""
        self.active_s += time.monotonic() - self._since_s
        self._on.clear()

    @property
    def is_on(self) -> bool:
        """Whether senders may send now."""
        return self._on.is_set()

    async def turn(self) -> bool:
        """Wait until the fuzz is on; returns False once enough was sent."""
        await self._on.wait()
        return not self.is_done
