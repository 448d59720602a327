"""What every process of a run does: it dies with its parent, and it writes where it is told to."""

import ctypes
import fcntl
import gc
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from pausefl_proto.errors import PauseflError

BAD_INPUT = 2
"""Exit status of a client process that ended with a ConfigError."""

# Of glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The greatest value glibc takes for M_MMAP_THRESHOLD on 64-bit machines.
_BUFFER_BYTES = 32 << 20
# Before the youngest generation is looked through; Python's own value is 700.
_NEW_OBJECTS = 10_000
_MOST_LOG_BYTES = 64 << 20
_ROTATE_EVERY_S = 5.0
_STARTS_MAX = 5
_START_AGAIN_S = 0.05


def die_with_parent() -> None:
    """End this process when the one that started it ends, however that happens (kill -9 included)."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_outlive, args=(parent,), name="lifeline", daemon=True).start()


def start(process: "multiprocessing.process.BaseProcess") -> None:
    """Start a process that does not import the caller's `__main__` again.

    So a script that calls the library needs no `if __name__ == "__main__"`, and a notebook has no file to import.
    Ctrl-C, which a terminal sends to every process at once, is left to the caller from the first instant on.
    A fork server that ends while it is asked is started again; PauseflError when it ends every time.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__spec__", "__file__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        with _interrupts_held_back():
            _start(process)
    finally:
        main.__dict__.update(hidden)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let SIGINT wait until the block is left; what is started in it inherits that, and never hears of one."""
    resource_tracker.ensure_running()  # else the start of a process would start it, which lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(process: "multiprocessing.process.BaseProcess") -> None:
    for _ in range(_STARTS_MAX):
        with suppress(EOFError, ConnectionError):  # of a fork server that was killed between the request and its answer
            return process.start()
        time.sleep(_START_AGAIN_S)  # until the kernel has ended it
    raise PauseflError(f"{process.name}: the fork server ended {_STARTS_MAX} times while it was to be started")


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the process in charge, also where `start` found a fork server that others had begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def allow_many_files() -> None:
    """Lift the soft limit on open files to the hard one: a stream and a ledger for each of a thousand clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def keep_freed_memory(most_bytes: int = _BUFFER_BYTES) -> None:
    """Tell glibc to keep freed buffers of up to 32 MiB each, `most_bytes` in all, for the next ones.

    Otherwise they go back to the kernel, and every round pages them in again: that costs more than all else a client
    does with a model of 1 MB. Elsewhere than on glibc this does nothing. `most_bytes` is below 2 GiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
        mallopt(_M_TRIM_THRESHOLD, most_bytes)


def collect_seldom() -> None:
    """Let Python look for cyclic garbage only after many more objects were made than freed.

    A round makes some thousands, nearly all of which are freed with their last reference. Looking through them more
    often costs a server a tenth of its processor time and finds nothing.
    """
    gc.set_threshold(_NEW_OBJECTS)


def write_output_to(path: Path) -> None:
    """Send this process's standard output and error to a file that others append to as well.

    From 64 MiB on the file is renamed to NAME.1, in place of an earlier one, and begun anew.
    """
    _redirect_output(path)
    threading.Thread(target=_rotate_for_ever, args=(path,), name="log-rotation", daemon=True).start()


def _redirect_output(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _rotate_for_ever(path: Path) -> None:
    while True:
        time.sleep(_ROTATE_EVERY_S)
        with suppress(OSError):  # the folder may be gone
            rotate_output(path, _MOST_LOG_BYTES)


def rotate_output(path: Path, most_bytes: int) -> None:
    """Rename the file this process writes to once it is full, or follow another process that has done so."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have renamed it while this one waited for the lock, and then holds that of the new file.
        is_current = _is_at(path, 1)
        if is_current and os.fstat(1).st_size > most_bytes:
            path.replace(path.with_name(f"{path.name}.1"))
            is_current = False
        if not is_current:
            _redirect_output(path)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:  # it is being renamed
        return False


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first PauseflError of an exception group as itself: a user needs one line, not a tree."""
    # Not by except*: Python 3.11.2, Debian 12's, puts whatever is raised there into a group again.
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PauseflError)
        if ours is None or others is not None:
            raise
        error: BaseException = ours
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _outlive(parent: "multiprocessing.process.BaseProcess") -> None:
    parent.join()
    os._exit(1)
