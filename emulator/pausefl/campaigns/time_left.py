"""How long a campaign will take."""

import time
from collections.abc import Callable


class TimeLeft:
    """The mean time of the runs that were played from their first round on, and what it says of those to come."""

    def __init__(self, at_once: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """`at_once`: how many runs are played at a time."""
        self._at_once = at_once
        self._clock = clock
        self._durations_s: list[float] = []
        self._began_s: dict[str, float] = {}
        self._resumed: set[str] = set()

    def began(self, name: str, *, is_resumed: bool = False) -> None:
        """Note that a run has begun; one that goes on with rounds played before says nothing of the others."""
        self._began_s[name] = self._clock()
        if is_resumed:
            self._resumed.add(name)

    def ended(self, name: str) -> None:
        """Note that it has ended."""
        duration_s = self._clock() - self._began_s.pop(name)
        if name not in self._resumed:
            self._durations_s.append(duration_s)

    def said(self, n_waiting: int) -> str:
        """ ", about 3 min left" for so many runs that have not begun, besides those under way.

        Empty for none, and before there is a mean.
        """
        n_left = n_waiting + len(self._began_s)
        if not (self._durations_s and n_left):
            return ""
        run_s, now_s = sum(self._durations_s) / len(self._durations_s), self._clock()
        under_way_s = sum(max(0.0, run_s - (now_s - began_s)) for began_s in self._began_s.values())
        return f", about {in_words((n_waiting * run_s + under_way_s) / min(self._at_once, n_left))} left"


def in_words(duration_s: float) -> str:
    """A duration as people say it: "2 min", "1.7 h"."""
    minutes = duration_s / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{max(minutes, 1):.0f} min"
