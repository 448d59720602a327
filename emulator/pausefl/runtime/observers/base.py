"""The base of observers, and the numbers of progress events, by the names that dashboards of others show."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pausefl_process.events import ModelEvaluated, ProgressEvent, RoundCommitted

_NO_FIGURES = {"round", "rounds", "time_scale"}
_OF_A_ROUND = [f.name for f in fields(RoundCommitted) if f.type in {int, float} and f.name not in _NO_FIGURES]


class Observer:
    """Is told of one run's progress, in a thread of its own; ignores it. Subclasses override what concerns them.

    An observer that raises is told nothing more, and the run goes on.
    """

    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """The run in this directory begins or goes on; `settings` is its experiment, by table and key."""

    def on_event(self, event: ProgressEvent) -> None:
        """One progress event, in order (docs/events.md)."""

    def end(self) -> None:
        """The run has ended, in whatever way; the last call."""


def figures(event: ProgressEvent) -> Mapping[str, tuple[int, float]]:
    """Name -> (round, value), for a round or an evaluation; empty for other events."""
    match event:
        case RoundCommitted(number):
            return {name: (number, float(getattr(event, name))) for name in _OF_A_ROUND}
        case ModelEvaluated(number, split, accuracy, loss, metric, _):
            losses = {} if loss is None else {f"loss/{split}": (number, loss)}
            return {f"{_plain(metric)}/{split}": (number, accuracy), **losses}
    return {}


def _plain(metric: str) -> str:
    """A task's score by a name that MLflow takes as well."""
    return re.sub(r"[^\w .:-]", "_", metric)
