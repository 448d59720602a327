"""A limit on the number of similar lines. Further lines are only counted."""

from collections.abc import Callable, Hashable

LINES = 20
PER_S = 10.0


class LineLimit:
    """Admits a burst of lines of each kind. The first line of the next burst says how many were left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[Hashable, tuple[float, int]] = {}  # its start, and its number of lines

    def admit(self, kind: Hashable, line: str) -> str | None:
        """The line to show. None if there were already `LINES` of its kind within `PER_S` seconds."""
        now_s = self._clock()
        began_s, count = self._windows.get(kind, (now_s, 0))
        hidden = max(0, count - LINES)
        if now_s - began_s >= PER_S:
            began_s, count = now_s, 0
        self._windows[kind] = began_s, count + 1
        if count >= LINES:
            return None
        return f"{line} (and {hidden} more like it before)" if hidden and not count else line
