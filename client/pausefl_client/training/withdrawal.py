"""How training learns that the server no longer waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pausefl_proto.errors import PauseflError


class Withdrawn(PauseflError):
    """The server withdrew the job before a release was charged for it."""


def _never() -> bool:
    return False


_is_withdrawn: ContextVar[Callable[[], bool]] = ContextVar("is_withdrawn", default=_never)


@contextmanager
def withdrawable(is_withdrawn: Callable[[], bool]) -> Iterator[None]:
    """Within the block and in this thread, `stop_if_withdrawn` asks `is_withdrawn`."""
    token = _is_withdrawn.set(is_withdrawn)
    try:
        yield
    finally:
        _is_withdrawn.reset(token)


def stop_if_withdrawn() -> None:
    """Raise Withdrawn if the job that this thread works on has been withdrawn. Trainers call it once a step."""
    if _is_withdrawn.get()():
        raise Withdrawn("the job was withdrawn")
