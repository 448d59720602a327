"""Jobs on their way through a client: their downloads, which of them the server has withdrawn, and their results."""

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

# More than wait at a time: a server that gives ever more jobs takes no memory.
_MOST_WITHDRAWABLE = 64

Expecting = Callable[[str, int, str], AbstractContextManager[None]]
"""(client id, round, digest of its model) -> a block during which the client waits for that job's training, or does it.
"""


class Withdrawal:
    """Whether the server waits for one job no longer."""

    def __init__(self) -> None:
        self._is_set = False
        self._guard: asyncio.Timeout | None = None
        self._hear: Callable[[], None] | None = None

    def is_set(self) -> bool:
        """Whether the job is withdrawn; any thread may ask."""
        return self._is_set

    def set(self) -> None:
        """Withdraw the job, and end what `guard` and its trainer wait for; in the event loop alone."""
        if not self._is_set:
            self._is_set = True
            if self._guard is not None:
                self._guard.reschedule(0.0)  # a time that has passed
            if (hear := self._hear) is not None:
                hear()

    @contextmanager
    def telling(self, hear: Callable[[], None]) -> Iterator[None]:
        """As `Withdrawable.telling`; in one thread at a time, the trainer's."""
        before, self._hear = self._hear, hear
        try:
            if self._is_set:  # asked after the line above: whichever thread is first, `hear` is called
                hear()
            yield
        finally:
            self._hear = before

    async def guard(self, wait: Coroutine[Any, Any, Result]) -> Result:
        """Wait for `wait`; Withdrawn, and it is cancelled, when the job is withdrawn first.

        Without a task of its own, which a link that holds nothing back would have to pay for.
        """
        try:
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
    """A job whose model is on its way in."""

    job: pb.Job
    frames: Assembler
    first_s: float
    """When the first frame came."""
    last_s: float
    withdrawn: Withdrawal


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the trainer's thread on a job, and how long each part took."""

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
        self._of_job: dict[tuple[int, int], Withdrawal] = {}

    def begin(self, job: pb.Job) -> Withdrawal:
        """Let this job be withdrawn; returns what is then set. A job that is given again after that has a new one."""
        key = job.round, job.attempt
        if len(self._of_job) >= _MOST_WITHDRAWABLE:
            self._of_job.pop(next(iter(self._of_job)))  # one that was never answered: its stream broke
        if key not in self._of_job or self._of_job[key].is_set():
            self._of_job[key] = Withdrawal()
        return self._of_job[key]

    def withdraw(self, message: pb.Withdraw) -> None:
        """Take a job back; nothing happens where it is unknown or answered."""
        if (withdrawal := self._of_job.get((message.round, message.attempt))) is not None:
            withdrawal.set()

    def withdraw_all(self) -> None:
        """Take every job back that has no answer yet: the client is at its end, and its work is not waited for."""
        for withdrawal in self._of_job.values():
            withdrawal.set()

    def answered(self, job: pb.Job) -> None:
        """Forget a job, which can be withdrawn no more."""
        self._of_job.pop((job.round, job.attempt), None)


def computed(executor: Executor | None, work: Callable[..., Work], *arguments: Any) -> "asyncio.Future[Work]":
    """The work done by the executor; without one it is done here, and the future is done."""
    if executor is not None:
        return asyncio.wrap_future(executor.submit(for_future, work, *arguments))
    future: asyncio.Future[Work] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(for_future(work, *arguments))
    except OWN_CODE_ERRORS as error:
        future.set_exception(error)
    return future


def result_of(job: pb.Job, work: Work, timing: pb.Timing, update: pb.Vector, host: pb.Host) -> pb.Result:
    """The result of a job that came to an update, with what its release cost and, where disclosed, its loss."""
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
