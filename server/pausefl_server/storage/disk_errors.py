"""What SQLite says when a database cannot be written."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pausefl_proto.errors import ConfigError

# What the disk does not take. The latter are a "disk I/O error" each, as are those of a disk that cannot be read.
_NOT_TAKEN = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_NOT_WRITTEN = {
    *(sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC),
    *(sqlite3.SQLITE_IOERR_TRUNCATE, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMSIZE),
    sqlite3.SQLITE_IOERR_SHMMAP,
}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """ConfigError where a database could not be written, rather than read: it is not damaged."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _NOT_WRITTEN:
            raise ConfigError(f"{path}: cannot be written ({error}; is the disk full?)") from error
        if code & 0xFF in _NOT_TAKEN:
            raise ConfigError(f"{path}: cannot be written ({error})") from error
        raise
