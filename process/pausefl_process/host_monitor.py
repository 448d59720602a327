"""Measures how well this host keeps time. A stalled event loop, a stopped process or a sleep spoils measured latencies.

All times are awake seconds, those of CLOCK_MONOTONIC: a machine that sleeps neither measures nor waits meanwhile. This
suits deadlines, rests and tries to reach a server: what a process waits for can only happen while it is awake. If a
whole emulation sleeps on one laptop, its latencies do not change. A sleep is detected separately: CLOCK_BOOTTIME counts
it, and CLOCK_MONOTONIC does not.
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

Clock = Callable[[], float]

# Often enough to see a stall that matters, rarely enough to cost only a thousandth of a core.
_PROBE_EVERY_S, _IDLE_PROBE_EVERY_S = 0.05, 0.08
# How long probes of the event loop go on after an exchange. To wake it anew for each short exchange would cost more.
_LINGER_S = 1.0
# The kernel counts CPU time in ticks of 10 ms, so shares over less than a second would be noise.
_STEAL_OVER_S = 1.0
_NEVER_S = float("inf")
# More than enough: of a million values in random order, `Peaks` keeps about fourteen.
_MOST_PEAKS = 1000
_PROC_STAT = Path("/proc/stat")
STOP_S = 0.2
"""The shortest silence that counts as a stop; a shorter one counts as load, such as a slow page fault. A stop of 0.3 s
is always detected: up to 0.08 s of it may fall into the monitor thread's own sleep."""
# Far more than the time between two readings of clocks, far less than any sleep of a machine.
_LEAST_SLEEP_S = 0.01
# How long a report waits for the probe that tells a stop from load. The probe is due, but its thread needs a CPU.
_PROBE_WITHIN_S = 1.0


@dataclass(frozen=True)
class HostReport:
    """The host's interference with measurements in a time window. All values are 0 if none was detected."""

    loop_lag_s: float = 0.0
    """The longest time that a due callback waited for the event loop."""
    timer_overshoot_s: float = 0.0
    """The longest time by which a sleep took too long."""
    steal_share: float = 0.0
    """The share of the machine's CPU time that the hypervisor gave to others. 0 if the kernel does not report it."""
    compute_share: float = 0.0
    """The share of the window spent computing. On a client host: queue, training and privatising, of the round trip. On
    the server: the CPU time of its process."""
    stopped_s: float = 0.0
    """How long the process was stopped: it neither ran nor waited for a CPU."""
    suspended_s: float = 0.0
    """How long the machine slept."""

    @property
    def stood_still_s(self) -> float:
        """How long the process stood still, because it was stopped or the machine slept."""
        return self.stopped_s + self.suspended_s


class Peaks:
    """Keeps values over time, to return the greatest value since any moment in the past."""

    def __init__(self) -> None:
        # A value that a later one reaches is dropped: it is never the greatest. The few others are in falling order.
        self._falling: deque[tuple[float, float]] = deque(maxlen=_MOST_PEAKS)

    def add(self, at_s: float, value: float) -> None:
        """Note a value. `at_s` must be later than those of earlier values."""
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((at_s, value))

    def since(self, from_s: float) -> float:
        """The greatest value since `from_s`. 0 if there is none."""
        for at_s, value in self._falling:
            if at_s >= from_s:
                return value
        return 0.0


