"""What a process waits for, told when it gets SIGUSR1."""

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def waits_told_on_sigusr1() -> Iterator[None]:
    """Within the block, write `waits` of the running event loop to standard error at each SIGUSR1.

    Nothing changes in a thread besides the main one, whose event loop alone hears signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _tell)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def waits() -> Iterator[str]:
    """A line for each task of the running event loop: its name, and where it stands, outermost call first."""
    for task in asyncio.all_tasks():
        yield f"{task.get_name()}: {' > '.join(_places(task.get_coro()))}"


def _tell() -> None:
    print(*waits(), sep="\n", file=sys.stderr, flush=True)


def _places(awaited: Any) -> Iterator[str]:
    """ "file.py:12 function" for each call that waits for the next; last, what no Python code waits for."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            yield type(awaited).__name__
            return
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
