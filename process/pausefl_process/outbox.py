"""Events that are passed on from a thread of their own: a reader that takes none stops no event loop."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from pausefl_process.events import ModelEvaluated, Notice, ProgressEvent, Report, RoundCommitted

_WAITING_MAX = 4096


@contextmanager
def posted(report: Report, *, end_within_s: float | None = None) -> Iterator[Report]:
    """A `Report` that returns at once and raises what `report` raised before; leaving the block waits for the rest.

    With `end_within_s`, it waits no longer for a reader that takes nothing. Where very many events wait, rounds,
    evaluations and notices are left out.
    """
    outbox = _Outbox(report)
    try:
        yield outbox.put
    finally:
        outbox.close(end_within_s)
    outbox.raise_error()


class _Outbox:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._events: SimpleQueue[ProgressEvent | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._pass_on, name="events", daemon=True)
        self._thread.start()

    def put(self, event: ProgressEvent) -> None:
        self.raise_error()
        if self._events.qsize() < _WAITING_MAX or not isinstance(event, RoundCommitted | ModelEvaluated | Notice):
            self._events.put(event)

    def close(self, within_s: float | None) -> None:
        self._events.put(None)
        self._thread.join(within_s)

    def raise_error(self) -> None:
        """Raise, once, what passing on has raised: the reader may have gone."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _pass_on(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._report(event)
            except BaseException as error:
                self._error = error
                return
