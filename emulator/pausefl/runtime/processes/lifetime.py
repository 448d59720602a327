"""Starts processes, such as those of a run, and ends each of them with the process that started it."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from traceback import format_exc
from typing import Any, TypeVar

from pausefl.runtime.processes.environment import added_to_environment
from pausefl.runtime.processes.forking import ForkedProcess, begin_fork_server, forget_fork_server
from pausefl_process.events import ProgressEvent
from pausefl_proto.errors import PauseflError

Result = TypeVar("Result")

# Signals that are sent to every process at once: by a terminal, or (SIGUSR2) by Slurm before a job's time is over.
_OF_ALL = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR2}
_STARTS_MAX = 5
_START_AGAIN_S = 0.05
_STARTING = threading.Lock()
"""Held by the thread that starts a process. Meanwhile `__main__` lacks the attributes with which Python imports it."""


def die_with_parent() -> None:
    """End this process when the one that started it ends, however that happens (kill -9 included)."""
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_outlive, args=(parent,), name="lifeline", daemon=True).start()


def start(process: BaseProcess, **variables: str) -> None:
    """Start a process, spawned with these environment variables, that does not import the caller's `__main__` again.

    So a script that calls the library needs no `if __name__ == "__main__"`, and a notebook needs no file to import.
    From its first instant on, the process leaves signals that are sent to every process to the caller.
    A fork server that ends during the request is restarted. PauseflError if it ends every time.
    """
    main = sys.modules["__main__"]
    with _STARTING, _interrupts_held_back():
        hidden: dict[str, object] = {
            name: main.__dict__.pop(name) for name in ("__spec__", "__file__") if name in main.__dict__
        }
        main.__spec__ = None
        try:
            if isinstance(process, ForkServerProcess):
                _fork(process)
            else:
                with added_to_environment(**variables):
                    process.start()
        finally:
            main.__dict__.update(hidden)


def said_on(lines: Iterable[Any], names: dict[Any, str]) -> Iterator[tuple[str, ProgressEvent]]:
    """Yield all events that processes have sent on these lines by now, each with the line's name in `names`.

    The line of a process that has ended is closed, and removed from `names`.
    """
    for line in [*lines]:
        try:
            while line.poll():
                event: ProgressEvent = line.recv()
                yield names[line], event
        except (EOFError, OSError):
            line.close()
            names.pop(line, None)


def in_children(
    make: Callable[..., BaseProcess], children: int, work: Callable[[Any], Result], items: Sequence[Any]
) -> Generator[Result, None, None]:
    """Yield what `work` returns for each item, in order; raise what it raises. Child n takes every item n + children·i.

    `make` makes a child, not yet started, that calls a function with arguments. The children end with the iteration,
    however that ends. PauseflError if one of them ends before.
    """
    lines, processes = list[Any](), list[BaseProcess]()
    try:
        for first in range(min(children, len(items))):
            ours, theirs = multiprocessing.Pipe(duplex=False)
            processes.append(make(_answer, theirs, work, items[first::children]))
            start(processes[-1])  # an interrupt may come as this ends
            lines.append(ours)
            theirs.close()
        for number in range(len(items)):
            result, error = lines[number % children].recv()
            if error:
                raise error
            yield result
    except EOFError:
        raise PauseflError(f"the process {processes[0].name} ended unexpectedly") from None
    finally:
        for process in (begun := [each for each in processes if each.pid is not None]):
            process.terminate()
        for process in begun:
            process.join()


def _answer(line: Any, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    die_with_parent()
    for item in items:
        try:
            line.send((work(item), None))
        except Exception as error:
            if not isinstance(error, PauseflError):
                error.add_note(format_exc())  # a traceback is not sent
            line.send((None, error))
            return  # the iteration ends with the error


def begin_to_import(imports: Sequence[str]) -> None:
    """Start the fork server, so that it imports modules while this process does other work before it forks any."""
    with _interrupts_held_back(), suppress(OSError, PauseflError):  # raised again, and reported, at the first fork
        begin_fork_server(imports)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold the signals `_OF_ALL` back until the end of the block. Processes started in it inherit this for good."""
    resource_tracker.ensure_running()  # otherwise the start of a process starts it, which lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(process: ForkServerProcess) -> None:
    for _ in range(_STARTS_MAX):
        with suppress(EOFError, ConnectionError):  # the fork server was killed before it answered the request
            try:
                begin_fork_server(process.imports if isinstance(process, ForkedProcess) else ())
                return process.start()
            except FileNotFoundError:  # its socket was deleted from the folder for temporary files
                forget_fork_server()
        time.sleep(_START_AGAIN_S)  # until the kernel has ended the server
    raise PauseflError(f"{process.name}: the fork server ended {_STARTS_MAX} times while it was to be started")


def ignore_interrupts() -> None:
    """Leave the signals `_OF_ALL` to the process in charge, even if other code started the fork server."""
    for number in _OF_ALL:
        signal.signal(number, signal.SIG_IGN)


def _outlive(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
