"""A log file for the output of one or several processes, which is rotated once it is full."""

import fcntl
import io
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from textwrap import shorten

from pausefl_process.files import is_at
from pausefl_proto.errors import PauseflError

_MOST_LOG_BYTES = 64 << 20
_ROTATE_EVERY_S = 5.0
_MOST_QUOTED = 300
_ENDED = " ended (exit code "


def open_standard_files() -> None:
    """Open standard files that were closed at this process's start (`>&-`). Otherwise other files get their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(null, null == number)
            setattr(sys, name, io.TextIOWrapper(io.FileIO(null, mode, closefd=False), encoding="utf-8"))


def write_output_to(path: Path) -> None:
    """Append this process's standard output and error to a file. Other processes may append to it as well.

    Above 64 MiB, the file is renamed to NAME.1, in place of an earlier one, and a new file is begun. Only its owner may
    read it: the text of an error may quote a client's data. PauseflError if its folder was moved or deleted.
    """
    open_standard_files()
    try:
        _redirect_output(path)
    except FileNotFoundError:
        raise PauseflError(f"{path.parent}: was moved or deleted while the run began") from None
    threading.Thread(target=_rotate_for_ever, args=(path,), name="log-rotation", daemon=True).start()


def _redirect_output(path: Path) -> None:
    file = _opened(path)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _rotate_for_ever(path: Path) -> None:
    while True:
        time.sleep(_ROTATE_EVERY_S)
        with suppress(OSError):  # the folder may be gone
            rotate_output(path, _MOST_LOG_BYTES)


def rotate_output(path: Path, most_bytes: int) -> None:
    """Rename this process's log file if it is full, or switch to the new file if another process has renamed it."""
    with os.fdopen(_opened(path), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have renamed the file while this one waited for the lock.
        is_current = is_at(1, path)
        if is_current and os.fstat(1).st_size > most_bytes:
            path.replace(path.with_name(f"{path.name}.1"))
            is_current = False
        if not is_current:
            _redirect_output(path)


def how_it_ended(exit_code: int | None, log: Path) -> str:
    """How a process ended, in words: its exit code and, if it has a log, the last line there that a process wrote.

    Lines in which another process's end was noted are not quoted: each would quote the one before. Nor are rules.
    """
    seen = " before it had a log"
    with suppress(OSError):
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        told = (line.lstrip(" |") for line in lines[::-1] if not (_ENDED in line or "+---" in line))
        seen = f", see {log}: {shorten(next(told, 'its log is empty'), _MOST_QUOTED, placeholder=' …')}"
    return f" (exit code {exit_code}){seen}"
