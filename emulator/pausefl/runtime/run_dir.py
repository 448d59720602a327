"""The directory of a run. One process at a time uses it, and it is bound to the run's configuration."""

import atexit
import errno
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.in_force import Tables, config_toml, in_force, what_is_played
from pausefl.experiment.toml_source import measured_files
from pausefl.runtime.provenance import fleet_of, is_served, meta_of
from pausefl_process.databases import open_read_only
from pausefl_process.files import Lock, locked, prepare_folder, write_durably
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.excerpts import excerpts
from pausefl_server.storage.seals import check_version
from pausefl_server.storage.store import SERVER_PHASE, ServerPhase, Store

# Everything that a run's processes and observers write there before its first round, in the order of removal.
# The log (run.db) goes last: without it, the other files would look like a run that has lost its log.
_MADE = (
    "lock",
    "config.toml",
    "checkpoints",
    "ledgers",
    "server.log",
    "clients.log",
    "targets.json",
    "step.json",
    "batched.json",
    "tensorboard",
    "summary.json",
    "run.db-wal",
    "run.db-shm",
    "run.db-head",
    "run.db",
)
_LOGS = {"server.log", "clients.log"}
# Errors that concern a whole disk. Such an OSError names no file.
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_CONFIG_DIGEST, _FILE_DIGESTS = "config_digest", "file_digests"

# How many differences between two experiments an error names at most.
_MOST_NAMED = 4

REPORT = "report.html"
"""The file name of the report, a page that is written when a run has ended."""
CAMPAIGN_PLAN = "campaign.json"
"""The file in a campaign's folder that holds its plan, as the user asked for it."""
SHARED_STEPS = "steps.json"
"""The file in a campaign's folder with seconds per training step, which its runs share on the virtual clock."""


def new_run_dir(name: str, run_dir: str | None) -> Path:
    """The directory `run_dir`, or else a new folder runs/<name>-<time>. ConfigError if `run_dir` holds a run."""
    if not run_dir:
        return default_folder(name)
    path = Path(run_dir)
    refuse_run_in(path)
    return path


def default_folder(name: str) -> Path:
    """A new folder runs/<name>-<time>, with a number if another command made that folder in the same second.

    It is removed if it is still empty when this process ends.
    """
    runs = Path("runs")
    stem = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    runs.mkdir(exist_ok=True)
    for number in itertools.count(1):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    atexit.register(remove_unused, folder.absolute())
    return folder


def remove_unused(folder: Path) -> None:
    """Remove a default folder and its parent, the folder of all runs, if they are empty."""
    _remove_empty([folder, folder.parent])


@contextmanager
def made_run_dir(tables: Tables, run_dir: Path, *, resume: bool = False) -> Iterator[Lock]:
    """Prepare a directory for a new run or, with `resume`, for the run it holds, if any. Yields its lock for the block.

    `tables` are those of the run's experiment, with every value in force. ConfigError if another process uses it, if it
    cannot be written, or if it holds another run. After a ConfigError in the block, all new files are removed, unless a
    round was played or an update released, and a run is as long as before, unless one of its new rounds was begun.
    After another failure before any client joined, only the logs remain.
    """
    missing = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
    try:
        prepare_folder(run_dir, f"--run-dir {run_dir}")
        before = {name for name in _MADE if (run_dir / name).exists()}
        with locked(run_dir / "lock", f"run directory {run_dir}") as lock:
            config = (run_dir / "config.toml").read_bytes() if {"config.toml", "run.db"} <= before else b""
            try:
                _begin_or_go_on(tables, run_dir, resume=resume)
                yield lock
            except PauseflError as error:
                is_refused = isinstance(error, ConfigError)
                # A client that has joined may have released an update. If the log is lost, one may have joined.
                has_joined = _has_lost_log(run_dir) or _has_rows(run_dir / "run.db", "events")
                was_played = _has_rows(run_dir / "run.db", "rounds") or _has_releases(run_dir)
                if not (was_played or (has_joined and not is_refused)):
                    kept = before | (set() if is_refused else _LOGS)  # the logs help to explain a failure
                    _remove(run_dir / name for name in _MADE if name not in kept)
                    _remove_empty(missing)
                if config and is_refused and config != (run_dir / "config.toml").read_bytes():
                    _take_back_rounds(run_dir, config)
                raise
    except OSError as error:
        if not _is_of(error, run_dir):
            raise
        _remove_empty(missing)
        raise ConfigError(f"--run-dir {run_dir}: cannot be written ({error.strerror})") from error


