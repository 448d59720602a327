"""Ends a run in order when a signal asks for it."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pausefl_process.ending import DRAIN_S, ONE_REQUEST_S, asked_by, asking_to_end, end_within


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
        interruption.ask(f"stopped by {asked_by(number).name}")

    numbers = (signal.SIGINT, *asking_to_end())
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        yield interruption
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        interruption.over()
