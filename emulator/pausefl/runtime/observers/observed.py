"""Passes a run's progress on to observers. An observer cannot delay or end the run or another observer."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from pausefl.runtime.observers.base import Observer
from pausefl.runtime.processes.logs import add_warning
from pausefl.runtime.processes.outbox import Outbox
from pausefl_process.events import Notice, ProgressEvent, Report
from pausefl_process.plugins import with_place

_END_WITHIN_S = 10.0

_Call = Callable[[Observer], None]


class Observed(AbstractContextManager["Observed"]):
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
        told = ((lambda call, each=each: call(each), type(each).__name__) for each in observers)
        self._told = [Outbox[_Call](tell, f"observer {name}") for tell, name in told]
        self._tell(lambda observer: observer.begin(run_dir, settings))

    def show(self, event: ProgressEvent) -> None:
        """Show one event and hand it on; returns at once."""
        self._report(event)
        self._complain()
        self._tell(lambda observer: observer.on_event(event))

    def __exit__(self, *_: object) -> None:
        self._tell(lambda observer: observer.end())
        for each in self._told:
            each.end()  # all at once, as one may take all of the time
        until_s = time.monotonic() + _END_WITHIN_S
        late = [each.name for each in self._told if not each.close(max(0.0, until_s - time.monotonic()))]
        self._complain()
        for name in late:
            self._notice(f"{name} is not done {_END_WITHIN_S:g} s after the end, and is left alone")

    def _tell(self, call: _Call) -> None:
        for each in self._told:
            each.put(call)

    def _complain(self) -> None:
        for each in self._told:
            if (error := each.take_error()) is not None:
                self._notice(f"{each.name} failed and is told nothing more: {with_place(error)}")

    def _notice(self, message: str) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk, which the run itself reports
                add_warning(self._log, message)
        self._report(Notice(message))
