"""A client's jobs: their downloads, their withdrawal by the server, the work on them, and their results."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pausefl_client.privacy.release import Released
from pausefl_client.training.withdrawal import Withdrawn
from pausefl_process.plugins import OWN_CODE_ERRORS, for_future
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Assembler

Result = TypeVar("Result")

# More than can wait at a time. The limit keeps a server that sends ever more jobs from filling the memory.
_MOST_WITHDRAWABLE = 64

Expecting = Callable[[str, int, str], AbstractContextManager[None]]
"""(client id, round, digest of the round's model) -> a context that lasts while the client waits for or does the job.
"""


class Withdrawal:
    """Whether the server has withdrawn one job, that is, no longer waits for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._guard: asyncio.Timeout | None = None
        self._hear: Callable[[], None] | None = None

    def is_set(self) -> bool:
        """Whether the job is withdrawn; any thread may ask."""
        return self._is_set

    def set(self) -> None:
        """Withdraw the job, and end the waits in `guard` and in its trainer. Call it in the event loop only."""
        if not self._is_set:
            self._is_set = True
            if self._guard is not None:
                self._guard.reschedule(0.0)  # a time in the past, so the timeout expires now
            if (hear := self._hear) is not None:
                hear()

    @contextmanager
    def telling(self, hear: Callable[[], None]) -> Iterator[None]:
        """See `Withdrawable.telling`. Only one thread at a time may use it: the trainer's."""
        before, self._hear = self._hear, hear
        try:
            if self._is_set:  # checked after `_hear` is set, so `hear` is called whichever thread is first
                hear()
            yield
        finally:
            self._hear = before

    async def guard(self, wait: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `wait`. If the job is withdrawn first, cancel `wait` and raise Withdrawn."""
        try:  # no asyncio task is started: its cost would show on a link that holds nothing back
            async with asyncio.timeout(0.0 if self._is_set else None) as self._guard:
                return await wait
        except TimeoutError:
            if self._guard is not None and self._guard.expired():
                raise Withdrawn("the job was withdrawn") from None
            raise
        finally:
            self._guard = None


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
    """The unanswered jobs of this client, over all its streams. Each of them can be withdrawn."""

    def __init__(self) -> None:
        self._of_job: dict[tuple[int, int], Withdrawal] = {}

    def begin(self, job: pb.Job) -> Withdrawal:
        """Register a job and return its withdrawal. A job that is sent again after it was withdrawn gets a new one."""
        key = job.round, job.attempt
        if len(self._of_job) >= _MOST_WITHDRAWABLE:
            self._of_job.pop(next(iter(self._of_job)))  # the oldest, never answered because its stream broke
        if key not in self._of_job or self._of_job[key].is_set():
            self._of_job[key] = Withdrawal()
        return self._of_job[key]

    def withdraw(self, message: pb.Withdraw) -> None:
        """Withdraw a job. Nothing happens if it is unknown or already answered."""
        if (withdrawal := self._of_job.get((message.round, message.attempt))) is not None:
            withdrawal.set()

    def withdraw_all(self) -> None:
        """Withdraw every unanswered job. Called when the client ends, so that it need not wait for its work."""
        for withdrawal in self._of_job.values():
            withdrawal.set()

    def answered(self, job: pb.Job) -> None:
        """Forget an answered job, which can no longer be withdrawn."""
        self._of_job.pop((job.round, job.attempt), None)


def computed(executor: Executor | None, work: Callable[..., Work], *arguments: Any) -> "asyncio.Future[Work]":
    """A future of the work, done by the executor. Without one, the work is done here and the future is already done."""
    if executor is not None:
        return asyncio.wrap_future(executor.submit(for_future, work, *arguments))
    future: asyncio.Future[Work] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(for_future(work, *arguments))
    except OWN_CODE_ERRORS as error:
        future.set_exception(error)
    return future


def result_of(job: pb.Job, work: Work, timing: pb.Timing, update: pb.Vector, host: pb.Host) -> pb.Result:
    """The message that answers a job with an update: also the release's charge and, if disclosed, the loss."""
    result = pb.Result(
        round=job.round, attempt=job.attempt, status=pb.STATUS_OK, timing=timing, update=update, host=host
    )
    if (charge := work.released.charge) is not None:
        result.release.participation = charge.participation
        result.release.epsilon = charge.epsilon
        result.release.epsilon_spent = charge.epsilon_spent
    if work.loss is not None:
        result.loss = work.loss
    return result
