"""Reading and writing this project's SQLite databases, and the meaning of their errors."""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pausefl_process.files import is_still
from pausefl_proto.errors import ConfigError

# How long to wait for another program that holds a database, such as a viewer with an unsaved edit.
_LOCKED_MAX_S = 600.0
# SQLite moves the write-ahead log into the database at some 4 MB, unless a reader prevents it.
_LOG_BYTES_MAX = 32 << 20
_COUNT_DIGITS = 20
# Errors of the disk, the system or its memory, as SQLite names them after "SQLITE_" or "SQLITE_IOERR_". The text of
# each of the latter is "disk I/O error", which is also the text for a disk that cannot be read.
_NOT_GIVEN = {"FULL", "READONLY", "CANTOPEN", "PERM", "PROTOCOL", "NOMEM"}
_NOT_WRITTEN = {"WRITE", "FSYNC", "DIR_FSYNC", "TRUNCATE", "SHMOPEN", "SHMSIZE", "SHMMAP"}
_NOT_LOCKED = {"LOCK", "RDLOCK", "UNLOCK", "SHMLOCK", "CHECKRESERVEDLOCK", "NOMEM"}


def open_read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection, which the caller must close. sqlite3.OperationalError if the file does not exist."""
    path = path.resolve()
    # SQLite makes files beside a database. Where it cannot, and no process has made them, nobody writes to it.
    is_fixed = not (path.with_name(f"{path.name}-wal").exists() or os.access(path.parent, os.W_OK))
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable={int(is_fixed)}", uri=True)


def refuse_lost(path: Path, opened: os.stat_result) -> None:
    """Raise FileNotFoundError unless `path` still names the opened database: SQLite goes on with a lost file."""
    if not is_still(opened, path):
        raise FileNotFoundError(errno.ENOENT, "it was deleted, moved or replaced while in use", str(path))


def begin(database: sqlite3.Connection, path: Path, tell: Callable[[str], object]) -> None:
    """Begin a writing transaction. It waits up to ten minutes for another program, and calls `tell` once, after 5 s.

    An attempt takes as long as the connection's timeout (5 s by default). Meanwhile Python handles no signal.
    """
    until_s, is_told = time.monotonic() + _LOCKED_MAX_S, False
    while True:
        try:
            database.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() > until_s:
                raise
        if not is_told:
            is_told = True
            tell(f"another program is writing to {path}, which is waited for: close it")


class LogGrowth:
    """Watches a write-ahead log's size. While another program reads, SQLite cannot empty the log, so it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._most_bytes = _LOG_BYTES_MAX

    def by_a_reader(self, database: sqlite3.Connection) -> str:
        """The warning to give after a commit, each time the log has doubled. Otherwise empty."""
        with suppress(OSError, sqlite3.Error):  # the commit itself has succeeded
            if (size := self._log.stat().st_size) >= self._most_bytes:
                self._most_bytes = 2 * size
                _, held, taken_in = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if taken_in < held:
                    return (
                        f"another program has been reading {self._path} all the time, so {self._log.name} grows (to"
                        f" {size >> 20} MiB by now): close it"
                    )
        return ""


def is_locked(error: Exception) -> bool:
    """Whether an error means that another connection holds the database."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def unharmed(error: Exception) -> str | None:
    """Why a database could not be used, if the reason leaves its contents intact. None if it may be damaged."""
    kind, _, detail = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").partition("_")
    if is_locked(error):
        return f"another program is writing to it ({error}); close that program"
    if kind == "IOERR" and detail in _NOT_WRITTEN:
        return f"cannot be written ({error}; is the disk full?)"
    if kind == "IOERR" and detail in _NOT_LOCKED:
        return f"cannot be locked ({error})"
    return f"cannot be written ({error})" if kind in _NOT_GIVEN else None


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn an error of the database into a ConfigError that names it, unless the error may mean damage."""
    try:
        yield
    except sqlite3.Error as error:
        if (why := unharmed(error)) is None:
            raise
        raise ConfigError(f"{path}: {why}") from error


class CommitCount:
    """The number of a database's commits, kept in NAME-head beside it while some of them may be in NAME-wal only.

    SQLite drops the end of a damaged write-ahead log silently. The count is written after each commit, so it is never
    ahead of what is durable, and needs no fsync. A database with fewer commits has lost the end of its log. A count
    that is lost, torn or too low is no error.
    """

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-head")
        self._log = database.with_name(f"{database.name}-wal")
        self._file: int | None = None

    def read(self) -> int:
        """The noted number of commits. 0 if unknown."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return 0
        return int(data) if data.isdigit() else 0  # a torn count is too low

    def write(self, count: int) -> None:
        """Note that `count` commits are durable. Errors of the disk are ignored."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._file, f"{count:0{_COUNT_DIGITS}}".encode(), 0)

    def close(self) -> None:
        """Delete the count file after the database was closed, unless SQLite had to leave the database's log."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if not self._log.exists():
            with suppress(OSError):
                self._path.unlink()
