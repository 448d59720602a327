"""Runs a whole experiment in its own directory: processes, log, summary, report."""

import json
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pausefl.config.experiment import Experiment, parse_experiment
from pausefl.runtime.fleet import Fleet, View
from pausefl_client.privacy import ExactLaplace
from pausefl_proto.errors import ConfigError


def new_run_dir(name: str, run_dir: str | None) -> Path:
    """The directory asked for, or runs/<name>-<time>; ConfigError when it holds a run already or cannot be made."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path(run_dir) if run_dir else Path("runs") / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{stamp}"
    if (path / "run.db").exists():
        raise ConfigError(f"--run-dir {path}: holds a run already; go on with it by --resume {path}")
    return path


def resumed_run_dir(experiment: Experiment, run_dir: str | None) -> Path:
    """The directory asked for, whether it holds this run already or not; ConfigError when it holds another's."""
    if run_dir is None:
        raise ConfigError("--resume: needs --run-dir")
    path = Path(run_dir)
    if (path / "run.db").exists() and stored_experiment(path) != experiment:
        raise ConfigError(f"--run-dir {path}: holds the run of another experiment, see its config.toml")
    return path


def run_experiment(experiment: Experiment, run_dir: Path, view: View) -> dict[str, Any]:
    """Run to the end, write the report, return the summary. Bad input leaves no directory behind."""
    if experiment.workload.model != "synthetic":
        from pausefl_client.datasets import prepare_dataset

        prepare_dataset(experiment.workload.dataset)
    if experiment.privacy.enabled and experiment.privacy.sampler == "opendp":
        ExactLaplace()  # here, where its absence is bad input, not in thirty client processes
    if experiment.privacy.enabled and experiment.privacy.ledger_dir:
        _check_ledger_dir(Path(experiment.privacy.ledger_dir))
    with made_run_dir(experiment, run_dir):
        Fleet(experiment, run_dir).run(view)
    from pausefl.report import write_report

    write_report(run_dir)
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text("utf-8"))
    return summary


@contextmanager
def made_run_dir(experiment: Experiment, run_dir: Path) -> Iterator[None]:
    """The directory of a run that is to begin or go on; ConfigError when it cannot be written.

    Input that is refused leaves nothing that was not there before, unless a round was played or an update released.
    """
    before = set(run_dir.iterdir()) if run_dir.is_dir() else set()
    missing = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.toml").write_text(experiment.to_toml(), "utf-8")
        yield
    except ConfigError:
        if _was_played(run_dir):
            raise
        for made in set(run_dir.iterdir()) - before:
            shutil.rmtree(made) if made.is_dir() else made.unlink()
        _remove_empty(missing)
        raise
    except OSError as error:
        _remove_empty(missing)
        raise ConfigError(f"--run-dir {run_dir}: cannot be written ({error.strerror})") from error


def _was_played(run_dir: Path) -> bool:
    ledgers = (run_dir / "ledgers").glob("*.db")
    return _has_rows(run_dir / "run.db", "rounds") or any(_has_rows(ledger, "releases") for ledger in ledgers)


def _has_rows(path: Path, table: str) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(f"SELECT 1 FROM {table}").fetchone() is not None
    except sqlite3.Error:  # there is none yet
        return False


def _remove_empty(folders: Iterable[Path]) -> None:
    """From the innermost on, as long as nobody else has put anything there."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _check_ledger_dir(folder: Path) -> None:
    """ConfigError, before thirty clients say it each, where no ledger can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f'privacy.ledger_dir = "{folder}": cannot be written ({error.strerror})') from error


def stored_experiment(run_dir: Path) -> Experiment:
    """The experiment of an existing run directory; ConfigError when it is none."""
    path = run_dir / "config.toml"
    if not path.is_file():
        raise ConfigError(f"{run_dir}: is not a run directory (no config.toml)")
    return parse_experiment(path.read_text("utf-8"), file=str(path))
