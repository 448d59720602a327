"""The base class of observers, and the figures of progress events by the names that other tools' dashboards show."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pausefl_process.events import ModelEvaluated, ProgressEvent, RoundCommitted

_NO_FIGURES = {"round", "rounds", "time_scale"}
_OF_A_ROUND = [f.name for f in fields(RoundCommitted) if f.type in {int, float} and f.name not in _NO_FIGURES]


class Observer:
    """Receives one run's progress in its own thread, and ignores it. Subclasses override the methods that they need.

    An observer that raises an error receives nothing more, and the run goes on.
    """

    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Called when the run in this directory begins or resumes. `settings` is its experiment, by table and key."""

    def on_event(self, event: ProgressEvent) -> None:
        """Called for each progress event, in order (docs/events.md)."""

    def end(self) -> None:
        """Called last, when the run has ended in any way."""


def figures(event: ProgressEvent) -> Mapping[str, tuple[int, float]]:
    """Name -> (round, value), for a round or an evaluation, with "-all" if it used all examples; else empty."""
    match event:
        case RoundCommitted(number):
            return {name: (number, float(getattr(event, name))) for name in _OF_A_ROUND}
        case ModelEvaluated(number, split, accuracy, loss, metric, subset):
            data = split if subset else f"{split}-all"  # at the end, the best model is evaluated after later ones
            losses = {} if loss is None else {f"loss/{data}": (number, loss)}
            name = re.sub(r"[^\w .:-]", "_", metric)  # the characters that MLflow accepts
            return {f"{name}/{data}": (number, accuracy), **losses}
    return {}
