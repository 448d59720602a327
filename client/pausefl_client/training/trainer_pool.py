"""A thread pool for training on the real clock: n jobs compute at once, and a waiting job lets another one compute."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from pausefl_client.training.pace import TrainingPace, paced_by

Result = TypeVar("Result")

# The most clients of one process that may wait at once.
_MOST_THREADS = 10_000


class TrainerPool(Executor):
    """Begins jobs in the order in which they were submitted, each when one of its n trainers is free.

    A job gives its trainer back when it first waits (`pace().wait`, or the rest of `pace().during`), so that emulated
    devices wait side by side. It does not queue for a trainer again: that would delay the rest of its work, which is
    clipping, noise and the ledger.
    """

    def __init__(self, trainers: int, initializer: Callable[[], None] = lambda: None) -> None:
        """`trainers`: how many jobs compute at once. `initializer` is called first in every thread."""
        self._free = trainers
        self._submitted: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._changing = threading.Lock()
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "trainer", initializer)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        future: Future[Result] = Future()
        with self._changing:
            self._submitted.append((future, partial(self._run, future, partial(fn, *args, **kwargs))))
            self._begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel all jobs that have not begun, and begin no more."""
        with self._changing:
            left, self._submitted = self._submitted, deque()
        for future, _ in left:
            future.cancel()
        self._threads.shutdown(wait=wait)

    def _begin(self) -> None:
        while self._free and self._submitted:
            self._free -= 1
            self._threads.submit(self._submitted.popleft()[1])

    def _run(self, future: "Future[Result]", work: Callable[[], Result]) -> None:
        with ExitStack() as turn:
            turn.callback(self._give_back)
            if not future.set_running_or_notify_cancel():
                return
            try:
                with paced_by(TrainingPace(before_wait=turn.close)):
                    result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _give_back(self) -> None:
        with self._changing:
            self._free += 1
            self._begin()
