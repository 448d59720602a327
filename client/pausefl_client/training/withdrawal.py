"""How training is notified that the server has withdrawn its job."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from pausefl_proto.errors import PauseflError


class Withdrawn(PauseflError):
    """The server withdrew the job before a release was charged for it."""


class Withdrawable(Protocol):
    """A job that may be withdrawn while it is worked on."""

    def is_set(self) -> bool:
        """Whether the job is withdrawn. Any thread may call it."""

    def telling(self, hear: Callable[[], None]) -> AbstractContextManager[None]:
        """In the block, call `hear` when the job is withdrawn, or at once if it is already; maybe more than once."""


class _Lasting:
    def is_set(self) -> bool:
        return False

    def telling(self, hear: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()


LASTING: Withdrawable = _Lasting()
"""A job that is never withdrawn."""

_job: ContextVar[Withdrawable] = ContextVar("job", default=LASTING)


@contextmanager
def withdrawable(job: Withdrawable) -> Iterator[None]:
    """Declare that this thread works on `job` within the block."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


def job_at_hand() -> Withdrawable:
    """The job that this thread works on."""
    return _job.get()


def stop_if_withdrawn() -> None:
    """Raise Withdrawn if the job that this thread works on has been withdrawn. Trainers call it once a step."""
    if _job.get().is_set():
        raise Withdrawn("the job was withdrawn")
