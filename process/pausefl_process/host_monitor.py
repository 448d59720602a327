"""How well a host keeps time, measured by itself: a stalled event loop, a stop or a sleep spoils every latency.

All times are awake seconds, those of CLOCK_MONOTONIC: a machine that sleeps neither measures nor waits meanwhile. This
suits deadlines, rests and the tries to reach a server: what a process waits for can happen only while it is awake. If a
whole emulation sleeps on one laptop, its latencies stay what they were. A sleep is seen beside them: CLOCK_BOOTTIME
counts it, and CLOCK_MONOTONIC does not.
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

Clock = Callable[[], float]

# Often enough to see a stall that would matter, seldom enough to cost a thousandth of a core.
_PROBE_EVERY_S, _IDLE_PROBE_EVERY_S = 0.05, 0.08
# Waking the event loop for every exchange would cost a short one more than the probes do.
_LINGER_S = 1.0
# The kernel counts processor time in ticks of 10 ms: shares over less than a second would be noise.
_STEAL_OVER_S = 1.0
_NEVER_S = float("inf")
# Of values that come in no order, a million leave some fourteen.
_MOST_PEAKS = 1000
_PROC_STAT = Path("/proc/stat")
STOP_S = 0.2
"""A shorter one is taken for load, as a slow page fault is. A stop of 0.3 s is seen: up to 0.08 s of it may
lie within the thread's own sleep."""
# Far more than what lies between two readings of clocks, far less than any machine sleeps.
_LEAST_SLEEP_S = 0.01
# How long a report waits for the probe that tells a stop from load: the thread is due, and has to get a processor.
_PROBE_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class HostReport:
    """The host's interference with measurements within some window; all zero where nothing was seen."""

    loop_lag_s: float = 0.0
    """The longest that a callback which was due waited for the event loop."""
    timer_overshoot_s: float = 0.0
    """The most by which a sleep took too long."""
    steal_share: float = 0.0
    """Share of the machine's processor time that the hypervisor gave to others; 0 where the kernel does not say."""
    compute_share: float = 0.0
    """Share of the window that went to computing: on a client host queue, training and privatising of the exchange,
    on the server the processor time of its process."""
    stopped_s: float = 0.0
    """How long the process stood still: it neither ran nor waited for a processor."""
    suspended_s: float = 0.0
    """How long the machine slept."""

    @property
    def stood_still_s(self) -> float:
        """By a stop or a sleep."""
        return self.stopped_s + self.suspended_s


class Peaks:
    """The greatest of some values since any moment in the past."""

    def __init__(self) -> None:
        # A value that a later one reaches is the greatest of no time up to now: the rest fall, and are few.
        self._falling: deque[tuple[float, float]] = deque(maxlen=_MOST_PEAKS)

    def add(self, at_s: float, value: float) -> None:
        """Note a value, later than those before."""
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((at_s, value))

    def since(self, from_s: float) -> float:
        """The greatest value since then; 0 where there is none."""
        for at_s, value in self._falling:
            if at_s >= from_s:
                return value
        return 0.0


