"""pausefl as `pausefl run` plays it, without privacy, delays and metrics, which the others do not have."""

import json
import tempfile
from pathlib import Path

from benchmarks.systems.task import ENDLESS, Task, progress
from pausefl.bench.runs import BARE
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import load_experiment, parse_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_process.events import ModelEvaluated, ProgressEvent, RoundCommitted, WaitingForClients


def experiment_of(task: Task) -> Experiment:
    """The experiment that plays a task."""
    everything = task.per_round == task.clients
    common = [
        f"experiment.rounds={ENDLESS}",
        f"clients.count={task.clients}",
        f"selection.m={task.per_round}",
        f"selection.policy={'all' if everything else 'random'}",
    ]
    if not task.data:
        return parse_experiment(BARE, [*common, f"workload.model_bytes={task.model_bytes}"])
    bare = ("privacy.enabled=false", 'latency.delay={kind="none"}', "metrics.enabled=false")
    rated = (f"evaluation.every={task.rated_round}", "evaluation.subset=10000")  # a subset of all examples
    settings = json.loads((Path(task.data) / "settings.json").read_text("utf-8"))
    seeds = (
        f"experiment.seed={task.seed}",
        *(f"experiment.{part}_seed={settings['seed']}" for part in ("split", "model")),
    )
    return load_experiment(settings["preset"], [*common, *bare, *rated, *seeds, *settings["overrides"]])


class _View:
    """Tells of what the run's processes report."""

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, WaitingForClients) and event.connected == self._clients:
            progress().ended(0)
        if isinstance(event, RoundCommitted):
            progress().ended(event.round)
        if isinstance(event, ModelEvaluated) and event.split == "test":
            progress().accuracy(event.accuracy)


def main() -> None:
    """Play rounds without end, as one run."""
    task = Task.given()
    with tempfile.TemporaryDirectory() as folder:
        Fleet(plan_of(experiment_of(task), "bench"), Path(folder)).run(_View(task.clients))


if __name__ == "__main__":
    main()
