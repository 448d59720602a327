"""How a process of a run is started, and that it ends with the one that started it."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any

from pausefl.runtime.processes.environment import added_to_environment
from pausefl.runtime.processes.forking import ForkedProcess, begin_fork_server, forget_fork_server
from pausefl_proto.errors import PauseflError

# What a terminal sends to every process at once and, by SIGUSR2, Slurm before a job's time is over.
_OF_ALL = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR2}
_STARTS_MAX = 5
_START_AGAIN_S = 0.05
_STARTING = threading.Lock()
"""Held by the thread that starts a process: meanwhile `__main__` lacks what Python would import it by."""


def die_with_parent() -> None:
    """End this process when the one that started it ends, however that happens (kill -9 included)."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_outlive, args=(parent,), name="lifeline", daemon=True).start()


def start(process: "multiprocessing.process.BaseProcess") -> None:
    """Start a process that does not import the caller's `__main__` again.

    So a script that calls the library needs no `if __name__ == "__main__"`, and a notebook has no file to import.
    What is sent to every process at once is left to the caller from the first instant on.
    A fork server that ends while it is asked is started again; PauseflError when it ends every time.
    """
    with _STARTING:
        _start(process)


def _start(process: "multiprocessing.process.BaseProcess") -> None:
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__spec__", "__file__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        with _interrupts_held_back():
            if isinstance(process, ForkServerProcess):
                _fork(process)
            else:
                with added_to_environment():
                    process.start()
    finally:
        main.__dict__.update(hidden)


def begin_to_import(imports: Sequence[str]) -> None:
    """Begin the fork server, so that it imports while there is other work to do until processes are forked."""
    with _interrupts_held_back(), suppress(OSError, PauseflError):  # who forks meets it again, and can tell it
        begin_fork_server(imports)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let a terminal's signals wait until the block is left; what is started in it inherits that, and hears none."""
    resource_tracker.ensure_running()  # else the start of a process would start it, which lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(process: ForkServerProcess) -> None:
    for _ in range(_STARTS_MAX):
        with suppress(EOFError, ConnectionError):  # of a fork server that was killed between the request and its answer
            try:
                begin_fork_server(process.imports if isinstance(process, ForkedProcess) else ())
                return process.start()
            except FileNotFoundError:  # its socket, which lay in the folder for temporary files
                forget_fork_server()
        time.sleep(_START_AGAIN_S)  # until the kernel has ended it
    raise PauseflError(f"{process.name}: the fork server ended {_STARTS_MAX} times while it was to be started")


def ignore_interrupts() -> None:
    """Leave a terminal's signals to the process in charge, also where others had begun the fork server."""
    for number in _OF_ALL:
        signal.signal(number, signal.SIG_IGN)


def _outlive(parent: "multiprocessing.process.BaseProcess") -> None:
    parent.join()
    os._exit(1)