class HostWatch:
    """Looks at a host while something is measured on it. This one looks at nothing: its reports are all zero."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        """The seconds that windows begin and end at."""

    def watching(self) -> AbstractContextManager[None]:
        """Look at the event loop at least until the end of the block."""
        return nullcontext()

    def report(self, since_s: float, compute_s: float) -> HostReport:
        """The worst that was seen since then (`clock`), and the share that `compute_s` is of that time."""
        return HostReport()

    def stood_still_s(self, since_s: float, until_s: float) -> float:
        """How long the process was stopped or its machine slept between these times."""
        return 0.0

    def close(self) -> None:
        """Look no more."""


UNWATCHED = HostWatch()


def _real_s() -> float:
    """Seconds that also count while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class TurnMeter:
    """How long the thread that made it has been at work, or waited for its turn.

    The kernel knows for how long it ran and waited for a processor (/proc/thread-self/schedstat), and how often it got
    one. While it waits for the interpreter, which another thread holds, it looks again at each switch interval.
    """

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # not Linux
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if not self._read_s():  # a kernel that does not count says 0 of everything
            self.close()
        self._before_s = self._read_s()

    def spent_s(self) -> float:
        """The seconds since it was last asked."""
        before_s, self._before_s = self._before_s, self._read_s()
        return self._before_s - before_s

    def close(self) -> None:
        """Close what is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_s(self) -> float:
        if self._file < 0:
            return time.process_time()  # of all threads: while one of them runs, the others may have to wait
        ran_ns, waited_ns, turns = map(int, os.pread(self._file, 100, 0).split())
        return (ran_ns + waited_ns) / 1e9 + turns * sys.getswitchinterval()


class HostMonitor(HostWatch, AbstractContextManager[None]):
    """Probes this process's timers from a thread of its own, and inside `watching` blocks its event loop as well."""

    def __init__(self, clock: Clock = time.monotonic, real_s: Clock = _real_s) -> None:
        """Belongs to the running event loop. `real_s` counts on while the machine sleeps, `clock` does not."""
        super().__init__(self._look)
        self._loop = asyncio.get_running_loop()
        self._read_s, self._real_s = clock, real_s
        self._steal = StealMeter(_PROC_STAT)
        self.n_probes = 0
        """How many probes the event loop has answered."""
        self._guard = threading.Lock()  # held for what both threads write or read piece by piece
        self._lags_s, self._overshoots_s, self._steals = Peaks(), Peaks(), Peaks()
        self._still: deque[tuple[float, HostReport]] = deque(maxlen=_MOST_PEAKS)  # when it ended, and what it was
        self._slept_s = self._offset_s()
        self._alive_s = self._probed_s = clock()  # when the process, and the thread, last looked at the clock
        self._silence_s, self._silence_end_s = 0.0, self._alive_s  # the longest between two looks since the last probe
        self._probe_every_s = _PROBE_EVERY_S
        self._woke_s = _NEVER_S  # since when the event loop has been due to answer
        self._watchers = 0
        self._unwatched_since_s = self._alive_s
        self._has_probed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="host-monitor", daemon=True)
        self._thread.start()
        self._has_probed.wait(_PROBE_WITHIN_S)  # who counts open files from now on has counted the thread's

    def _look(self) -> float:
        """The time. A sleep before it is on record, and no stop is taken for one that lies on the other side of it."""
        now_s = self._read_s()
        if self._real_s() - now_s - self._slept_s > _LEAST_SLEEP_S:
            self._note_sleep(now_s)
        if now_s - self._alive_s > self._silence_s:
            self._silence_s, self._silence_end_s = now_s - self._alive_s, now_s
        self._alive_s = max(self._alive_s, now_s)
        return now_s

    def watching(self) -> AbstractContextManager[None]:
        """Probe the event loop at least until the end of the block."""
        return self

    def __enter__(self) -> None:
        self._watchers += 1

    def __exit__(self, *_: object) -> None:
        self._watchers -= 1
        self._unwatched_since_s = self._read_s()

    def report(self, since_s: float, compute_s: float) -> HostReport:
        """The worst that was seen since then (`clock`), and the share that `compute_s` is of that time."""
        now_s = self.clock()
        if now_s - self._probed_s > STOP_S + self._probe_every_s:
            self._has_probed.clear()
            self._has_probed.wait(_PROBE_WITHIN_S)
        # A stall just before the window has delayed what the window began with.
        from_s = since_s - _PROBE_EVERY_S
        with self._guard:
            still = [what for ended_s, what in self._still if ended_s > since_s]
            # The probe under way tells something already: a short exchange ends before it does.
            return HostReport(
                loop_lag_s=max(self._lags_s.since(from_s), now_s - self._woke_s),
                timer_overshoot_s=max(self._overshoots_s.since(from_s), now_s - self._probed_s - self._probe_every_s),
                steal_share=self._steals.since(from_s),
                compute_share=compute_s / max(now_s - since_s, 1e-9),
                stopped_s=sum(what.stopped_s for what in still),
                suspended_s=sum(what.suspended_s for what in still),
            )

    def stood_still_s(self, since_s: float, until_s: float) -> float:
        """How long the process was stopped or its machine slept between these times."""
        with self._guard:
            return sum(what.stood_still_s for ended_s, what in self._still if since_s < ended_s <= until_s)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._thread.join()

    def _run(self) -> None:
        with closing(TurnMeter()) as turns:
            self._probed_s = self.clock()  # the thread may have waited for its first turn
            self._has_probed.set()
            self._probe_on(turns)

    def _probe_on(self, turns: TurnMeter) -> None:
        while not self._closed:
            time.sleep(self._probe_every_s)
            woke_s = self._probe(turns)
            is_watched = self._watchers > 0 or woke_s - self._unwatched_since_s <= _LINGER_S
            self._probe_every_s = _PROBE_EVERY_S if is_watched else _IDLE_PROBE_EVERY_S
            if self._woke_s != _NEVER_S or not is_watched:
                continue  # the event loop has yet to answer the probe before, or nothing is measured on it
            self._woke_s = woke_s
            try:
                self._loop.call_soon_threadsafe(self._note_lag, woke_s)
            except RuntimeError:  # the loop has ended before its monitor
                return

    def _probe(self, turns: TurnMeter) -> float:
        """Put on record, before anything else is done, what this thread's sleep came to."""
        woke_s, spent_s = self.clock(), turns.spent_s()  # at once: another thread's turn in between would be a stop
        ended_s, self._silence_s = self._silence_end_s, 0.0
        steal_share = self._steal.share(woke_s)
        overshoot_s = woke_s - self._probed_s - self._probe_every_s
        stopped_s = overshoot_s - spent_s
        with self._guard:
            if stopped_s > STOP_S:
                self._still.append((ended_s, HostReport(stopped_s=stopped_s)))
            self._overshoots_s.add(woke_s, overshoot_s)
            self._steals.add(woke_s, steal_share)
            self._probed_s = woke_s
        self._has_probed.set()
        return woke_s

    def _note_sleep(self, now_s: float) -> None:
        with self._guard:
            slept_s = self._offset_s() - self._slept_s
            if slept_s > _LEAST_SLEEP_S:  # this thread was not merely put aside between two clocks
                self._slept_s += slept_s
                self._still.append((now_s, HostReport(suspended_s=slept_s)))

    def _offset_s(self) -> float:
        """How long the machine has slept in all; of three readings the one that was interrupted least."""
        return min(-(self._read_s() - self._real_s()) for _ in range(3))

    def _note_lag(self, woke_s: float) -> None:
        now_s, self._woke_s = self._read_s(), _NEVER_S
        with self._guard:
            self._lags_s.add(now_s, now_s - woke_s)
        self.n_probes += 1


class StealMeter:
    """The share of processor time stolen over about the last second, from /proc/stat (see proc(5))."""

    def __init__(self, stat: Path) -> None:
        self._stat = stat if stat.exists() else None
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=2)
        self._share = 0.0

    def share(self, now_s: float) -> float:
        """Reads the kernel's counters once a second at most; the share before where they cannot be read just now."""
        if self._stat is not None and (not self._marks or now_s - self._marks[-1][0] >= _STEAL_OVER_S):
            with suppress(OSError):  # as of too many open files
                self._read(self._stat, now_s)
        return self._share

    def _read(self, stat: Path, now_s: float) -> None:
        with stat.open("rb") as file:
            # cpu user nice system idle iowait irq softirq steal guest guest_nice; user includes guest.
            ticks = [int(count) for count in file.readline().split()[1:9]]
        self._marks.append((now_s, ticks[7] if len(ticks) > 7 else 0, sum(ticks)))
        (_, stolen, total), (_, stolen_now, total_now) = self._marks[0], self._marks[-1]
        self._share = (stolen_now - stolen) / max(total_now - total, 1)
