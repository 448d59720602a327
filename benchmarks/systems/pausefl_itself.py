"""pausefl as `pausefl run` plays it, but without delays and metrics, which the other systems lack."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.systems.task import ENDLESS, Task, progress, settings_of
from pausefl.bench.runs import BARE
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_process.events import ModelEvaluated, ProgressEvent, RoundCommitted, WaitingForClients


def experiment_of(task: Task, settings: Sequence[str] = ()) -> Experiment:
    """The experiment that plays a task, with these additional settings (key=value)."""
    everything = task.per_round == task.clients and not task.buffer
    common = [
        f"experiment.rounds={ENDLESS}",
        f"clients.count={task.clients}",
        f"selection.m={task.per_round}",
        f"selection.policy={'all' if everything else 'random'}",
        *(_steps(task) if task.buffer else ()),
        *settings,
    ]
    if not task.data:
        return parse_experiment(BARE, [*common, f"workload.model_bytes={task.model_bytes}"])
    bare = (f"privacy.enabled={str(task.has_noise).lower()}", 'latency.delay={kind="none"}', "metrics.enabled=false")
    rated = (f"evaluation.every={task.rated_round}", "evaluation.subset=10000")  # the subset is the whole test set
    data = settings_of(task)
    seeds = (
        f"experiment.seed={task.seed}",
        *(f"experiment.{part}_seed={data['seed']}" for part in ("split", "model")),
    )
    return load_experiment(data["preset"], [*common, *bare, *rated, *seeds, *data["overrides"]])


def _steps(task: Task) -> Sequence[str]:
    rule = "fedasync" if task.buffer == 1 else "fedbuff"
    size = (f"asynchronous.concurrency={task.per_round}", f"asynchronous.buffer={task.buffer}")
    return ("server.mode=asynchronous", f"asynchronous.rule={rule}", *size)


class _View:
    """Passes events of the run on as progress."""

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, WaitingForClients) and event.connected == self._clients:
            progress().ended(0)
        if isinstance(event, RoundCommitted):
            progress().ended(event.round)
        if isinstance(event, ModelEvaluated) and event.split == "test":
            progress().accuracy(event.accuracy)


def main(*settings: str) -> None:
    """Play one run with rounds without end, with these additional settings (key=value)."""
    task = Task.given()
    with tempfile.TemporaryDirectory() as folder:
        Fleet(plan_of(experiment_of(task, settings), "bench"), Path(folder)).run(_View(task.clients).show)


if __name__ == "__main__":
    main()
