"""Passes a run's progress on to observers. An observer cannot delay or end the run or another observer."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from pausefl.runtime.observers.base import Observer
from pausefl.runtime.processes.logs import add_warning
from pausefl_process.events import Notice, ProgressEvent, Report
from pausefl_process.plugins import with_place

_END_WITHIN_S = 10.0

_Call = Callable[[Observer], None]


class Observed:
    """A context manager that passes events to `report` and to observers, to each observer in its own thread."""

    def __init__(
        self,
        report: Report,
        observers: Sequence[Observer],
        run_dir: Path,
        settings: Mapping[str, Mapping[str, Any]],
        log: Path | None = None,
    ) -> None:
        """`settings` is the experiment by table and key. `log` keeps observers' errors, which a display may drop."""
        self._report = report
        self._log = log
        self._complaints: SimpleQueue[str] = SimpleQueue()
        self._told = [_Told(observer, self._complaints) for observer in observers]
        self._tell(lambda observer: observer.begin(run_dir, settings))

    def show(self, event: ProgressEvent) -> None:
        """Show one event and hand it on; returns at once."""
        self._report(event)
        self._complain()
        self._tell(lambda observer: observer.on_event(event))

    def __enter__(self) -> Self:
        for each in self._told:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._told:
            each.tell_end()
        until_s = time.monotonic() + _END_WITHIN_S
        late = [each.name for each in self._told if not each.finishes(until_s)]
        self._complain()
        for name in late:
            self._notice(f"observer {name} is not done {_END_WITHIN_S:g} s after the end, and is left alone")

    def _tell(self, call: _Call) -> None:
        for each in self._told:
            each.tell(call)

    def _complain(self) -> None:
        while not self._complaints.empty():
            self._notice(self._complaints.get())

    def _notice(self, message: str) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk, which the run itself reports
                add_warning(self._log, message)
        self._report(Notice(message))


class _Told:
    """One observer, and the calls that its thread has yet to make."""

    def __init__(self, observer: Observer, complaints: SimpleQueue[str]) -> None:
        self.name = type(observer).__name__
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._has_failed = False
        self._observer = observer
        self._complaints = complaints
        self._thread = threading.Thread(target=self._work, name=f"observer {self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, call: _Call) -> None:
        """Have the thread make one more call, unless the observer has failed."""
        if not self._has_failed:
            self._calls.put(call)

    def tell_end(self) -> None:
        self.tell(lambda observer: observer.end())
        self._calls.put(None)

    def finishes(self, until_s: float) -> bool:
        """Wait until `until_s` at most. Returns whether all calls are made, or the observer has failed."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call(self._observer)
        except BaseException as error:  # asyncio's CancelledError is no Exception
            self._has_failed = True
            self._complaints.put(f"observer {self.name} failed and is told nothing more: {with_place(error)}")
