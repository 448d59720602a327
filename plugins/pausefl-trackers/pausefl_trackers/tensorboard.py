"""Writes a run's progress for TensorBoard: `tensorboard --logdir RUN_DIR/tensorboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from pausefl.runtime.observers.base import Observer, figures
from pausefl_process.events import ProgressEvent


class TensorBoard(Observer):
    """Writes event files to the folder `tensorboard` of the run directory, with one scalar for each figure."""

    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._writer = SummaryWriter(str(run_dir / "tensorboard"))

    def on_event(self, event: ProgressEvent) -> None:
        for name, (number, value) in figures(event).items():
            self._writer.add_scalar(name, value, number)

    def end(self) -> None:
        self._writer.close()
