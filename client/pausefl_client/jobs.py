"""A client's jobs: their downloads, which of them can be withdrawn, the work on them, and their answers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from pausefl_client.privacy.release import Released
from pausefl_client.training.withdrawal import Withdrawal
from pausefl_process.plugins import OWN_CODE_ERRORS, for_future
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Assembler

Result = TypeVar("Result")

# More than can be unanswered at a time: the session's queue holds four, and work of a broken stream may still go on.
_MOST_WITHDRAWABLE = 8

Expecting = Callable[[str, int, str], AbstractContextManager[None]]
"""(client id, round, digest of the round's model) -> a context that lasts while the client waits for or does the job.
"""


@dataclass(slots=True)
class Download:
    """A job whose model is being received."""

    job: pb.Job
    frames: Assembler
    first_s: float
    """When the first frame arrived."""
    last_s: float
    """When the last frame so far arrived."""
    withdrawn: Withdrawal


@dataclass(frozen=True, slots=True)
class Work:
    """The result of the trainer's thread for a job, and how long each part took."""

    released: Released
    loss: float | None
    queue_s: float = 0.0
    train_s: float = 0.0
    privatise_s: float = 0.0
    is_resent: bool = False
    """Whether the update was released in an earlier exchange, whose answer the server did not receive."""


class Withdrawals:
    """The last jobs of this client, over all its streams. For an answered one, a withdrawal has no effect."""

    def __init__(self) -> None:
        self._of_job: dict[tuple[int, int], Withdrawal] = {}

    def begin(self, job: pb.Job) -> Withdrawal:
        """Register a job and return its withdrawal. A job that is sent again after it was withdrawn gets a new one."""
        key = job.round, job.attempt
        if key not in self._of_job or self._of_job[key].is_set():
            self._of_job[key] = Withdrawal()
            if len(self._of_job) > _MOST_WITHDRAWABLE:
                del self._of_job[next(iter(self._of_job))]  # the oldest
        return self._of_job[key]

    def withdraw(self, message: pb.Withdraw) -> None:
        """Withdraw a job. Nothing happens if it is unknown."""
        if (withdrawal := self._of_job.get((message.round, message.attempt))) is not None:
            withdrawal.set()

    def withdraw_all(self) -> None:
        """Withdraw every job. Called when the client ends, so that it need not wait for its work."""
        for withdrawal in self._of_job.values():
            withdrawal.set()


@dataclass(frozen=True, slots=True)
class AnsweredJob:
    """One answered job, in numbers that the data holder may watch."""

    client_id: str
    status: str
    """"ok"; "resent" if the same bytes were sent again; else why there was no update, named as in the protocol's Status
    (lower case), or "not_finite"."""
    result: pb.Result
    """The answer. Its times are 0 if there was no update."""


OnAnswered = Callable[[AnsweredJob], None]
"""Called with each job after its answer was sent."""


def computed(executor: Executor | None, work: Callable[..., Result], *arguments: Any) -> "asyncio.Future[Result]":
    """A future of the work, done by the executor. Without one, the work is done here and the future is already done."""
    if executor is not None:
        return asyncio.wrap_future(executor.submit(for_future, work, *arguments))
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(for_future(work, *arguments))
    except OWN_CODE_ERRORS as error:
        future.set_exception(error)
    return future
