"""Tries the data and model of a campaign's runs before any run is played, in a process like those of the runs."""

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import Experiment
from pausefl.extras import is_installed
from pausefl.runtime.forks import forked_run, spawned
from pausefl.runtime.processes.lifetime import in_children
from pausefl.studies.campaign import Missing, Planned
from pausefl_proto.errors import PauseflError

_NAME = "pausefl-check"
# The tables that data, partition and model depend on. The seed is not among them, as it changes no shape.
_TRIED = {"workload", "clients", "privacy", "tls", "admission", "evaluation"}


def impossible(runs: Sequence[Planned], say: Callable[[str], object]) -> Missing:
    """The error of each run whose data cannot be partitioned or whose model fails in a training step, by run name."""
    trials = {run.name: run.experiment.model_dump_json(include=_TRIED) for run in runs}
    trained = {trials[run.name]: run.experiment for run in runs if run.experiment.workload.model != "synthetic"}
    if not (trained and is_installed("client")):
        return {}
    if len(trained) > 1:
        say(f"before any run, {len(trained)} settings of data and training are tried")
    found = dict(zip(trained, _in_child(_try_out, list(trained.values())), strict=True))
    return {name: error for name, trial in trials.items() if (error := found.get(trial)) is not None}


def note_step_times(experiments: Sequence[Experiment], folder: Path) -> None:
    """Measure once, for all machines, how long a training step takes on the virtual clock: they share no locks."""
    if any(experiment.workload.model != "synthetic" for experiment in experiments):
        _in_child(_measure_step, experiments, folder)


def _in_child(
    work: Callable[..., None], experiments: Sequence[Experiment], *arguments: Any
) -> list[PauseflError | None]:
    """Call `work` for each experiment in a child process; returns the error of each call, or None."""
    make: Callable[..., BaseProcess] = partial(spawned, _NAME)
    if all(experiment.experiment.clock == "virtual" for experiment in experiments):
        make = partial(forked_run, _NAME, needs_torch=True, is_first_of_many=True)
    # else not forked: the fork server starts later, and is to import only what clients need
    return [*in_children(make, 1, partial(_error_of, work, arguments), experiments)]


def _error_of(work: Callable[..., None], arguments: Sequence[Any], experiment: Experiment) -> PauseflError | None:
    try:
        work(experiment, *arguments)
    except PauseflError as error:
        return error
    return None


def _try_out(experiment: Experiment) -> None:
    from pausefl.runtime.evaluator.preflight import try_out
    from pausefl_client.data.datasets import prepare_dataset

    prepare_dataset(experiment.workload.dataset)
    try_out(experiment, lambda _: None)


def _measure_step(experiment: Experiment, folder: Path) -> None:
    from pausefl.runtime.client.plan import client_plan
    from pausefl.runtime.virtual.steps import share_step_time

    if experiment.experiment.clock == "virtual":
        share_step_time(client_plan(experiment).training, folder)
