"""An asyncio event loop in virtual time: time stands still while code runs, then jumps to the next event due."""

import asyncio
import math
import selectors
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from pausefl.runtime.virtual.workers import Workers
from pausefl_client.jobs import computed

_Ts = TypeVarTuple("_Ts")
Result = TypeVar("Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in an ordinary loop's order. Waits only for work in progress and, if there is none, real files.

    So a program does the same at the same virtual times on every machine, however busy it is.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        super().__init__(_Selector(workers))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._workers.now_s

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], Result], *args: *_Ts) -> asyncio.Future[Result]:
        """Do the work now. It takes no virtual time, and is over before anything else happens."""
        return computed(None, func, *args)


class _Selector(selectors.DefaultSelector):
    """Lets time jump to the next timer due instead of waiting for it. Real files are polled without a wait."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Ready files. The loop calls this after its callbacks, with timeout 0 if more callbacks are ready."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        due_s = math.inf if timeout is None else self._workers.now_s + timeout
        # Without a timer and work in progress, only a signal or another thread can wake the loop, so wait for these.
        return super().select(0 if self._workers.pass_time_until(due_s) else None)