class HostWatch:
    """Watches a host while something is measured on it. This base class watches nothing: its reports are all zero."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        """The clock, in seconds, by which windows begin and end."""

    def watching(self) -> AbstractContextManager[None]:
        """Watch the event loop at least until the end of the block."""
        return nullcontext()

    def report(self, since_s: float, compute_s: float) -> HostReport:
        """The greatest interference since `since_s` (by `clock`), and the share of `compute_s` in that time."""
        return HostReport()

    def stood_still_s(self, since_s: float, until_s: float) -> float:
        """How long the process was stopped or its machine slept between these times."""
        return 0.0

    def close(self) -> None:
        """Stop watching."""


UNWATCHED = HostWatch()


def _real_s() -> float:
    """The time in seconds on a clock that also counts while the machine sleeps, if the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class TurnMeter:
    """Measures how long its own thread (the one that made it) has run or waited for its turn to run.

    In /proc/thread-self/schedstat the kernel counts how long the thread ran and waited for a CPU, and how often it got
    one. While another thread holds the interpreter lock, this thread wakes up once per switch interval.
    """

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # not Linux
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if not self._read_s():  # a kernel that does not count says 0 of everything
            self.close()
        self._before_s = self._read_s()

    def spent_s(self) -> float:
        """The seconds that the thread ran or waited for its turn since the last call."""
        before_s, self._before_s = self._before_s, self._read_s()
        return self._before_s - before_s

    def close(self) -> None:
        """Close the kernel's file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_s(self) -> float:
        if self._file < 0:
            return time.process_time()  # CPU time of all threads: while one runs, the others may have to wait
        ran_ns, waited_ns, turns = map(int, os.pread(self._file, 100, 0).split())
        return (ran_ns + waited_ns) / 1e9 + turns * sys.getswitchinterval()


class HostMonitor(HostWatch):
    """Probes this process's timers from a separate thread, and within `watching` blocks also its event loop."""

    def __init__(self, clock: Clock = time.monotonic, real_s: Clock = _real_s) -> None:
        """Watch the running event loop. `real_s` also counts while the machine sleeps, `clock` does not."""
        super().__init__(self._look)
        self._loop = asyncio.get_running_loop()
        self._read_s, self._real_s = clock, real_s
        self._steal = StealMeter(_PROC_STAT)
        self.n_probes = 0
        """The number of probes that the event loop has answered."""
        self._guard = threading.Lock()  # held while both threads' shared values are read or written
        self._lags_s, self._overshoots_s, self._steals = Peaks(), Peaks(), Peaks()
        self._still: deque[tuple[float, HostReport]] = deque(maxlen=_MOST_PEAKS)  # end and report of each standstill
        self._slept_s = self._offset_s()
        self._alive_s = self._probed_s = clock()  # when the process, and the monitor's thread, last read the clock
        self._silence_s, self._silence_end_s = 0.0, self._alive_s  # longest gap between readings since the last probe
        self._probe_every_s = _PROBE_EVERY_S
        self._woke_s = _NEVER_S  # when the probe was sent that the event loop has not answered yet
        self._watchers = 0
        self._unwatched_since_s = self._alive_s
        self._has_probed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="host-monitor", daemon=True)
        self._thread.start()
        self._has_probed.wait(_PROBE_WITHIN_S)  # now the thread's files are open, so later counts include them

    def _look(self) -> float:
        """The time. A sleep before it is recorded now, and a stop before it is later not taken for one after it."""
        now_s = self._read_s()
        if self._real_s() - now_s - self._slept_s > _LEAST_SLEEP_S:
            self._note_sleep(now_s)
        if now_s - self._alive_s > self._silence_s:
            self._silence_s, self._silence_end_s = now_s - self._alive_s, now_s
        self._alive_s = max(self._alive_s, now_s)
        return now_s

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1
            self._unwatched_since_s = self._read_s()

    def report(self, since_s: float, compute_s: float) -> HostReport:
        now_s = self.clock()
        if now_s - self._probed_s > STOP_S + self._probe_every_s:
            self._has_probed.clear()
            self._has_probed.wait(_PROBE_WITHIN_S)
        # A stall just before the window may have delayed its beginning.
        from_s = since_s - _PROBE_EVERY_S
        with self._guard:
            still = [what for ended_s, what in self._still if ended_s > since_s]
            # The unfinished probe counts too, since a short exchange ends before it does.
            return HostReport(
                loop_lag_s=max(self._lags_s.since(from_s), now_s - self._woke_s),
                timer_overshoot_s=max(self._overshoots_s.since(from_s), now_s - self._probed_s - self._probe_every_s),
                steal_share=self._steals.since(from_s),
                compute_share=compute_s / max(now_s - since_s, 1e-9),
                stopped_s=sum(what.stopped_s for what in still),
                suspended_s=sum(what.suspended_s for what in still),
            )

    def stood_still_s(self, since_s: float, until_s: float) -> float:
        with self._guard:
            return sum(what.stood_still_s for ended_s, what in self._still if since_s < ended_s <= until_s)

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def _run(self) -> None:
        with closing(TurnMeter()) as turns:
            self._probed_s = self.clock()  # anew, since the thread may have waited before it started
            self._has_probed.set()
            while not self._closed:
                time.sleep(self._probe_every_s)
                woke_s = self._probe(turns)
                is_watched = self._watchers > 0 or woke_s - self._unwatched_since_s <= _LINGER_S
                self._probe_every_s = _PROBE_EVERY_S if is_watched else _IDLE_PROBE_EVERY_S
                if self._woke_s != _NEVER_S or not is_watched:
                    continue  # the event loop has not answered the last probe yet, or nothing is being measured
                self._woke_s = woke_s
                try:
                    self._loop.call_soon_threadsafe(self._note_lag, woke_s)
                except RuntimeError:  # the event loop was closed before its monitor
                    return

    def _probe(self, turns: TurnMeter) -> float:
        """Record by how much this thread's last sleep was too long, and return the time of waking."""
        woke_s, spent_s = self.clock(), turns.spent_s()  # at once: another thread's turn between would look like a stop
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
            if slept_s > _LEAST_SLEEP_S:  # otherwise the thread was only interrupted between two readings
                self._slept_s += slept_s
                self._still.append((now_s, HostReport(suspended_s=slept_s)))

    def _offset_s(self) -> float:
        """How long the machine has slept in all. The least of three readings, since an interruption adds to one."""
        return min(-(self._read_s() - self._real_s()) for _ in range(3))

    def _note_lag(self, woke_s: float) -> None:
        now_s, self._woke_s = self._read_s(), _NEVER_S
        with self._guard:
            self._lags_s.add(now_s, now_s - woke_s)
        self.n_probes += 1


class StealMeter:
    """The share of CPU time that the hypervisor stole over about the last second, from /proc/stat (see proc(5))."""

    def __init__(self, stat: Path) -> None:
        self._stat = stat
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=2)
        self._share = 0.0

    def share(self, now_s: float) -> float:
        """The share. The kernel's counters are read at most once a second; until then it is the share before."""
        if not self._marks or now_s - self._marks[-1][0] >= _STEAL_OVER_S:
            # There may be no such file, or too many open ones. The share then stays the one before.
            with suppress(OSError), self._stat.open("rb") as file:
                # The columns: cpu user nice system idle iowait irq softirq steal guest guest_nice. user includes guest.
                ticks = [int(count) for count in file.readline().split()[1:9]]
                self._marks.append((now_s, ticks[7] if len(ticks) > 7 else 0, sum(ticks)))
                (_, stolen, total), (_, stolen_now, total_now) = self._marks[0], self._marks[-1]
                self._share = (stolen_now - stolen) / max(total_now - total, 1)
        return self._share
