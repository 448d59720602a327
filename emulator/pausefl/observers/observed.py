"""A run's progress, passed on to observers. Nothing that they do takes time from the run, or ends it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from pausefl.observers.base import Observer
from pausefl_process.events import Notice, ProgressEvent, Report
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place

_END_WITHIN_S = 10.0

_Call = Callable[[Observer], None]


class Observed:
    """Shows events as `report` does, and tells observers of them from a thread; a context manager."""

    def __init__(
        self,
        report: Report,
        observers: Sequence[Observer],
        run_dir: Path,
        settings: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """`settings` is the experiment, by table and key."""
        self._report = report
        self._observers = list(observers)
        self._tasks: SimpleQueue[_Call | None] = SimpleQueue()
        self._complaints: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="observers", daemon=True)
        self._tasks.put(lambda observer: observer.begin(run_dir, settings))

    def show(self, event: ProgressEvent) -> None:
        """Show one event and hand it on; returns at once."""
        self._report(event)
        self._complain()
        if self._observers:
            self._tasks.put(lambda observer: observer.on_event(event))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tasks.put(lambda observer: observer.end())
        self._tasks.put(None)
        self._thread.join(_END_WITHIN_S)
        if self._thread.is_alive():
            self._report(Notice(f"observers are not done {_END_WITHIN_S:g} s after the end, and are left alone"))
        self._complain()

    def _complain(self) -> None:
        while not self._complaints.empty():
            self._report(Notice(self._complaints.get()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            for observer in tuple(self._observers):
                try:
                    task(observer)
                except OWN_CODE_ERRORS as error:
                    self._observers.remove(observer)
                    name = type(observer).__name__
                    self._complaints.put(f"observer {name} failed and is told nothing more: {with_place(error)}")
