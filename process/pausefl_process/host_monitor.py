"""How well a host keeps time, measured by itself: a stalled event loop or a stolen processor spoils every latency."""

import asyncio
import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Often enough to see a stall that would matter, seldom enough to cost a thousandth of a core.
_PROBE_EVERY_S = 0.05
# Waking the thread for every exchange would cost a short one more than the probes do.
_LINGER_S = 1.0
# The kernel counts processor time in ticks of 10 ms: shares over less than a second would be noise.
_STEAL_OVER_S = 1.0
_NEVER_S = float("inf")
# Of values that come in no order, a million leave some fourteen.
_MOST_PEAKS = 1000
_PROC_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a host did to the measurements made on it within some window; all zero where nothing was seen."""

    loop_lag_s: float = 0.0
    """The longest that a callback which was due waited for the event loop."""
    timer_overshoot_s: float = 0.0
    """The most by which a sleep took too long."""
    steal_share: float = 0.0
    """Share of the machine's processor time that the hypervisor gave to others; 0 where the kernel does not say."""
    compute_share: float = 0.0
    """Share of the window that went to computing: on a client host queue, training and privatising of the exchange,
    on the server the processor time of its process."""


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


class HostWatch(Protocol):
    """Who looks at this host while something is measured on it."""

    def watching(self) -> AbstractContextManager[None]:
        """Look at least until the end of the block."""

    def report(self, since_s: float, compute_s: float) -> HostReport:
        """The worst that was seen since then, and the share that `compute_s` is of that time."""


class ClosableWatch(HostWatch, Protocol):
    """Watches the host until it is closed."""

    def close(self) -> None:
        """Watch no more."""


class Unwatched:
    """Stands in for a monitor where none is wanted: its reports are all zero."""

    def watching(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def report(self, since_s: float, compute_s: float) -> HostReport:
        """All zero."""
        del since_s, compute_s
        return HostReport()

    def close(self) -> None:
        """Do nothing."""


UNWATCHED = Unwatched()


class HostMonitor(AbstractContextManager[None]):
    """Probes this process's timers and event loop from a thread of its own, inside `watching` blocks."""

    def __init__(self) -> None:
        """Belongs to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._steal = StealMeter(_PROC_STAT)
        self.n_probes = 0
        """How many probes the event loop has answered."""
        self._lags_s, self._overshoots_s, self._steals = Peaks(), Peaks(), Peaks()
        self._due_s = _NEVER_S  # when the thread's sleep is to end
        self._woke_s = _NEVER_S  # since when the event loop has been due to answer
        self._watchers = 0
        self._unwatched_since_s = time.monotonic()
        self.is_parked = False
        """Whether the thread sleeps until there is a watcher."""
        self._wanted = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="host-monitor", daemon=True)
        self._thread.start()

    def watching(self) -> AbstractContextManager[None]:
        """Probe at least until the end of the block."""
        return self

    def __enter__(self) -> None:
        self._watchers += 1
        if self.is_parked:
            self._wanted.set()

    def __exit__(self, *_: object) -> None:
        self._watchers -= 1
        self._unwatched_since_s = time.monotonic()

    def report(self, since_s: float, compute_s: float) -> HostReport:
        """The worst that was seen since then (`time.monotonic`), and the share that `compute_s` is of that time."""
        now_s = time.monotonic()
        # A stall just before the window has delayed what the window began with.
        from_s = since_s - _PROBE_EVERY_S
        # The probe under way tells something already: a short exchange ends before it does.
        return HostReport(
            loop_lag_s=max(self._lags_s.since(from_s), now_s - self._woke_s),
            timer_overshoot_s=max(self._overshoots_s.since(from_s), now_s - self._due_s),
            steal_share=self._steals.since(from_s),
            compute_share=compute_s / max(now_s - since_s, 1e-9),
        )

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            if not self._watchers and time.monotonic() - self._unwatched_since_s > _LINGER_S:
                self._park()
                continue
            self._due_s = due_s = time.monotonic() + _PROBE_EVERY_S
            time.sleep(_PROBE_EVERY_S)
            woke_s = time.monotonic()
            self._due_s = _NEVER_S
            if self._woke_s != _NEVER_S:
                continue  # the event loop has yet to answer the probe before
            self._woke_s = woke_s
            try:
                self._loop.call_soon_threadsafe(self._note, woke_s, woke_s - due_s, self._steal.share(woke_s))
            except RuntimeError:  # the loop has ended before its monitor
                return

    def _park(self) -> None:
        self._wanted.clear()
        self.is_parked = True
        # A watcher that came since the last look saw no parked thread to wake.
        if not (self._watchers or self._closed):
            self._wanted.wait()
        self.is_parked = False

    def _note(self, woke_s: float, overshoot_s: float, steal_share: float) -> None:
        now_s, self._woke_s = time.monotonic(), _NEVER_S
        self._lags_s.add(now_s, now_s - woke_s)
        self._overshoots_s.add(now_s, overshoot_s)
        self._steals.add(now_s, steal_share)
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
