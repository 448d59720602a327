"""A log file that takes the output of one or several processes, and is rotated once it is full."""

import fcntl
import io
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from pausefl_process.files import is_at
from pausefl_proto.errors import PauseflError

_MOST_LOG_BYTES = 64 << 20
_ROTATE_EVERY_S = 5.0


def open_standard_files() -> None:
    """Open the standard files that this process was started without (`>&-`), or others would come in their place."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(null, null == number)
            setattr(sys, name, io.TextIOWrapper(io.FileIO(null, mode, closefd=False), encoding="utf-8"))


def write_output_to(path: Path) -> None:
    """Send this process's standard output and error to a file that others append to as well.

    From 64 MiB on the file is renamed to NAME.1, in place of an earlier one, and begun anew. Only its owner may read
    it: the text of an error may quote a client's data. PauseflError where its folder was taken away.
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
    """Rename the file this process writes to once it is full, or follow another process that has done so."""
    with os.fdopen(_opened(path), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have renamed it while this one waited for the lock, and then holds that of the new file.
        is_current = is_at(1, path)
        if is_current and os.fstat(1).st_size > most_bytes:
            path.replace(path.with_name(f"{path.name}.1"))
            is_current = False
        if not is_current:
            _redirect_output(path)
