"""How long work takes: as long as it takes, or as long as an emulated device is said to need."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from pausefl_client.training.withdrawal import job_at_hand, stop_if_withdrawn

Result = TypeVar("Result")


class TrainingPace(Protocol):
    """The time of a trainer's thread."""

    def time_s(self) -> float:
        """Seconds on a clock that only goes forward."""

    def wait(self, wait_s: float) -> None:
        """Return after so many seconds; Withdrawn at once when the server waits for the result no more."""

    def compute(self, compute_s: float) -> None:
        """Return after so many seconds of computing; Withdrawn as in `wait`."""

    def during(self, duration_s: float, work: Callable[[], Result]) -> Result:
        """Do the work, and return no earlier than `duration_s` after it was begun; Withdrawn as in `wait`."""


def _nothing() -> None:
    """Do nothing."""


class RealPace:
    """Time as it passes."""

    def __init__(self, before_wait: Callable[[], None] = _nothing) -> None:
        """`before_wait` is called whenever there is nothing to compute for a while."""
        self._before_wait = before_wait

    def time_s(self) -> float:
        return time.monotonic()

    def wait(self, wait_s: float) -> None:
        if wait_s > 0:
            self._before_wait()
            withdrawn = threading.Event()
            with job_at_hand().telling(withdrawn.set):
                withdrawn.wait(wait_s)
        stop_if_withdrawn()

    def compute(self, compute_s: float) -> None:
        end_s = time.thread_time() + compute_s  # a stopped process spends none
        while time.thread_time() < end_s:
            stop_if_withdrawn()

    def during(self, duration_s: float, work: Callable[[], Result]) -> Result:
        due_s = time.monotonic() + duration_s
        result = work()
        self.wait(due_s - time.monotonic())
        return result


_pace: ContextVar[TrainingPace] = ContextVar("pace", default=RealPace())  # noqa: B039 - it has no state


def pace() -> TrainingPace:
    """The pace of this thread."""
    return _pace.get()


@contextmanager
def paced_by(other: TrainingPace) -> Iterator[None]:
    """Within the block and in this thread, `pace` returns `other`."""
    token = _pace.set(other)
    try:
        yield
    finally:
        _pace.reset(token)