def _is_of(error: OSError, run_dir: Path) -> bool:
    """Whether the error concerns this directory or its disk, not a connection or another file."""
    if error.filename is None:
        return error.errno in _OF_THE_DISK
    file = Path(os.fsdecode(error.filename)).absolute()
    return file in (run_dir.absolute(), *run_dir.absolute().parents) or run_dir.absolute() in file.parents


def refuse_other_version(run_dir: Path) -> None:
    """Raise ConfigError if a run in this directory was begun by a version with another form of log."""
    if found := meta_of(run_dir, "schema_version"):
        check_version(run_dir / "run.db", found)


def stored_experiment(run_dir: Path) -> Experiment:
    """The experiment stored in a run directory. ConfigError if it is no run directory, or config.toml was changed."""
    path = run_dir / "config.toml"
    if not (run_dir.is_dir() and (path.exists() or (run_dir / "run.db").exists())):
        if (run_dir / CAMPAIGN_PLAN).exists():
            raise ConfigError(f"{run_dir}: holds a comparison, a sweep or a search; name one of the runs in it")
        raise ConfigError(f"{run_dir}: is not a run directory (no config.toml)")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); restore it from a copy") from error
    refuse_other_version(run_dir)
    begun_with = (meta_of(run_dir, _CONFIG_DIGEST) or "").split()  # two digests while the run is being extended
    if begun_with and _digest(data) not in begun_with:
        what = "was changed since the run began" if data else "is empty"
        raise ConfigError(f"{path}: {what}; restore the file that it began with from a copy")
    return parse_experiment(data.decode("utf-8", "replace"), file=str(path))


def _begin_or_go_on(tables: Tables, run_dir: Path, *, resume: bool) -> None:
    """Bind the run to its configuration. A new run writes config.toml; a resumed run may only differ in more rounds."""
    _refuse_place(run_dir, resume=resume)
    config = run_dir / "config.toml"
    if not (run_dir / "run.db").exists():
        write_durably(config, config_toml(tables).encode())
    elif _extends(tables, run_dir):
        _replace_config(run_dir, config_toml(tables).encode())
    with closing(Store(run_dir / "run.db")) as store:  # opening it finds damage before any process is started
        if store.meta(_CONFIG_DIGEST) is None:
            store.set_meta(_FILE_DIGESTS, json.dumps(_file_digests(tables)))
            store.set_meta(_CONFIG_DIGEST, _digest(config.read_bytes()))


def _refuse_place(run_dir: Path, *, resume: bool) -> None:
    """ConfigError if no run can begin in a directory or, with `resume`, none can go on there."""
    if (run_dir / CAMPAIGN_PLAN).exists():
        raise ConfigError(f"--run-dir {run_dir}: holds a campaign (a comparison, a sweep or a search); choose another")
    if resume and _has_lost_log(run_dir):  # the run would start again, and forget what clients have spent
        raise ConfigError(f"{run_dir / 'run.db'}: is missing or empty, but a run began there; restore it from a copy")
    if not resume:
        refuse_run_in(run_dir)


def refuse_changed_files(tables: Tables, run_dir: Path) -> None:
    """Raise ConfigError if a file of measured data was changed since the run in a directory began."""
    begun_with = json.loads(meta_of(run_dir, _FILE_DIGESTS) or "{}")
    for file, digest in _file_digests(tables).items():
        if begun_with.get(file, digest) != digest:
            raise ConfigError(f"{file}: was changed since the run in {run_dir} began; restore it from a copy")


def _file_digests(tables: Tables) -> dict[str, str]:
    """The digest of each file of measured data that is on this machine, by its path."""
    files = {Path(table[name]) for table, name in measured_files(tables)}
    return {str(file): _digest(file.read_bytes()) for file in files if file.is_file()}


def check_goes_on(tables: Tables, run_dir: Path) -> None:
    """ConfigError if the directory holds a run of another experiment, or one without rounds left. Writes nothing."""
    _refuse_place(run_dir, resume=True)
    rounds = tables["experiment"]["rounds"]
    if not (run_dir / "run.db").exists() or _extends(tables, run_dir):
        return
    played = 0
    with suppress(OSError, ValueError, LookupError, TypeError):  # it cannot be read, or an older version wrote it
        played = json.loads((run_dir / "summary.json").read_text("utf-8"))["rounds"]
    if played == rounds:
        raise ConfigError(
            f"--run-dir {run_dir}: holds a run that has played its {rounds} rounds; choose another directory, or"
            " give it more (experiment.rounds)"
        )


def has_rounds(run_dir: Path) -> bool:
    """Whether a round was played there; False if its log cannot be read."""
    return _has_rows(run_dir / "run.db", "rounds", if_unreadable=False)


