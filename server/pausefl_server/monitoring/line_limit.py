"""A limit on the number of similar lines. Further lines are only counted."""

from collections.abc import Callable, Hashable

_LINES = 20
_PER_S = 10.0


class LineLimit:
    """Admits a burst of lines of each kind. The first line of the next burst says how many were left out."""

    def __init__(self, clock: Callable[[], float], lines: int = _LINES, per_s: float = _PER_S) -> None:
        self._clock = clock
        self._lines = lines
        self._per_s = per_s
        self._windows: dict[Hashable, tuple[float, int]] = {}  # its start, and its number of lines

    def admit(self, kind: Hashable, line: str) -> str | None:
        """The line to show. None if there were already `lines` of its kind within `per_s` seconds."""
        now_s = self._clock()
        began_s, count = self._windows.get(kind, (now_s, 0))
        hidden = max(0, count - self._lines)
        if now_s - began_s >= self._per_s:
            began_s, count = now_s, 0
        self._windows[kind] = began_s, count + 1
        if count >= self._lines:
            return None
        return f"{line} (and {hidden} more like it before)" if hidden and not count else line
