"""How many commits a database holds, beside it: SQLite drops the end of a damaged write-ahead log without a word."""

import os
from contextlib import suppress
from pathlib import Path

_DIGITS = 20


class CommitCount:
    """The count of a database's commits, in NAME-head beside it as long as some of them may stand in NAME-wal alone.

    It is written after each commit, and so never ahead of what is durable: it needs no fsync of its own. A database
    that holds fewer has lost the end of its log. A file that was itself lost or torn says 0. A full disk may leave too
    low a count: a commit that is durable has not failed for that.
    """

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-head")
        self._log = database.with_name(f"{database.name}-wal")
        self._file: int | None = None

    def read(self) -> int:
        """The commits there were; 0 where nothing is known."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return 0
        return int(data) if len(data) == _DIGITS and data.isdigit() else 0

    def write(self, count: int) -> None:
        """Note that so many commits are durable, if the disk takes it."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._file, f"{count:0{_DIGITS}}".encode(), 0)

    def close(self) -> None:
        """Forget it once the database was closed, unless its log is still there.

        SQLite leaves that where another process reads it, or where the disk was full.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if not self._log.exists():
            with suppress(OSError):
                self._path.unlink()