def _extends(tables: Tables, run_dir: Path) -> bool:
    """Whether the experiment is the run's, with more rounds. ConfigError if other keys, or files of data, differ."""
    refuse_changed_files(tables, run_dir)
    stored = in_force(stored_experiment(run_dir))
    begun, wanted = (of["experiment"]["rounds"] for of in (stored, tables))
    if found := [told for told in differences(stored, tables) if not told.startswith("experiment.rounds ")]:
        told = "; ".join(found[:_MOST_NAMED])
        raise ConfigError(f"--run-dir {run_dir}: holds the run of another experiment: {told}")
    if wanted < begun:
        raise ConfigError(f"experiment.rounds = {wanted}: the run in {run_dir} goes to {begun} already, give it more")
    return bool(wanted > begun)


def _take_back_rounds(run_dir: Path, config: bytes) -> None:
    """Write the configuration from before the run got more rounds, unless one of these was begun."""
    rounds = parse_experiment(config.decode()).experiment.rounds
    is_at_work = meta_of(run_dir, SERVER_PHASE) == ServerPhase.AT_WORK  # a job of the next round may be out
    if not _has_rows(run_dir / "run.db", f"rounds WHERE round > {rounds - is_at_work}"):
        _replace_config(run_dir, config)


def _replace_config(run_dir: Path, text: bytes) -> None:
    """Write the configuration with other rounds. Meanwhile the log holds the old and the new digest."""
    path = run_dir / "config.toml"
    with closing(Store(run_dir / "run.db")) as store:
        store.set_meta(_CONFIG_DIGEST, f"{_digest(path.read_bytes())} {_digest(text)}")
        write_durably(path, text)
        store.set_meta(_CONFIG_DIGEST, _digest(text))


def differences(stored: Tables, wanted: Tables) -> list[str]:
    """A text for each key that affects results and has different values in the two experiments, with both values."""
    there, here = what_is_played(stored), what_is_played(wanted)
    found = []
    for key in sorted(there.keys() | here.keys()):
        is_of_a_policy = key.startswith("selection.") and key.count(".") > 1
        if is_of_a_policy and there["selection.policy"] != here["selection.policy"]:
            continue
        if there.get(key) != here.get(key):
            was, now = excerpts(_shown(there.get(key)), _shown(here.get(key)))
            found.append(f"{key} is {was} there, {now} here")
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def refuse_run_in(run_dir: Path, go_on: str = "") -> None:
    """ConfigError if the directory holds a run. `go_on` tells how to resume it; the default is `resume_command`."""
    if (run_dir / "run.db").exists():
        go_on = go_on or resume_command(run_dir)
        raise ConfigError(f"{run_dir}: holds a run; choose another folder, or go on with it: {go_on}")


def refuse_clients_elsewhere(run_dir: Path, *, served: bool) -> None:
    """ConfigError if a run would be resumed with other clients (`served`: from outside), whose ledgers are empty."""
    go_on = f"go on with: {resume_command(run_dir)}"
    if served and not is_served(run_dir) and (has_rounds(run_dir) or _has_releases(run_dir)):
        raise ConfigError(f"{run_dir}: was played by clients of this machine, whose ledgers lie in it; {go_on}")
    if is_served(run_dir) and not served:
        raise ConfigError(f"{run_dir}: was served to clients elsewhere, which keep its ledgers; {go_on}")


def resume_command(run_dir: Path) -> str:
    """The command that resumes a run. CONFIG in it stands for the CONFIG that `pausefl server` was given before."""
    if fleet := fleet_of(run_dir):
        return shlex.join(["pausefl", "run", "--resume", str(run_dir), "--fleet", fleet])
    if is_served(run_dir):
        return shlex.join(["pausefl", "server", "CONFIG", "--resume", "--run-dir", str(run_dir)])
    return shlex.join(["pausefl", "run", "--resume", str(run_dir)])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _has_lost_log(run_dir: Path) -> bool:
    is_log = _has_rows(run_dir / "run.db", "sqlite_schema")  # or it is damaged, which opening it reports
    return not is_log and any((run_dir / name).exists() for name in ("checkpoints", "summary.json"))


def _has_releases(run_dir: Path) -> bool:
    return any(_has_rows(ledger, "releases") for ledger in (run_dir / "ledgers").glob("*.db"))


def _has_rows(path: Path, table: str, *, if_unreadable: bool = True) -> bool:
    """Whether the table has rows. True by default if the file cannot be read: then it must not be deleted either."""
    if not path.exists():
        return False
    try:
        with closing(open_read_only(path)) as database:
            return database.execute(f"SELECT 1 FROM {table}").fetchone() is not None
    except sqlite3.Error as error:
        return if_unreadable and "no such table" not in str(error)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are empty. They are given from the innermost outwards."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
