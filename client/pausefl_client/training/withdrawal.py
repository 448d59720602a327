"""How training is notified that the server has withdrawn its job."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pausefl_proto.errors import PauseflError

Result = TypeVar("Result")


class Withdrawn(PauseflError):
    """The server withdrew the job before a release was charged for it."""


class Withdrawal:
    """Whether the server has withdrawn one job, that is, no longer waits for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._hearers: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether the job is withdrawn. Any thread may call it."""
        return self._is_set

    def set(self) -> None:
        """Withdraw the job, and end the waits in `guard` and in its trainer. Call it in the event loop only."""
        if not self._is_set:
            self._is_set = True
            for hear in tuple(self._hearers):
                hear()

    @contextmanager
    def telling(self, hear: Callable[[], None]) -> Iterator[None]:
        """In the block, call `hear` when the job is withdrawn, or at once if it is already; maybe more than once."""
        self._hearers.append(hear)
        try:
            if self._is_set:  # checked after the append, so `hear` is called whichever thread is first
                hear()
            yield
        finally:
            self._hearers.remove(hear)

    async def guard(self, wait: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `wait`. If the job is withdrawn first, cancel `wait` and raise Withdrawn."""
        limit = asyncio.timeout(None)
        try:  # no asyncio task is started: its cost would show on a link that holds nothing back
            async with limit:
                with self.telling(lambda: limit.reschedule(0.0)):  # a time in the past, so it expires now
                    return await wait
        except TimeoutError:
            if limit.expired():
                raise Withdrawn("the job was withdrawn") from None
            raise


LASTING = Withdrawal()
"""Of a job that is never withdrawn."""

_job: ContextVar[Withdrawal] = ContextVar("job", default=LASTING)


@contextmanager
def withdrawable(job: Withdrawal) -> Iterator[None]:
    """Declare that this thread works on the job of this withdrawal within the block."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


def job_at_hand() -> Withdrawal:
    """The withdrawal of the job that this thread works on."""
    return _job.get()


def stop_if_withdrawn() -> None:
    """Raise Withdrawn if the job that this thread works on has been withdrawn. Trainers call it once a step."""
    if _job.get().is_set():
        raise Withdrawn("the job was withdrawn")
