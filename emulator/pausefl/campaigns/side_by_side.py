"""Plays several runs of a campaign at a time, in as many processes, on the virtual clock."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

from pausefl.campaigns.campaign import CampaignInterrupted, Planned, is_left
from pausefl.campaigns.time_left import TimeLeft
from pausefl.config.experiment import Experiment
from pausefl.exit_status import RunInterrupted, with_resume_command
from pausefl.runtime.fleet import SILENT
from pausefl.runtime.run import run_experiment
from pausefl_process.ending import signals_to, sigterm_as_interrupt
from pausefl_process.lifetime import die_with_parent, start
from pausefl_proto.errors import ConfigError, PauseflError


@dataclass(frozen=True)
class SideBySide:
    """Plays `jobs` runs at a time. ConfigError for fewer than 1."""

    jobs: int
    say: Callable[[str], None]
    """Is told of each run that has ended."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: must be at least 1")

    @property
    def options(self) -> Sequence[str]:
        """As of `Player`."""
        return "--jobs", str(self.jobs)

    def check(self, runs: Sequence[Planned]) -> None:
        """ConfigError for runs on the real clock, which would hold each other up."""
        if any(run.experiment.experiment.clock == "real" for run in runs):
            raise ConfigError(
                f'--jobs {self.jobs}: needs experiment.clock = "virtual"; on the real clock, runs side by side would'
                " hold each other up"
            )

    def play(self, runs: Sequence[Planned], folder: Path, go_on: str) -> list[Path]:
        """As of `Player`. The first error of a run is raised once the others that were begun have ended."""
        self.check(runs)
        waiting = deque(run for run in runs if is_left(run, folder))
        campaign = _Campaign(folder, len(runs), len(runs) - len(waiting), self.say, TimeLeft(self.jobs))
        with _forwarding_signals(campaign), closing(campaign):
            while campaign.playing or (waiting and campaign.may_begin):
                while waiting and campaign.may_begin and len(campaign.playing) < self.jobs:
                    campaign.begin(waiting.popleft())
                campaign.end_some()
        if campaign.error is not None:
            raise with_resume_command(campaign.error, go_on, campaign.failed)
        if campaign.is_interrupted:
            raise CampaignInterrupted(
                f"interrupted after {campaign.n_done} of {len(runs)} runs were finished; go on with: {go_on}"
            )
        return [folder / run.name for run in runs]


@dataclass
class _Worker:
    """A process that plays one run after the other, so that what it imports is imported once."""

    process: SpawnProcess
    line: "Connection[Any, Any]"
    """Takes a run, and gives its outcome, or the error that ended it; nothing where the process was killed."""
    run: str
    """What it plays, or has played last."""


@dataclass
class _Campaign:
    """The runs that are played now, and what came of the others."""

    folder: Path
    n_runs: int
    n_done: int
    say: Callable[[str], None]
    estimate: TimeLeft
    workers: list[_Worker] = field(default_factory=list)
    playing: list[_Worker] = field(default_factory=list)
    error: PauseflError | None = None
    """The first of a run's; no other is begun then."""
    failed: str = ""
    """The run whose error that is."""
    is_interrupted: bool = False

    @property
    def may_begin(self) -> bool:
        return self.error is None and not self.is_interrupted

    def begin(self, run: Planned) -> None:
        worker = next((w for w in self.workers if w not in self.playing and w.process.is_alive()), None)
        if worker is None:
            worker = _new_worker()
            self.workers.append(worker)
        worker.run = run.name
        self.playing.append(worker)
        self.estimate.began(run.name, is_resumed=(self.folder / run.name).exists())
        if self.is_interrupted:  # while it was started: who was to ask it did not know it yet
            worker.process.terminate()
        with suppress(BrokenPipeError):  # it was killed meanwhile, as `_note` will find
            worker.line.send((run.experiment, self.folder / run.name))

    def end_some(self) -> None:
        """Wait until a run has ended, and note what came of it."""
        ended = wait([worker.line for worker in self.playing])
        for worker in [worker for worker in self.playing if worker.line in ended]:
            self._note(worker)

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.line.close()
        for worker in self.workers:
            worker.process.join()

    def _note(self, worker: _Worker) -> None:
        self.estimate.ended(worker.run)
        try:
            outcome = worker.line.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            killed = PauseflError(f"its process ended with status {worker.process.exitcode}")
            outcome = "interrupted" if self.is_interrupted else killed
        self.playing.remove(worker)
        if isinstance(outcome, RunInterrupted) or outcome == "interrupted":
            self.is_interrupted = True
        elif isinstance(outcome, PauseflError):
            if self.error is None:
                self.error, self.failed = outcome, worker.run
        else:
            self.n_done += 1
            time_left = self.estimate.said(self.n_runs - self.n_done - len(self.playing))
            self.say(f"{worker.run}: {outcome} ({self.n_done} of {self.n_runs}{time_left})")


@contextmanager
def _forwarding_signals(campaign: _Campaign) -> Iterator[None]:
    """Until left, SIGINT and SIGTERM ask all runs to end; no other is begun. A run counts what a terminal sent once."""

    def forward(_number: int, _frame: FrameType | None) -> None:
        campaign.is_interrupted = True
        for worker in campaign.playing:
            worker.process.terminate()

    with signals_to(forward, signal.SIGINT, signal.SIGTERM):
        yield


def _new_worker() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs,), name="pausefl-runs")
    start(process)
    theirs.close()
    return _Worker(process, ours, "")


def _work(line: "Connection[Any, Any]") -> None:
    """Play the runs that come, until one is interrupted or no more can come."""
    die_with_parent()
    outcome: str | PauseflError = ""
    with suppress(EOFError):
        while not isinstance(outcome, RunInterrupted):
            outcome = _outcome(*line.recv())
            line.send(outcome)


def _outcome(experiment: Experiment, run_dir: Path) -> str | PauseflError:
    """Play one run in this process, and return what came of it."""
    try:
        with sigterm_as_interrupt():
            outcome: str = run_experiment(experiment, run_dir, SILENT, resume=True)["outcome"]
            return outcome
    except KeyboardInterrupt:
        return RunInterrupted("interrupted")
    except PauseflError as error:
        return error
