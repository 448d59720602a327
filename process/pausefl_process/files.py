"""Files that survive a crash: written whole or not at all, and locked while a process uses them."""

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from pausefl_proto.errors import ConfigError

# How long a process that was just killed may keep its lock: its children end a moment after it.
_GRACE_S = 2.0
_AGAIN_EVERY_S = 0.05


class _Fsync:
    """Whether this process syncs what it writes to the disk."""

    is_skipped = False


def skip_fsync() -> None:
    """Sync nothing from now on: what is written survives this process, kill -9 included, but not the machine.

    For a run whose parts all lie in one process: nothing has left it that its files could fall behind of.
    """
    _Fsync.is_skipped = True


def sqlite_synchronous() -> str:
    """The value of SQLite's pragma `synchronous` for a database that must not lose a commit."""
    return "OFF" if _Fsync.is_skipped else "FULL"


def begin_sync(file: int) -> None:
    """Have the kernel begin to write to the disk what was written to an open file, where it can be asked to."""
    if sys.platform == "linux" and not _Fsync.is_skipped:
        # It writes what is not on the disk yet before it would drop it from its memory. A hint: nothing depends on it.
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_data(file: int) -> None:
    """Make what was written to an open file durable."""
    if not _Fsync.is_skipped:
        os.fdatasync(file)


def write_over(file: int, data: bytes | memoryview) -> None:
    """Write all of `data` over the beginning of an open file, of which the kernel takes some 2 GB at a time."""
    view, written = memoryview(data), 0
    while written < len(view):
        written += os.pwrite(file, view[written:], written)


def write_durably(path: Path, data: bytes | str) -> None:
    """Replace the file at `path` by `data`; OSError leaves what was there before.

    The data reach the disk before the name does (temporary file, fdatasync, rename, fsync of the folder), so a crash at
    any instant leaves the old file or the new one, whole.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            sync_data(file.fileno())
        fresh.replace(path)
    except BaseException as error:
        with suppress(OSError):
            fresh.unlink()
        if isinstance(error, OSError):  # by the name that the caller knows the file by, without the other one
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def reason(error: Exception) -> str:
    """Why a file could not be read or written, without its name."""
    if isinstance(error, UnicodeDecodeError):
        before = error.object[: error.start].decode(error.encoding, "ignore")
        return f"{place_after(before)} is no {error.encoding.upper()}; save the file as UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def place_after(before: str) -> str:
    """The line and the column that follow a text, both from 1."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if _Fsync.is_skipped:
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def refuse_without_locks(folder: Path) -> None:
    """ConfigError where the file system of a folder has no locks, on which all that keeps processes apart depends.

    The folder need not be there yet; nothing is left in it or above it.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    with tempfile.TemporaryFile(dir=there) as file:
        for name, lock in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):  # SQLite takes the latter
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock(file, fcntl.LOCK_UN)
            except OSError as error:
                said = f"{folder}: its file system has no locks ({name}: {error.strerror}); put it on a local disk"
                raise ConfigError(said) from error


def prepare_folder(folder: Path, key: str) -> None:
    """Make a folder of locked files; ConfigError where it has no locks or, by its `key`, where it cannot be written."""
    try:
        refuse_without_locks(folder)
        make_durable(folder)
    except OSError as error:
        raise ConfigError(f"{key}: cannot be written ({error.strerror})") from error


def make_durable(folder: Path) -> None:
    """Make a folder, and see to it that it and those made for it are still there after a power cut.

    SQLite does so for the files in it. The folder itself may have been made just before by another process.
    """
    made = [folder, *(above for above in folder.absolute().parents if not above.exists())]
    folder.mkdir(parents=True, exist_ok=True)
    for entry in made:
        sync_folder(entry.absolute().parent)


class Lock:
    """A lock file that this process holds, and every process that it hands the lock to as an argument."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (DupFd(self._file),)


def _inherited(file: Any) -> Lock:
    return Lock(file.detach())


@contextmanager
def locked(path: Path, user: str) -> Iterator[Lock]:
    """Hold the lock file at `path` for the time of the block; ConfigError where another process does.

    The kernel lets go of it when the last process that holds it ends, kill -9 included. `user` names in the error what
    is in use.
    """
    file = _acquired(path, user)
    try:
        yield Lock(file)
    finally:
        os.close(file)


def _acquired(path: Path, user: str) -> int:
    until = time.monotonic() + _GRACE_S
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    while not (_is_free(file) and is_at(file, path)):
        if not is_at(file, path):  # its last user has deleted it
            os.close(file)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        elif time.monotonic() > until:
            os.close(file)
            raise ConfigError(f"{user}: another process is using it")
        else:
            time.sleep(_AGAIN_EVERY_S)
    return file


def _is_free(file: int) -> bool:
    """Take the lock, if no other process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Hold a folder, in which this leaves no file, for the time of the block; waits for another process that does."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def is_at(file: int, path: Path) -> bool:
    """Whether `path` still names this open file, rather than none or another that was put in its place."""
    return is_still(os.fstat(file), path)


def is_still(opened: os.stat_result, path: Path) -> bool:
    """Whether `path` still names the file whose status was `opened`."""
    try:
        return os.path.samestat(path.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
