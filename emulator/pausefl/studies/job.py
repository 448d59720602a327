"""A run of a campaign as a job for any executor. Called again, on any machine, it resumes the run."""

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from threading import Event

from pausefl.experiment.experiment import parse_experiment
from pausefl.outcomes import RunInterrupted
from pausefl.runtime.fleet import ServerLost
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, SHARED_STEPS
from pausefl.studies.campaign import is_finished
from pausefl_process.ending import asking_to_end, signals_to, sigterm_as_interrupt
from pausefl_process.files import reason
from pausefl_process.version import __version__
from pausefl_proto.errors import ConfigError, PauseflError


class UnfitMachine(ConfigError):
    """A machine cannot play any run of a campaign."""


@dataclass(frozen=True)
class Job:
    """A callable that plays one run on the machine where it is called. It can be pickled."""

    source: str
    """The experiment as TOML."""
    folder: Path
    """The campaign's folder, as an absolute path."""
    name: str
    """The name of the run's folder in `folder`."""
    is_elsewhere: bool
    """Whether another machine may play the run. It then plays on its own disk and copies the run back at the end."""
    version: str = __version__

    def __call__(self, stop: Event | None = None) -> str | PauseflError:
        """Play or resume the run; returns its outcome, or the error that ended it.

        Returns UnfitMachine if the machine has another version of this software or lacks the campaign's folder. Returns
        RunInterrupted if a signal or `stop` ended the run, or a process was killed: another call resumes it.
        """
        if self.version != __version__:
            return UnfitMachine(f"{os.uname().nodename}: has pausefl {__version__}, the campaign is of {self.version}")
        if self.is_elsewhere and not (self.folder / CAMPAIGN_PLAN).exists():
            return UnfitMachine(f"{self.folder}: is not there on {os.uname().nodename}; choose a folder that is shared")
        # A pool's workers may be daemons, which Python forbids to start processes. Ours end together with their parent.
        multiprocessing.current_process().daemon = False
        try:
            experiment = parse_experiment(self.source)
            kept = self.folder / self.name
            place = on_own_disk(kept) if self.is_elsewhere else nullcontext(kept)
            with sigterm_as_interrupt(), place as run_dir:
                found = run_experiment(experiment, run_dir, lambda _: None, resume=True, has_report=False, stop=stop)
        except (KeyboardInterrupt, ServerLost) as error:
            return RunInterrupted(str(error) or "interrupted")
        except PauseflError as error:
            return error
        return RunInterrupted("interrupted") if found["outcome"] == "interrupted" else str(found["outcome"])


@contextmanager
def on_own_disk(kept: Path) -> Iterator[Path]:
    """Yields a copy of the run's folder `kept` on this machine's disk; after the block, the copy replaces `kept`.

    SQLite's log and locks need a local disk: network file systems have no shared memory, and few locks. PauseflError if
    the copy cannot be brought back; it then stays on this machine.
    """
    for beside in kept.parent.glob(f".{escape(kept.name)}-????????"):
        if (beside / "old").exists() and not kept.exists():  # a job was killed in the last step of `_bring_back`
            (beside / "new").rename(kept)
            shutil.rmtree(beside)
    was_finished = is_finished(kept)
    with tempfile.TemporaryDirectory(prefix="pausefl-") as own:
        run_dir = Path(own) / kept.name
        for folder in reversed(kept.parents[:2]):  # a search keeps its runs one folder deeper
            for name in (CAMPAIGN_PLAN, SHARED_STEPS):  # all runs use the same duration of a training step
                if (folder / name).exists():
                    shutil.copyfile(folder / name, Path(own) / name)
        if kept.exists():
            shutil.copytree(kept, run_dir)
        try:
            yield run_dir
        finally:
            with signals_to(signal.SIG_IGN, signal.SIGINT, signal.SIGUSR2, *asking_to_end()):  # or the run is lost
                try:
                    if run_dir.exists() and was_finished == is_finished(kept):  # else another job has finished it
                        _bring_back(run_dir, kept)
                except (OSError, ConfigError) as error:  # the shared disk may be full, or no longer readable
                    left = shutil.move(run_dir, tempfile.mkdtemp(prefix="pausefl-left-"))
                    why = error.args[0][0][2] if isinstance(error, shutil.Error) else reason(error)
                    place = f"{left} on {os.uname().nodename}"
                    raise PauseflError(f"{kept}: cannot be brought back ({why}); move it there from {place}") from error


def _bring_back(run_dir: Path, kept: Path) -> None:
    """Replace the folder `kept` by a copy of `run_dir`. Until the copy is complete, it has another name."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{kept.name}-", dir=kept.parent) as beside:
        shutil.copytree(run_dir, Path(beside) / "new")
        if kept.exists():
            kept.rename(Path(beside) / "old")
        (Path(beside) / "new").rename(kept)
