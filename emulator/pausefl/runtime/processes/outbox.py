"""Passes items on in a separate thread, so that a reader that stops reading cannot stop an event loop."""

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from queue import SimpleQueue
from typing import Generic, TextIO, TypeVar

from pausefl_process.events import ModelEvaluated, Notice, ProgressEvent, Report, RoundCommitted

_WAITING_MAX = 4096
READ_WITHIN_S = 3.0
"""How long a process waits at its end for a reader to read its last lines."""

Item = TypeVar("Item")


@contextmanager
def posted(report: Report, *, end_within_s: float | None = None) -> Iterator[Report]:
    """Yields a `Report` that returns at once: a thread calls `report`. Its error is raised at the next call or the end.

    The block's end waits until all events are reported, at most for `end_within_s`. If very many events wait, rounds,
    evaluations and notices are left out.
    """
    outbox = Outbox(report, "events")

    def post(event: ProgressEvent) -> None:
        outbox.raise_error()
        if outbox.has_room() or not isinstance(event, RoundCommitted | ModelEvaluated | Notice):
            outbox.put(event)

    try:
        yield post
    finally:
        outbox.close(end_within_s)
    outbox.raise_error()


@contextmanager
def posted_output() -> Iterator[None]:
    """In the block, write standard output and standard error in separate threads.

    Its end waits a moment for readers that stopped reading. If very many lines wait, later ones are left out.
    """
    with ExitStack() as block:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            if is_file(stream):
                lines = block.enter_context(closing(_PostedLines(stream)))
                block.enter_context(redirect(lines))
        yield


def is_file(stream: TextIO) -> bool:
    """Whether a stream has a file descriptor. A stream in memory has none, and no reader to wait for."""
    try:
        return stream.fileno() >= 0
    except io.UnsupportedOperation:
        return False


class _PostedLines(io.TextIOBase):
    """A text stream whose lines a thread writes to the file descriptor. It holds no buffer's lock while it waits."""

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        self._file = stream.fileno()
        self._begun = ""
        self._lock = threading.Lock()
        self._outbox = Outbox(self._write_out, "output")

    def write(self, text: str) -> int:
        with self._lock:
            lines, end, self._begun = (self._begun + text).rpartition("\n")
        if end and self._outbox.has_room():
            self._outbox.put(lines + end)
        return len(text)

    def fileno(self) -> int:
        return self._file

    def isatty(self) -> bool:
        return os.isatty(self._file)

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            if self._begun:
                self._outbox.put(self._begun)
            self._outbox.close(READ_WITHIN_S)
        super().close()

    def _write_out(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with suppress(OSError):  # the reader has gone; or the disk is full, and may have room for later lines
            while data:
                data = data[os.write(self._file, data) :]


class Outbox(Generic[Item]):
    """A thread that passes on one item after another, until an item cannot be passed on."""

    def __init__(self, pass_on: Callable[[Item], object], name: str) -> None:
        self.name = name
        self._pass_on = pass_on
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        return self._items.qsize() < _WAITING_MAX

    def put(self, item: Item) -> None:
        if self._thread.is_alive():
            self._items.put(item)

    def end(self) -> None:
        """End the thread once it has passed all items on."""
        self._items.put(None)

    def close(self, within_s: float | None) -> bool:
        """Wait at most `within_s` until all items are passed on, or one cannot be; returns whether that is so."""
        self.end()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def take_error(self) -> BaseException | None:
        """The error, told once, of the item that could not be passed on."""
        if (error := self._error) is not None:  # one that comes meanwhile stays
            self._error = None
        return error

    def raise_error(self) -> None:
        """Raise the error of `take_error`: the reader may have gone."""
        if (error := self.take_error()) is not None:
            raise error

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._pass_on(item)
            except BaseException as error:
                self._error = error
                return
