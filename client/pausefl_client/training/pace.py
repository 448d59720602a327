"""The pace of training: the clock of a trainer's thread and its waits, in real or virtual time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from pausefl_client.training.withdrawal import job_at_hand, stop_if_withdrawn

Result = TypeVar("Result")


class TrainingPace:
    """The clock of a trainer's thread, and its waits. These are of real time; a virtual clock has its own."""

    def __init__(self, before_wait: Callable[[], None] = lambda: None) -> None:
        """`before_wait` is called before each wait in which the thread does not compute."""
        self._before_wait = before_wait

    def time_s(self) -> float:
        """The time in seconds, on a monotonic clock."""
        return time.monotonic()

    def wait(self, wait_s: float) -> None:
        """Return after `wait_s` seconds. Raises Withdrawn at once when the job is withdrawn."""
        if wait_s > 0:
            self._before_wait()
            withdrawn = threading.Event()
            with job_at_hand().telling(withdrawn.set):
                withdrawn.wait(wait_s)
        stop_if_withdrawn()

    def compute(self, compute_s: float) -> None:
        """Return after `compute_s` seconds of computing. Raises Withdrawn as `wait` does."""
        end_s = time.thread_time() + compute_s  # CPU time: a stopped process spends none
        while time.thread_time() < end_s:
            stop_if_withdrawn()

    def during(self, duration_s: float, work: Callable[[], Result]) -> Result:
        """Do the work, and return no earlier than `duration_s` after its start. Raises Withdrawn as `wait` does."""
        due_s = time.monotonic() + duration_s
        result = work()
        self.wait(due_s - time.monotonic())
        return result


_pace: ContextVar[TrainingPace] = ContextVar("pace", default=TrainingPace())  # noqa: B039 - it has no state


def pace() -> TrainingPace:
    """The pace of the current thread."""
    return _pace.get()


@contextmanager
def paced_by(other: TrainingPace) -> Iterator[None]:
    """Make `pace` return `other` within the block, in this thread."""
    token = _pace.set(other)
    try:
        yield
    finally:
        _pace.reset(token)
