"""The base of observers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pausefl_process.events import ProgressEvent


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
