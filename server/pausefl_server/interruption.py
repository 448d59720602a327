"""Ends a run in order when a signal asks for it."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pausefl_process.ending import DRAIN_S, asked_by, end_within


class Interruption:
    """Whether the run was asked to end, and the first reason given."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""
        self._limit: threading.Timer | None = None

    def ask(self, reason: str) -> None:
        """Ask for the end, which then comes within DRAIN_S; only the first reason is kept."""
        self.reason = self.reason or reason
        self._limit = self._limit or end_within(DRAIN_S)
        self.asked.set()

    def over(self) -> None:
        """The end has come."""
        if self._limit is not None:
            self._limit.cancel()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """The first SIGINT and the first SIGTERM ask for the end, in vain where it has come; a second ends all at once.

    Both may come of one Ctrl-C: from the terminal, and from the process that started this one.
    """
    loop, interruption = asyncio.get_running_loop(), Interruption()

    def interrupt(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        interruption.ask(f"stopped by {asked_by(number).name}")

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        yield interruption
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        interruption.over()
