"""How many malformed messages were sent, by the layer they were meant for and by how they were made."""

import asyncio
import time
from collections import Counter


class Tally:
    """Counts what is sent, and lets senders go on while the fuzz is on and not enough was sent."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent: Counter[tuple[str, str]] = Counter()
        self.answers: Counter[str] = Counter()
        """What the other side said to it, in the first words."""
        self.total = 0
        self._on = asyncio.Event()
        self.active_s = 0.0
        self._since_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether enough was sent."""
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
        """Let all senders go on."""
        self._since_s = time.monotonic()
        self._on.set()

    def pause(self) -> None:
        """Let all senders wait after what they are at."""
        self.active_s += time.monotonic() - self._since_s
        self._on.clear()

    @property
    def is_on(self) -> bool:
        """Whether senders may send now."""
        return self._on.is_set()

    async def turn(self) -> bool:
        """Wait until the fuzz is on; False when enough was sent."""
        await self._on.wait()
        return not self.is_done
