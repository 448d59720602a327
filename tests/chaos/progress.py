"""Watches how a run comes on."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from chaos.books import committed, require

_LOOK_EVERY_S = 0.2


class Progress:
    """The committed rounds of a run, which have to grow in number."""

    def __init__(self, run_dir: Path, patience_s: float) -> None:
        """No further round in `patience_s` is a violation."""
        self._run_dir = run_dir
        self._patience_s = patience_s
        self._rounds = 0
        self._grown_s = self._looked_s = time.monotonic()

    def rounds(self) -> int:
        """How many there are; Violation when there was no further one for too long."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            found = len(committed(self._run_dir))
            if found > self._rounds:
                self._rounds, self._grown_s = found, now_s
            stuck_s = now_s - self._grown_s
            require(stuck_s < self._patience_s, f"no round was committed for {stuck_s:.0f} s after round {found}")
        return self._rounds

    async def until(self, holds: Callable[[], object]) -> None:
        """Return when it holds; Violation when no round is committed for too long meanwhile."""
        while not holds():
            self.rounds()
            await asyncio.sleep(_LOOK_EVERY_S)
