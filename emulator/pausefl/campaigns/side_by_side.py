"""Plays several runs of a campaign at a time, each in a process of its own, on the virtual clock."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

from pausefl.campaigns.campaign import CampaignInterrupted, Planned, is_left
from pausefl.campaigns.pace import CampaignPace
from pausefl.config.experiment import Experiment
from pausefl.exit_status import RunInterrupted
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
        campaign = _Campaign(folder, len(runs), len(runs) - len(waiting), self.say, CampaignPace(self.jobs))
        with _forwarding_signals(campaign):
            while campaign.playing or (waiting and campaign.may_begin):
                while waiting and campaign.may_begin and len(campaign.playing) < self.jobs:
                    campaign.begin(waiting.popleft())
                campaign.end_some()
        if campaign.error is not None:
            raise campaign.error
        if campaign.is_interrupted:
            raise CampaignInterrupted(
                f"interrupted after {campaign.n_done} of {len(runs)} runs were finished; go on with: {go_on}"
            )
        return [folder / run.name for run in runs]


@dataclass
class _PlayedRun:
    name: str
    process: SpawnProcess
    result: "Connection[Any, Any]"
    """Gives the run's outcome, or the error that ended it; nothing where its process was killed."""


@dataclass
class _Campaign:
    """The runs that are played now, and what came of the others."""

    folder: Path
    n_runs: int
    n_done: int
    say: Callable[[str], None]
    pace: CampaignPace
    playing: list[_PlayedRun] = field(default_factory=list)
    error: PauseflError | None = None
    """The first of a run's; no other is begun then."""
    is_interrupted: bool = False

    @property
    def may_begin(self) -> bool:
        return self.error is None and not self.is_interrupted

    def begin(self, run: Planned) -> None:
        result, sender = multiprocessing.Pipe(duplex=False)
        arguments = (run.experiment, self.folder / run.name, sender)
        process = multiprocessing.get_context("spawn").Process(target=_play_one, args=arguments, name=run.name)
        self.pace.began(run.name, is_resumed=(self.folder / run.name).exists())
        start(process)
        sender.close()
        self.playing.append(_PlayedRun(run.name, process, result))

    def end_some(self) -> None:
        """Wait until a run has ended, and note what came of it."""
        ended = wait([run.process.sentinel for run in self.playing])
        for run in [run for run in self.playing if run.process.sentinel in ended]:
            self.playing.remove(run)
            self._note(run)

    def _note(self, run: _PlayedRun) -> None:
        run.process.join()
        self.pace.ended(run.name)
        try:
            outcome = run.result.recv()
        except EOFError:
            killed = PauseflError(f"{run.name}: its process ended with status {run.process.exitcode}")
            outcome = "interrupted" if self.is_interrupted else killed
        run.result.close()
        if isinstance(outcome, RunInterrupted) or outcome == "interrupted":
            self.is_interrupted = True
        elif isinstance(outcome, PauseflError):
            self.error = self.error or outcome
        else:
            self.n_done += 1
            time_left = self.pace.left(self.n_runs - self.n_done - len(self.playing))
            self.say(f"{run.name}: {outcome} ({self.n_done} of {self.n_runs}{time_left})")


@contextmanager
def _forwarding_signals(campaign: _Campaign) -> Iterator[None]:
    """Until left, SIGINT and SIGTERM ask all runs to end; no other is begun. A run counts what a terminal sent once."""

    def forward(_number: int, _frame: FrameType | None) -> None:
        campaign.is_interrupted = True
        for run in campaign.playing:
            run.process.terminate()

    with signals_to(forward, signal.SIGINT, signal.SIGTERM):
        yield


def _play_one(experiment: Experiment, run_dir: Path, result: "Connection[Any, Any]") -> None:
    """Play one run in this process, and tell what came of it."""
    die_with_parent()
    try:
        with sigterm_as_interrupt():
            outcome = run_experiment(experiment, run_dir, SILENT, resume=True)["outcome"]
        result.send(outcome)
    except KeyboardInterrupt:
        result.send(RunInterrupted("interrupted"))
    except PauseflError as error:
        result.send(error)
