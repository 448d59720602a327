"""Where a run's numbers come from: each start of it, written into its log."""

import json
import platform
import shlex
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pausefl.version import __version__
from pausefl_server.storage.store import Store

_STARTS = "starts"


@dataclass(frozen=True)
class Start:
    """When, where, by which command and with which software a run was begun or resumed."""

    started: str
    """UTC, ISO 8601."""
    command: str
    version: str
    commit: str
    """Of the source, with "+" where files were changed; empty for an installed package."""
    host: str
    python: str


def note_start(run_dir: Path) -> None:
    """Write this start into the run's log."""
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        starts = [*starts_of(store), asdict(this_start())]
        store.set_meta(_STARTS, json.dumps(starts, ensure_ascii=False))


def starts_of(store: Store) -> list[dict[str, str]]:
    """The starts of a run, the first one first, with the fields of `Start`."""
    starts: list[dict[str, str]] = json.loads(store.meta(_STARTS) or "[]")
    return starts


def this_start() -> Start:
    """What this process was started as, read now."""
    return Start(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        version=__version__,
        commit=_commit(),
        host=socket.gethostname(),
        python=platform.python_version(),
    )


def _commit() -> str:
    """The commit of the checkout that this file lies in."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
