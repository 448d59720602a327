"""How a process ends: with which status and, where it is asked to, in order and within a bound."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""Exit status of a process that a signal ended."""

BAD_INPUT = 2
"""Exit status of a process that ended with a ConfigError."""

DRAIN_S = 20.0
"""How long a process may take to end in order, from SIGTERM on or, where rounds are played, from SIGINT on."""

ONE_REQUEST_S = 1.0
"""SIGTERM that comes again within this time asks for nothing more: a scheduler sends it to all processes of a job."""

_STDERR = 2
_TOLD_WITHIN_S = 1.0


def asking_to_end() -> tuple[signal.Signals, ...]:
    """The signals that ask for an end in order, besides Ctrl-C: SIGTERM, and SIGHUP of a closed terminal or connection.

    SIGHUP is left alone where it is ignored, as nohup has it.
    """
    hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGHUP) if hears_hangup else (signal.SIGTERM,)


def end_within(limit_s: float, status: int = INTERRUPTED) -> threading.Timer:
    """End this process with `status` after `limit_s`, unless the timer returned is cancelled before.

    It loses no more than kill -9 does: nothing that was committed.
    """
    timer = threading.Timer(limit_s, _end, (limit_s, status))
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, within `DRAIN_S`, for the time of the block.

    Without a handler, SIGTERM would end the process without any order, and process 1 of a container not at all.
    """
    timers: list[threading.Timer] = []

    def interrupt(*_: object) -> None:
        timers.append(end_within(DRAIN_S))
        signal.raise_signal(signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # where `lifetime.start` held it back

    try:
        with signals_to(interrupt, *asking_to_end()):
            yield
    finally:
        for timer in timers:
            timer.cancel()


def ask_to_end(pid: int, number: int) -> None:
    """Send SIGTERM to a process that `lifetime.start` started, and let it know by which signal it was asked for.

    SIGINT and SIGHUP are held back there, so they stay pending for `asked_by`.
    """
    with suppress(ProcessLookupError):  # it has ended meanwhile
        for one in dict.fromkeys((number, signal.SIGTERM)):
            os.kill(pid, one)


def asked_by(number: signal.Signals) -> signal.Signals:
    """The signal that asked for the end that `number` has brought: of `ask_to_end`, or from the terminal as well."""
    pending = signal.sigpending()
    held = (each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN)
    return next((each for each in held if each in pending), number)


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Handle these signals by `handler` for the time of the block; nothing changes in a thread besides the main one.

    Python runs handlers in the main thread alone, and lets no other set them.
    """
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
    # Past `sys.stderr`, which may leave it to a thread that ends here; a reader that takes nothing keeps nothing alive.
    telling = threading.Thread(target=os.write, args=(_STDERR, line.encode()), daemon=True)
    telling.start()
    telling.join(_TOLD_WITHIN_S)
    os._exit(status)
