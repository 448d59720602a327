"""A run of a campaign as a job for any executor: it may be called again, elsewhere too, and then goes on."""

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pausefl.experiment.loading import parse_experiment
from pausefl.outcomes import RunInterrupted
from pausefl.runtime.fleet import ServerLost, show_nothing
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, SHARED_STEPS
from pausefl.studies.campaign import is_finished
from pausefl_process.ending import asking_to_end, signals_to, sigterm_as_interrupt
from pausefl_process.version import __version__
from pausefl_proto.errors import ConfigError, PauseflError


class UnfitMachine(ConfigError):
    """A machine cannot play any run of a campaign."""


@dataclass(frozen=True)
class Job:
    """Plays one run where it is called. It can be pickled."""

    source: str
    """The experiment, as TOML."""
    folder: Path
    """The campaign's, absolute."""
    name: str
    """The run's folder in it."""
    is_elsewhere: bool
    """The machine that plays may be another one: the run lives on its own disk, and is brought back in the end."""
    version: str = __version__

    def __call__(self, stop: Event | None = None) -> str | PauseflError:
        """Play the run, or go on with it; returns its outcome, or the error that ended it.

        UnfitMachine for another version of this software, and where the campaign's folder is not there. RunInterrupted
        where a signal or `stop` ended it, or its process was killed: called again, it goes on.
        """
        if self.version != __version__:
            return UnfitMachine(f"{os.uname().nodename}: has pausefl {__version__}, the campaign is of {self.version}")
        if self.is_elsewhere and not (self.folder / CAMPAIGN_PLAN).exists():
            return UnfitMachine(f"{self.folder}: is not there on {os.uname().nodename}; choose a folder that is shared")
        # Those of a pool may be daemons, which Python lets start no processes. Ours end with the one that began them.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # private
        try:
            experiment = parse_experiment(self.source)
            kept = self.folder / self.name
            place = on_own_disk(kept) if self.is_elsewhere else nullcontext(kept)
            with sigterm_as_interrupt(), place as run_dir:
                found = run_experiment(experiment, run_dir, show_nothing, resume=True, has_report=False, stop=stop)
        except (KeyboardInterrupt, ServerLost) as error:
            return RunInterrupted(str(error) or "interrupted")
        except PauseflError as error:
            return error
        return RunInterrupted("interrupted") if found["outcome"] == "interrupted" else str(found["outcome"])


@contextmanager
def on_own_disk(kept: Path) -> Iterator[Path]:
    """Where a run is played whose folder may be on another machine's disk, and is whole there after the block.

    SQLite's log and locks need a disk of this machine: network file systems have no shared memory, and few locks.
    """
    was_finished = is_finished(kept)
    with tempfile.TemporaryDirectory(prefix="pausefl-") as own:
        run_dir = Path(own) / kept.name
        for name in (CAMPAIGN_PLAN, SHARED_STEPS):  # how long a training step takes is the same in all runs
            if (kept.parent / name).exists():
                shutil.copyfile(kept.parent / name, Path(own) / name)
        if kept.exists():
            shutil.copytree(kept, run_dir)
        try:
            yield run_dir
        finally:
            if run_dir.exists() and was_finished == is_finished(kept):  # else another was first to play it
                with signals_to(signal.SIG_IGN, signal.SIGINT, *asking_to_end()):  # a second one would lose it
                    _bring_back(run_dir, kept)


def _bring_back(run_dir: Path, kept: Path) -> None:
    """Replace a folder by a copy, which has another name until it is whole."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{kept.name}-", dir=kept.parent) as beside:
        shutil.copytree(run_dir, Path(beside) / "new")
        if kept.exists():
            kept.rename(Path(beside) / "old")
        (Path(beside) / "new").rename(kept)
