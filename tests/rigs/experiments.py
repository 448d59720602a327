"""A small experiment that tests play, and the links of an experiment's clients, as its plan holds them."""

from collections.abc import Mapping
from typing import Any

from pausefl.experiment.delay_laws import Delay
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.links import LinkPlan, plan_links
from pausefl.experiment.loading import load_experiment

SMALL: dict[str, Any] = {
    "experiment.clock": "virtual",
    "experiment.rounds": 3,
    "clients.count": 4,
    "selection.m": 2,
    "workload.model": "synthetic",
}


def small(changes: Mapping[str, Any] | None = None) -> Experiment:
    """Three rounds of a synthetic model on the virtual clock, but for these settings."""
    return load_experiment("demo", {**SMALL, **(changes or {})})


def links_of(experiment: Experiment) -> dict[str, LinkPlan]:
    """Each client's link, by id; ConfigError."""
    return plan_links(experiment.latency, experiment.client_ids, experiment.experiment.seed_of("latency"))


def delays_of(experiment: Experiment) -> dict[str, Delay]:
    """The law of each client's delay per exchange, by id."""
    return {client_id: link.exchange for client_id, link in links_of(experiment).items()}
