"""How training learns that the server no longer waits for it."""

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
        """Whether it is withdrawn; any thread may ask."""

    def telling(self, hear: Callable[[], None]) -> AbstractContextManager[None]:
        """Within the block, call `hear` once the job is withdrawn: at once if it is, and more than once maybe."""


class _Lasting:
    def is_set(self) -> bool:
        return False

    def telling(self, hear: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()


LASTING: Withdrawable = _Lasting()
"""Work that is never withdrawn."""

_job: ContextVar[Withdrawable] = ContextVar("job", default=LASTING)


@contextmanager
def withdrawable(job: Withdrawable) -> Iterator[None]:
    """Within the block, this thread works on `job`."""
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
