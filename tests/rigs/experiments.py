"""A small experiment that tests play."""

from collections.abc import Mapping
from typing import Any

from pausefl.experiment.experiment import Experiment
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
