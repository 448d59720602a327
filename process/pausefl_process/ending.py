"""How a process ends: its exit statuses, signals that ask it to end, and the time limit for an orderly end."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""The exit status of a process that a signal ended."""

BAD_INPUT = 2
"""The exit status of a process that ended with a ConfigError."""

DRAIN_S = 20.0
"""How long a process may take for an orderly end after SIGTERM, or after SIGINT while rounds are played."""

ONE_REQUEST_S = 1.0
"""A second SIGTERM within this time counts as the same request: a scheduler sends it to all processes of a job."""

_STDERR = 2
_TOLD_WITHIN_S = 1.0


def asking_to_end() -> tuple[signal.Signals, ...]:
    """The signals besides Ctrl-C that ask for an orderly end: SIGTERM, and SIGHUP unless it is ignored (nohup)."""
    hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGHUP) if hears_hangup else (signal.SIGTERM,)


def end_within(limit_s: float, status: int = INTERRUPTED) -> threading.Timer:
    """End this process with `status` after `limit_s`, like kill -9, unless the returned timer is cancelled first."""
    timer = threading.Timer(limit_s, _end, (limit_s, status))
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM and SIGHUP act like Ctrl-C during the block, and end the process after `DRAIN_S` at the latest.

    Without a handler, SIGTERM would end the process at once, and would not end process 1 of a container at all.
    """
    timers: list[threading.Timer] = []

    def interrupt(*_: object) -> None:
        timers.append(end_within(DRAIN_S))
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a script
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `lifetime.start` may have blocked it

    try:
        with signals_to(interrupt, *asking_to_end()):
            yield
    finally:
        for timer in timers:
            timer.cancel()


class Interruption:
    """Whether the run was asked to end, and the first reason given."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""
        self._limit: threading.Timer | None = None

    def ask(self, reason: str) -> None:
        """Ask the run to end, which it then does within DRAIN_S; only the first reason is kept."""
        self.reason = self.reason or reason
        self._limit = self._limit or end_within(DRAIN_S)
        self.asked.set()

    def over(self) -> None:
        """Note that the run has ended, and cancel the time limit on its end."""
        if self._limit is not None:
            self._limit.cancel()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let the first SIGINT, SIGTERM or SIGHUP ask the run to end; the same signal again ends the process at once.

    One Ctrl-C may cause two different signals: from the terminal, and from the process that started this one. Two
    SIGTERM within `ONE_REQUEST_S` count as one. A request has no effect where the run has already ended.
    """
    loop, interruption, heard_s = asyncio.get_running_loop(), Interruption(), dict[signal.Signals, float]()

    def interrupt(number: signal.Signals) -> None:
        is_again = number in heard_s and time.monotonic() > heard_s[number] + ONE_REQUEST_S
        if number != signal.SIGTERM or is_again:
            loop.remove_signal_handler(number)
        if is_again:
            signal.raise_signal(number)
        heard_s.setdefault(number, time.monotonic())
        interruption.ask(f"stopped by {_asked_by(number).name}")

    numbers = (signal.SIGINT, *asking_to_end())
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        yield interruption
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        interruption.over()


def ask_to_end(pid: int, number: int) -> None:
    """Send `number`, which stays pending for `_asked_by`, then SIGTERM, to a process that `lifetime.start` started."""
    with suppress(ProcessLookupError):  # the process has already ended
        for one in dict.fromkeys((number, signal.SIGTERM)):
            os.kill(pid, one)


def _asked_by(number: signal.Signals) -> signal.Signals:
    """The signal that asked for the end: one that `ask_to_end` or the terminal sent and is pending, else `number`."""
    pending = signal.sigpending()
    held = (each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN)
    return next((each for each in held if each in pending), number)


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Handle these signals by `handler` during the block, in the main thread. Others cannot, so nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _end(limit_s: float, status: int) -> None:
    line = f"pausefl: not at its end {limit_s:g} s after it was asked to end: ended at once\n"
    # Not by `sys.stderr`, which may use a thread that ends here. Within a time limit, as stderr's reader may be stuck.
    telling = threading.Thread(target=os.write, args=(_STDERR, line.encode()), daemon=True)
    telling.start()
    telling.join(_TOLD_WITHIN_S)
    os._exit(status)
