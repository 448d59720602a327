"""Where a run's numbers come from: each start of it, written into its log."""

import json
import os
import platform
import shlex
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pausefl.version import __version__
from pausefl_process.databases import open_read_only
from pausefl_proto.errors import ConfigError
from pausefl_server.storage.store import Store

_STARTS = "starts"
_SERVED = "served"


@dataclass(frozen=True)
class Start:
    """When, where, by which command and with which software a run was begun or resumed."""

    started: str
    """UTC, ISO 8601."""
    command: str
    version: str
    commit: str
    """Of the checkout, with "+" where files were changed, or of a container's image; else empty."""
    host: str
    python: str


def note_start(run_dir: Path, *, served: bool = False) -> None:
    """Write this start into the run's log; with `served` also that its clients are elsewhere, from now on."""
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        if served:
            store.set_meta(_SERVED, "true")
        starts = [*starts_of(store), asdict(this_start())]
        store.set_meta(_STARTS, json.dumps(starts, ensure_ascii=False))


def is_served(run_dir: Path) -> bool:
    """Whether `pausefl server` ever played the run there, whose clients keep ledgers of their own."""
    return meta_of(run_dir, _SERVED) == "true"


def note_unserved(run_dir: Path) -> None:
    """Take it back that a run's clients are elsewhere, unless one of them may have had a job.

    The run has failed, which is to be told: not that its log is gone, or cannot be written, as well.
    """
    log = run_dir / "run.db"
    with suppress(ConfigError):
        if log.exists():
            with closing(Store(log, verify=False)) as store:
                if not store.has_sent:
                    store.set_meta(_SERVED, "false")


def meta_of(run_dir: Path, key: str) -> str | None:
    """What a run's log, which may be in use, notes under a key; None for nothing."""
    try:
        with closing(open_read_only(run_dir / "run.db")) as database:
            row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error:  # there is none yet, or it is damaged, which the server says
        return None
    return None if row is None else str(row[0])


def starts_of(store: Store) -> list[dict[str, str]]:
    """The starts of a run, the first one first, with the fields of `Start`."""
    starts: list[dict[str, str]] = json.loads(store.meta(_STARTS) or "[]")
    return starts


def this_start() -> Start:
    """What this process was started as, read now."""
    return Start(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join([_program(), *sys.argv[1:]]),
        version=__version__,
        commit=_commit(),
        host=socket.gethostname(),
        python=platform.python_version(),
    )


def _program() -> str:
    """What was typed to start this process; `python -m pausefl` is the command `pausefl`."""
    path = Path(sys.argv[0])
    return "pausefl" if path.parts[-2:] == ("pausefl", "__main__.py") else path.name


def _commit() -> str:
    """The commit of the checkout that this file lies in, or that an image was made of ($PAUSEFL_COMMIT)."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # where git would find whatever repository an environment lies in
        return os.environ.get("PAUSEFL_COMMIT", "")
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
