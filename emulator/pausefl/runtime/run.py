"""Runs a whole experiment in its own directory: processes, log, summary, report."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pausefl.config.experiment import Experiment
from pausefl.config.groups import check_rounds
from pausefl.extras import require
from pausefl.observers import Observed, Observer, load_observers
from pausefl.results.stored_summary import read_summary
from pausefl.runtime.fleet import Fleet, View
from pausefl.runtime.provenance import note_start
from pausefl.runtime.run_dir import REPORT, made_run_dir, refuse_served_run
from pausefl_client.privacy.ledger import make_durable
from pausefl_client.privacy.mechanism import ExactLaplace
from pausefl_proto.errors import ConfigError


def run_experiment(
    experiment: Experiment,
    run_dir: Path,
    view: View,
    *,
    resume: bool = False,
    back_to: int | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Begin a run, or go on with it, to the end; write the report, return the summary.

    A run that SIGTERM ended has no report: its sender waits 30 s at most, and drawing may take longer.
    A run that has come to its last round is left as it is. `back_to` takes back the rounds after that one first.
    Bad input leaves no directory behind. `observers` are told of its progress besides those of the experiment.
    """
    if resume:
        refuse_served_run(run_dir)
    else:
        check_rounds(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    require("server", "report")  # before hours of rounds whose report could not be drawn
    observers = [*observers, *load_observers(experiment.experiment.observers)]
    if experiment.workload.model != "synthetic":
        require("client")
        from pausefl_client.data.datasets import prepare_dataset

        prepare_dataset(experiment.workload.dataset)
    if experiment.privacy.enabled and experiment.privacy.sampler == "opendp":
        ExactLaplace()  # here, where its absence is bad input, not in thirty client processes
    if experiment.privacy.enabled and experiment.privacy.ledger_dir:
        _check_ledger_dir(Path(experiment.privacy.ledger_dir))
    with made_run_dir(experiment, run_dir, resume=resume) as lock:
        if back_to is None and _is_finished(experiment, run_dir):
            return {**read_summary(run_dir)}
        note_start(run_dir)
        fleet = Fleet(experiment, run_dir, lock, back_to)
        settings = experiment.model_dump(mode="json")
        with Observed(view.show, observers, run_dir, settings, run_dir / "server.log") as observed:
            fleet.run(observed)
    if fleet.was_terminated:
        (run_dir / REPORT).unlink(missing_ok=True)  # of what was played before
    else:
        from pausefl.report import write_report

        write_report(run_dir)
    return {**read_summary(run_dir)}


def _is_finished(experiment: Experiment, run_dir: Path) -> bool:
    """Whether every round was played and all that a run leaves is there."""
    if not all((run_dir / name).exists() for name in ("summary.json", REPORT)):
        return False
    return read_summary(run_dir)["rounds"] == experiment.experiment.rounds


def _check_ledger_dir(folder: Path) -> None:
    """ConfigError, before thirty clients say it each, where no ledger can be written."""
    try:
        make_durable(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f'privacy.ledger_dir = "{folder}": cannot be written ({error.strerror})') from error
