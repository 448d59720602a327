"""The run's own clock, and what its host did to the measurements of a round."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pausefl_process.host_monitor import UNWATCHED, HostReport, HostWatch


@dataclass(frozen=True, slots=True)
class RoundStart:
    """When a round began, on two clocks."""

    at_s: float
    cpu_s: float


class RunStopwatch:
    """Times rounds. Its wall clock goes on where an interrupted run left off."""

    def __init__(self, monitor: HostWatch = UNWATCHED, clock: Callable[[], float] = time.monotonic) -> None:
        """`monitor` watches this host while rounds are played."""
        self._monitor = monitor
        self.clock = clock
        """The seconds that rounds are timed in."""
        self._began_s = math.nan  # when the run would have begun had it never been interrupted

    def watching(self) -> AbstractContextManager[None]:
        """Monitor the host until the end of the block."""
        return self._monitor.watching()

    def start_round(self, played_s: float) -> RoundStart:
        """Note that a round begins; `played_s` is the run's wall clock at the end of the round before."""
        if math.isnan(self._began_s):
            self._began_s = self.clock() - played_s
        return RoundStart(self.clock(), time.process_time())

    def wall_clock_s(self) -> float:
        """Seconds since the run began, without its interruptions."""
        return self.clock() - self._began_s

    def report(self, start: RoundStart) -> HostReport:
        """How well this host has kept time since the round began."""
        return self._monitor.report(start.at_s, time.process_time() - start.cpu_s)
