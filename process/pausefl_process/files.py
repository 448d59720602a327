"""Files that survive a crash: written whole or not at all, and locked while a process uses them."""

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, BinaryIO

from pausefl_proto.errors import ConfigError

# How long a process that was just killed may still hold its lock, because its children end a moment later.
_GRACE_S = 2.0
_AGAIN_EVERY_S = 0.05


class _Fsync:
    """Whether this process skips fsync, so that its files may not survive a power cut."""

    is_skipped = False


def skip_fsync() -> None:
    """Skip all fsync from now on. Files then survive this process, even kill -9, but not a crash of the machine.

    It is meant for a run in a single process. No other process can then know more than the files contain.
    """
    _Fsync.is_skipped = True


def sqlite_synchronous() -> str:
    """The value of SQLite's pragma `synchronous` for a database that must not lose a commit."""
    return "OFF" if _Fsync.is_skipped else "FULL"


def begin_sync(file: int) -> None:
    """Ask the kernel, if it supports that, to begin writing an open file's data to the disk."""
    if sys.platform == "linux" and not _Fsync.is_skipped:
        # To drop data from its cache, the kernel first writes them to the disk. A hint only: nothing depends on it.
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_data(file: int) -> None:
    """Make the data written to an open file durable."""
    if not _Fsync.is_skipped:
        os.fdatasync(file)


def write_over(file: int, data: bytes | memoryview) -> None:
    """Write all of `data` over the beginning of an open file, in several calls: the kernel writes up to 2 GB in one."""
    view, written = memoryview(data), 0
    while written < len(view):
        written += os.pwrite(file, view[written:], written)


def write_durably(path: Path, data: bytes | str) -> None:
    """Replace the file at `path` by `data`, as `replaced` does."""
    with replaced(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Opens a file that replaces the one at `path` once the block is done. After an error, the old file is still there.

    The data reach the disk before the name does (temporary file, fdatasync, rename, fsync of the folder). So a crash at
    any instant leaves either the old file or the new one, complete. The new one's permissions never exceed `mode`. An
    OSError names `path`.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        with open(fresh, "wb", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            sync_data(file.fileno())
        fresh.replace(path)
    except BaseException as error:
        with suppress(OSError):
            fresh.unlink()
        if isinstance(error, OSError) and error.errno:  # name the caller's file, not the temporary one
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def reason(error: Exception) -> str:
    """Why a file could not be read or written, in words without the file's name."""
    if isinstance(error, UnicodeDecodeError):
        before = error.object[: error.start].decode(error.encoding, "ignore")
        return f"{place_after(before)} is no {error.encoding.upper()}; save the file as UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_places(*texts: str) -> None:
    """Raise ConfigError if the working folder was deleted, or if its path or one of these texts is not UTF-8."""
    try:
        for text in (*texts, str(Path.cwd())):
            text.encode()
    except FileNotFoundError:
        raise ConfigError("the working folder was deleted; change to another one") from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{error.object!a}: is not UTF-8; rename it") from None


def place_after(before: str) -> str:
    """The line and column right after a text, both counted from 1, in words."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder durable."""
    if _Fsync.is_skipped:
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def prepare_folder(folder: Path, key: str) -> None:
    """Make a folder for locked files. ConfigError if it has no locks, or (then naming `key`) cannot be written."""
    try:
        there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
        with tempfile.TemporaryFile(dir=there) as file:
            for name, lock in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):  # SQLite uses fcntl
                try:
                    lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    lock(file, fcntl.LOCK_UN)
                except OSError as error:
                    said = f"{folder}: its file system has no locks ({name}: {error.strerror}); put it on a local disk"
                    raise ConfigError(said) from error
        make_durable(folder)
    except OSError as error:
        raise ConfigError(f"{key}: cannot be written ({error.strerror})") from error


def make_durable(folder: Path) -> None:
    """Make a folder and its missing parents, so that they still exist after a power cut."""
    # The folder too if it exists: another process may have made it just before.
    made = [folder, *(above for above in folder.absolute().parents if not above.exists())]
    folder.mkdir(parents=True, exist_ok=True)
    for entry in made:
        sync_folder(entry.absolute().parent)


class Lock:
    """A held lock file. It can be passed to a child process as an argument, and that process then holds it too."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __getstate__(self) -> Any:
        return DupFd(self._file)

    def __setstate__(self, file: Any) -> None:
        self._file = file.detach()


@contextmanager
def locked(path: Path, user: str) -> Iterator[Lock]:
    """Hold the lock file at `path` during the block. ConfigError if another process holds it.

    The kernel releases the lock when the last process that holds it ends, even by kill -9. `user` is the name of the
    thing in use, for the error.
    """
    until = time.monotonic() + _GRACE_S
    # Opened anew each time, since the last process that held it may have deleted it.
    while not (_is_free(file := os.open(path, os.O_RDWR | os.O_CREAT, 0o644)) and is_at(file, path)):
        time.sleep(_AGAIN_EVERY_S)
        os.close(file)
        if time.monotonic() > until:
            raise ConfigError(f"{user}: another process is using it")
    try:
        yield Lock(file)
    finally:
        os.close(file)


def _is_free(file: int) -> bool:
    """Take the lock unless another process holds it, and return whether it was taken."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Lock a folder during the block, without a file in it. Waits while another process holds the lock."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def is_at(file: int, path: Path) -> bool:
    """Whether `path` still names this open file. False if the file was deleted, moved or replaced."""
    return is_still(os.fstat(file), path)


def is_still(opened: os.stat_result, path: Path) -> bool:
    """Whether `path` still names the file whose status was `opened`."""
    try:
        return os.path.samestat(path.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
