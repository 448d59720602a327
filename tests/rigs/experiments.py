"""A small experiment for tests, its run, and the links that the plan gives to an experiment's clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.experiment import Experiment, load_experiment
from pausefl.experiment.links import LinkPlan, plan_links
from pausefl.runtime.run import run_experiment

SMALL: dict[str, Any] = {
    "experiment.clock": "virtual",
    "experiment.rounds": 3,
    "clients.count": 4,
    "selection.m": 2,
    "workload.model": "synthetic",
}


def small(changes: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment of three rounds of a synthetic model on the virtual clock, with these changed settings."""
    return load_experiment("demo", {**SMALL, **(changes or {})})


def play(experiment: Experiment, run_dir: Path) -> None:
    """Play a run to its end without drawing a report, as a campaign does."""
    run_experiment(experiment, run_dir, lambda _: None, has_report=False)


def links_of(experiment: Experiment) -> dict[str, LinkPlan]:
    """Each client's link by client id. ConfigError if the settings contradict each other."""
    return plan_links(experiment.latency, experiment.client_ids, experiment.experiment.seed_of("latency"))


def delays_of(experiment: Experiment) -> dict[str, Delay]:
    """The delay law of each client's exchange by client id."""
    return {client_id: link.exchange for client_id, link in links_of(experiment).items()}
