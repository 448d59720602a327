"""Counts a database's commits in a file beside it. SQLite drops the end of a damaged write-ahead log silently."""

import os
from contextlib import suppress
from pathlib import Path

_DIGITS = 20


class CommitCount:
    """The number of a database's commits, kept in NAME-head beside it while some of them may be in NAME-wal only.

    It is written after each commit, so it is never ahead of what is durable, and needs no fsync. A database with fewer
    commits has lost the end of its log. A count that is lost, torn or too low is no error.
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
        return int(data) if len(data) == _DIGITS and data.isdigit() else 0

    def write(self, count: int) -> None:
        """Note that `count` commits are durable. Errors of the disk are ignored."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._file, f"{count:0{_DIGITS}}".encode(), 0)

    def close(self) -> None:
        """Delete the count file after the database was closed, unless SQLite had to leave the database's log."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if not self._log.exists():
            with suppress(OSError):
                self._path.unlink()
