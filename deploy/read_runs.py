"""Write the run directories in a folder to standard output, as a tar file; `make results` has the server's image do so.

python read_runs.py FOLDER. A run may go on meanwhile: its log is copied as it was after some round.
"""

import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path

# What belongs to the process that plays the run: an index that is made again, and a count that may be ahead of a copy.
LEFT_OUT = ("*.db-shm", "*.db-head")
# What may happen to files while they are read, and tar's exit status for it.
EXPECTED = ("changed", "removed")
DIFFERED = 1


def main(folder: str) -> int:
    """Exit status 0 where everything was read."""
    with ExitStack() as closing_all:
        for path in sorted(Path(folder).glob("*/*.db")):
            with suppress(sqlite3.Error):  # closed, or damaged: then nobody writes it
                database = closing_all.enter_context(closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)))
                # While anybody reads, SQLite does not begin its write-ahead log anew: whatever of the database changes
                # under tar's eyes still stands there as well.
                database.execute("BEGIN")
                database.execute("SELECT 1 FROM sqlite_schema").fetchone()
        options = [*(f"--exclude={name}" for name in LEFT_OUT), *(f"--warning=no-file-{what}" for what in EXPECTED)]
        status = subprocess.run(["tar", "-C", folder, *options, "-c", "."], check=False).returncode
    return 0 if status == DIFFERED else status


sys.exit(main(*sys.argv[1:]))
