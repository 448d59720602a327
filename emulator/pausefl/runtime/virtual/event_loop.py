"""An asyncio event loop whose time stands still while anything is done, and jumps to what is due next."""

import asyncio
import math
import selectors
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from pausefl.runtime.virtual.workers import Workers
from pausefl_process.plugins import OWN_CODE_ERRORS

_Ts = TypeVarTuple("_Ts")
Result = TypeVar("Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in the order of an ordinary loop; waits for nothing but work under way and, at last, real files.

    The same program does the same at the same times, whatever machine it runs on and however busy that is.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        super().__init__(_Selector(workers))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._workers.now_s

    def run_in_executor(
        self,
        executor: Any,
        func: Callable[[*_Ts], Result],
        *args: *_Ts,
    ) -> asyncio.Future[Result]:
        """Do the work now: it takes no time, and is over before anything else happens."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except OWN_CODE_ERRORS as error:
            future.set_exception(error)
        return future


class _Selector(selectors.DefaultSelector):
    """Instead of waiting until a timer is due, lets time jump there; real files are looked at in passing."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Ready files. Called by the loop when it has run all callbacks (with their number in mind: 0 waits not)."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        due_s = math.inf if timeout is None else self._workers.now_s + timeout
        # Where no timer is set and no work is under way, only a signal or another thread can go on from here.
        return super().select(0 if self._workers.pass_time_until(due_s) else None)
