"""Jobs on their way through a client: their downloads, and which of them the server has withdrawn."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from pausefl_client.privacy.release import Released
from pausefl_client.training.withdrawal import Withdrawn
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Assembler

Result = TypeVar("Result")


@dataclass(slots=True)
class Download:
    """A job whose model is on its way in."""

    job: pb.Job
    frames: Assembler
    first_s: float
    """When the first frame came."""
    last_s: float
    withdrawn: asyncio.Event
    """Set when the server waits for this job no longer. Other threads may read it."""

    async def unless_withdrawn(self, wait: Coroutine[Any, Any, Result]) -> Result:
        """Wait for `wait`; Withdrawn, and it is cancelled, when the job is withdrawn first."""
        waiting = asyncio.ensure_future(wait)
        withdrawn = asyncio.ensure_future(self.withdrawn.wait())
        try:
            await asyncio.wait({waiting, withdrawn}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise Withdrawn("the job was withdrawn")
            return waiting.result()
        finally:
            waiting.cancel()
            withdrawn.cancel()


@dataclass(frozen=True, slots=True)
class Work:
    """What the trainer's thread did with a job, and how long each part took."""

    released: Released
    loss: float | None
    queue_s: float = 0.0
    train_s: float = 0.0
    privatise_s: float = 0.0
    is_resent: bool = False
    """True: it was released before, in an exchange of which the server did not get the answer."""


class Withdrawals:
    """The jobs of this client that have no answer yet, over all its streams: each can be withdrawn."""

    def __init__(self) -> None:
        self._events: dict[tuple[int, int], asyncio.Event] = {}

    def event(self, job: pb.Job) -> asyncio.Event:
        """Set once the job is withdrawn; a job that is given again after that has a new one."""
        key = job.round, job.attempt
        if key not in self._events or self._events[key].is_set():
            self._events[key] = asyncio.Event()
        return self._events[key]

    def withdraw(self, message: pb.Withdraw) -> None:
        """Take a job back; nothing happens where it is unknown or answered."""
        if (event := self._events.get((message.round, message.attempt))) is not None:
            event.set()

    def answered(self, job: pb.Job) -> None:
        """Forget a job, which can be withdrawn no more."""
        self._events.pop((job.round, job.attempt), None)


def awaitable(submitted: "Future[Work]") -> "asyncio.Future[Work]":
    """For work that was done at once, without the detour by which other threads wake the event loop."""
    if not submitted.done() or submitted.exception() is not None:
        return asyncio.wrap_future(submitted)
    future: asyncio.Future[Work] = asyncio.get_running_loop().create_future()
    future.set_result(submitted.result())
    return future
