"""Logs a run to Weights & Biases, or to trackio, which has the same API. Each reads its own environment variables."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pausefl.runtime.observers.base import Observer, figures
from pausefl_process.events import ProgressEvent


class WandB(Observer):
    """A run of the project "pausefl", named after the run directory: settings, and figures with their round."""

    package: ClassVar[str] = "wandb"

    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._tracker: Any = import_module(self.package)
        self._tracker.init(project="pausefl", name=run_dir.name, config=dict(settings))

    def on_event(self, event: ProgressEvent) -> None:
        found = figures(event)
        if rounds := {number for number, _ in found.values()}:
            self._tracker.log({"round": rounds.pop(), **{name: value for name, (_, value) in found.items()}})

    def end(self) -> None:
        self._tracker.finish()


class Trackio(WandB):
    """A run in trackio, with the same content as in `WandB`: `trackio show --project pausefl`."""

    package = "trackio"
