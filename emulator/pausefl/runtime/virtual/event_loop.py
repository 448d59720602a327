"""An asyncio event loop whose time stands still while anything is done, and jumps to what is due next."""

import asyncio
import math
import selectors
from collections.abc import Callable, Mapping
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
        """`workers` are the threads that work in this loop's time."""
        self._workers = workers
        super().__init__(_Selector(selectors.DefaultSelector(), workers))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._workers.now_s

    def run_in_executor(
        self,
        executor: Any,  # noqa: ARG002 - the work is done here, by no executor
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


class _Selector(selectors.BaseSelector):
    """Instead of waiting until a timer is due, lets time jump there; real files are looked at in passing."""

    def __init__(self, files: selectors.BaseSelector, workers: Workers) -> None:
        self._files = files
        self._workers = workers

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready. Called by the loop when it has run all callbacks (with their number in mind: 0 waits not)."""
        if timeout is not None and timeout <= 0:
            return self._files.select(0)
        due_s = math.inf if timeout is None else self._workers.now_s + timeout
        if self._workers.pass_time_until(due_s):
            return self._files.select(0)
        # No timer is set and no work is under way: only a signal or another thread can go on from here.
        return self._files.select(None)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()

    def close(self) -> None:
        self._files.close()
