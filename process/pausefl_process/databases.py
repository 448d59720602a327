"""SQLite databases of this project, as those who only read them open them."""

import sqlite3
from pathlib import Path


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; sqlite3.OperationalError where there is no file. The caller closes it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
