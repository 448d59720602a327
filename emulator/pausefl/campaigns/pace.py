"""How long a campaign will take."""

import time
from collections.abc import Callable


class Pace:
    """The mean time of the runs that were played since it was made, one after the other or side by side."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._n_played = 0

    def note_played(self) -> None:
        """Count a run that has ended."""
        self._n_played += 1

    def left(self, n_runs: int) -> str:
        """ ", about 3 min left" for so many runs; empty for none, and before the first was played."""
        if not self._n_played or not n_runs:
            return ""
        run_s = (self._clock() - self._began_s) / self._n_played
        return f", about {in_words(run_s * n_runs)} left"


def in_words(duration_s: float) -> str:
    """A duration as people say it: "2 min", "1.7 h"."""
    minutes = duration_s / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{max(minutes, 1):.0f} min"
