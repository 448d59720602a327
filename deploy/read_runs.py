"""Write the run directories in a folder to standard output, as a tar file. `make results` runs it in the server image.

python read_runs.py FOLDER. A run may go on meanwhile: the copy of its log then ends with some round.
"""

import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path

# Files of the process that plays the run: an index, which is made again, and a count that may be ahead of a copy.
LEFT_OUT = ("*.db-shm", "*.db-head")
# Changes that files may undergo while tar reads them, and tar's exit status for them.
EXPECTED = ("changed", "removed")
DIFFERED = 1


def main(folder: str) -> int:
    """Write the tar file. Returns the exit status, 0 if everything was read."""
    with ExitStack() as closing_all:
        for path in sorted(Path(folder).glob("*/*.db")):
            with suppress(sqlite3.Error):  # closed, or damaged: then no process writes it
                database = closing_all.enter_context(closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)))
                # During this read transaction, SQLite does not restart its write-ahead log. So what changes in the
                # database while tar reads it is still in the log too.
                database.execute("BEGIN")
                database.execute("SELECT 1 FROM sqlite_schema").fetchone()
        options = [*(f"--exclude={name}" for name in LEFT_OUT), *(f"--warning=no-file-{what}" for what in EXPECTED)]
        status = subprocess.run(["tar", "-C", folder, *options, "-c", "."], check=False).returncode
    return 0 if status == DIFFERED else status


sys.exit(main(*sys.argv[1:]))
