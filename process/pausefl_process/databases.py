"""SQLite databases of this project: how they are read, and what keeps a write from getting lost."""

import errno
import os
import sqlite3
from pathlib import Path

from pausefl_process.files import is_still


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; sqlite3.OperationalError where there is no file. The caller closes it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def refuse_lost(path: Path, opened: os.stat_result) -> None:
    """FileNotFoundError unless `path` still names the database that was opened: what is written would be lost with it.

    SQLite goes on without a word with a file that was deleted or moved away.
    """
    if not is_still(opened, path):
        raise FileNotFoundError(errno.ENOENT, "it was deleted, moved or replaced while in use", str(path))
