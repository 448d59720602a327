"""The provenance of a run's numbers: each start of the run, recorded in its log."""

import json
import os
import platform
import shlex
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from pausefl_process.databases import open_read_only
from pausefl_process.machine import machine_in_words
from pausefl_process.version import __version__
from pausefl_proto.errors import ConfigError
from pausefl_server.storage.store import Store

_STARTS = "starts"
_SERVED = "served"
_FLEET = "fleet"


def note_start(
    run_dir: Path, *, code: str = "", owners: Mapping[str, str] | None = None, served: bool = False, fleet: str = ""
) -> None:
    """Write this start into the run's log. With `served`, clients come from outside.

    `fleet` is the address at which `pausefl run` expects these clients. `owners` maps client ids to owners of examples.
    `code` is that of `own_code.own_code`.
    """
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        if served:
            store.set_meta(_SERVED, "true")
            store.set_meta(_FLEET, fleet)
        if owners:
            store.set_meta("owners", json.dumps(owners, ensure_ascii=False))
        starts = [*starts_of(store), {**this_start(), **({"own_code": code} if code else {})}]
        store.set_meta(_STARTS, json.dumps(starts, ensure_ascii=False))


def is_served(run_dir: Path) -> bool:
    """Whether the run's clients come from outside (`pausefl server`, `--fleet`) and keep their own ledgers."""
    return meta_of(run_dir, _SERVED) == "true"


def fleet_of(run_dir: Path) -> str:
    """The address at which `pausefl run --fleet` expects the run's clients; empty for any other run."""
    return meta_of(run_dir, _FLEET) or ""


def note_unserved(run_dir: Path) -> None:
    """Withdraw the note that clients come from outside, unless one may have had a job, as in any round.

    A missing or unwritable log is ignored: the caller is about to report why the run failed.
    """
    log = run_dir / "run.db"
    with suppress(ConfigError):
        if log.exists():
            with closing(Store(log, verify=False)) as store:
                if not (store.has_sent or store.log().last):
                    store.set_meta(_SERVED, "false")


def meta_of(run_dir: Path, key: str) -> str | None:
    """The value of a key in the `meta` table of a run's log; None if there is none. The log may be in use."""
    try:
        with closing(open_read_only(run_dir / "run.db")) as database:
            row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error:  # there is no log yet, or it is damaged, which the server reports
        return None
    return None if row is None else str(row[0])


def starts_of(store: Store) -> list[dict[str, str]]:
    """The starts of a run, oldest first, with the names of `this_start`."""
    starts: list[dict[str, str]] = json.loads(store.meta(_STARTS) or "[]")
    return starts


def this_start() -> dict[str, str]:
    """When, where, by which command and with which software this process began or resumes a run.

    `started` is in UTC. `commit` is that of the checkout, with "+" if files were changed, or of the container's image;
    empty if unknown. `machine` is the host's processor, and how many cores were available.
    """
    path = Path(sys.argv[0])
    program = "pausefl" if path.parts[-2:] == ("pausefl", "__main__.py") else path.name  # python -m pausefl
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([program, *sys.argv[1:]]),
        "version": __version__,
        "commit": _commit(),
        "host": socket.gethostname(),
        "machine": machine_in_words(),
        "python": platform.python_version(),
    }


def _commit() -> str:
    """The commit of this file's checkout or of the container's image ($PAUSEFL_COMMIT); empty if unknown."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # git would find an unrelated repository around a virtual environment
        return os.environ.get("PAUSEFL_COMMIT", "")
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
