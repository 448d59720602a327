"""Plays the runs of a campaign: one after the other with a display, or as jobs of an executor."""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TypeVar

from pausefl.outcomes import RunInterrupted
from pausefl.runtime.run import run_experiment
from pausefl.runtime.standing_fleet import StandingFleet
from pausefl.studies.campaign import (
    CampaignInterrupted,
    Missing,
    Plan,
    Planned,
    check_apart,
    check_some_played,
    is_played,
    left_and_damaged,
    refuse_other,
    resume_campaign_command,
    told_how_to_go_on,
    write_plan,
)
from pausefl.studies.checks import impossible, note_step_times
from pausefl.studies.job import Job, UnfitMachine
from pausefl.studies.time_left import time_left
from pausefl_process.ending import INTERRUPTED, asking_to_end, signals_to
from pausefl_process.events import Report
from pausefl_process.plugins import in_one_line
from pausefl_proto.draws import stable_hash
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.excerpts import excerpt

log = logging.getLogger("pausefl")

# How often a run is submitted in all, if it keeps being interrupted although the user did not ask for it.
_TRIES_MAX = 4
# The longest time until a signal takes effect.
_LOOKS_EVERY_S = 0.5

Show = Callable[[str], AbstractContextManager[Report]]
"""Opens the display of one run with a title. The display receives the run's reports."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class OneByOne:
    """Plays one run after the other, each on a display of its own."""

    show: Show
    say: Callable[[str], object] = lambda _: None
    """Receives messages between and after the runs."""
    fleet: StandingFleet | None = None
    """The standing clients that play all runs; None: each run starts its own clients."""

    @property
    def options(self) -> Sequence[str]:
        """The command-line options that select this player."""
        return ("--fleet", self.fleet.address) if self.fleet else ()

    def check(self, runs: Sequence[Planned]) -> None:
        """Raise ConfigError if there is a fleet that cannot play these runs."""
        if self.fleet:
            for run in runs:
                self.fleet.serve(run.experiment)

    def play(self, runs: Sequence[Planned], folder: Path) -> Missing:
        """Play every run that is not finished yet; returns the errors of runs without results, by run name.

        A run that fails does not stop the others. ConfigError, before any run is played, if a finished run is not the
        planned one. If the user ends the campaign, no further run starts, and the remaining runs count as interrupted.
        On a fleet, the runs of each seed are in random order, as its network changes over time. The order is drawn from
        the seed over all runs, finished ones too, so that a resumed campaign keeps it.
        """
        ordered = sorted(runs, key=_place_on_a_fleet) if self.fleet else runs
        left = {number: run for number, run in enumerate(ordered, start=1) if not is_played(run, folder)}
        missing: dict[str, PauseflError] = {}
        began_s = time.monotonic()
        for n_before, (number, run) in enumerate(left.items()):
            still = time_left(time.monotonic() - began_s, n_before, len(left) - n_before)
            fleet = self.fleet and replace(self.fleet, runs_to_come=len(left) - n_before - 1)
            try:
                with self.show(f"{run.name} ({number} of {len(runs)}{still})") as report:
                    run_dir = folder / run.name
                    played = run_experiment(run.experiment, run_dir, report, resume=True, fleet=fleet, has_report=False)
                outcome = played["outcome"]
            except KeyboardInterrupt:
                outcome = "interrupted"
            except PauseflError as error:
                missing[run.name] = error
                self.say(f"{run.name}: {error}")
                continue
            if outcome == "interrupted":
                told = CampaignInterrupted(f"interrupted in run {number} of {len(runs)} ({run.name})")
                return {**missing, **dict.fromkeys([run.name for run in list(left.values())[n_before:]], told)}
        return missing


def _place_on_a_fleet(run: Planned) -> tuple[int, int]:
    """The sort key of a run on a fleet: its seed, then a hash that puts the seed's runs in random order."""
    seed = run.experiment.experiment.seed
    return seed, stable_hash(seed, "place on a fleet", run.name)


@dataclass(frozen=True)
class OnExecutor:
    """Plays runs as jobs of an executor, which may play several at a time, here or on other machines."""

    executor: Callable[[Path, bool], AbstractContextManager[Executor]]
    """Opens the executor. Arguments: the campaign's folder, and whether each run needs a machine to itself."""
    say: Callable[[str], object]
    """Receives a message for each run that has ended."""
    options: Sequence[str] = ()
    """The command-line options that select this player."""
    is_elsewhere: bool = False
    """Whether runs may be played on other machines than this one."""
    has_whole_nodes: bool = False
    """Whether the executor can give each run a machine to itself."""

    def check(self, runs: Sequence[Planned]) -> None:
        """Raise ConfigError if runs on the real clock would share a machine, where they would slow each other down."""
        if not self.has_whole_nodes and _is_any_real(runs):
            raise ConfigError(
                f'{" ".join(self.options) or "executor"}: needs experiment.clock = "virtual"; on the real clock, runs'
                " side by side would hold each other up"
            )

    def play(self, runs: Sequence[Planned], folder: Path) -> Missing:
        """See `OneByOne.play`."""
        self.check(runs)
        left = [run for run in runs if not is_played(run, folder)]
        if self.is_elsewhere:
            note_step_times([run.experiment for run in left], folder)
        with self.executor(folder, _is_any_real(left)) as executor, _stopping_on_signals() as stop:
            jobs = _Jobs(self, executor, folder, stop, len(runs), len(runs) - len(left))
            try:
                jobs.play(left)
            finally:
                jobs.cancel()  # an error may have left jobs under way
        return jobs.missing


Player = OneByOne | OnExecutor
"""Plays the runs of a campaign. `check` is called before anything is written."""


def checked(runs: Sequence[Planned], folder: Path, player: Player) -> Missing:
    """The errors of damaged runs, and of unfinished runs whose data or model fail when tried, by run name.

    Each is logged as a warning. Raises one of them if there are no other runs. ConfigError if the player cannot play
    the runs, if they would share names or budgets, or if a finished run is of another experiment.
    """
    check_apart(runs)
    player.check(runs)
    left, damaged = left_and_damaged(runs, folder)
    refused = {**damaged, **impossible(left, player.say)}
    if refused and len(refused) == len(runs):
        raise next(iter(refused.values()))
    for name, error in refused.items():
        log.warning("%s is left out: %s", name, error)
    return refused


def play_campaign(
    plan: Plan, runs: Sequence[Planned], folder: Path, player: Player, write: Callable[[Missing], Result]
) -> Result:
    """Play the runs of a campaign that begins or goes on in `folder`, and return what `write` makes of them.

    `write` receives the errors of runs without results. CampaignInterrupted if the user ends a run. ConfigError if the
    folder holds another campaign.
    """
    refuse_other(folder, plan)
    refused = checked(runs, folder, player)
    write_plan(folder, plan)
    go_on = resume_campaign_command(plan.command, folder, player.options)
    with told_how_to_go_on(folder, go_on):
        missing = {**refused, **player.play([run for run in runs if run.name not in refused], folder)}
        if len(missing) < len(runs):
            player.say("figures are drawn and tables are written")
            found = write(missing)
    check_some_played(len(runs), missing, go_on)
    return found


def _is_any_real(runs: Sequence[Planned]) -> bool:
    return any(run.experiment.experiment.clock == "real" for run in runs)


@dataclass
class _Jobs:
    """The jobs of a campaign: those under way, and the counts and errors of those that have ended."""

    player: OnExecutor
    executor: Executor
    folder: Path
    stop: Event
    n_runs: int
    n_done: int
    n_ended: int = 0
    """How many of the `n_done` runs have ended since this call began; the others were finished before."""
    began_s: float = field(default_factory=time.monotonic)
    under_way: "dict[Future[str | PauseflError], Planned]" = field(default_factory=dict)
    tries: "Counter[str]" = field(default_factory=Counter)
    missing: dict[str, PauseflError] = field(default_factory=dict)

    def play(self, runs: Sequence[Planned]) -> None:
        """Submit all runs, wait for them, and note their outcomes."""
        for run in runs:
            self._hand_in(run)
        while self.under_way:
            ended, _ = wait(self.under_way, _LOOKS_EVERY_S, FIRST_COMPLETED)
            if self.stop.is_set():
                self.cancel()
            for future in ended:
                self._note(self.under_way.pop(future), _outcome(future))

    def cancel(self) -> None:
        """Cancel the jobs that wait. Jobs that have begun are asked to end if the executor can do that."""
        for future in list(self.under_way):
            future.cancel()

    def _hand_in(self, run: Planned) -> None:
        self.tries[run.name] += 1
        job = Job(run.experiment.to_toml(), self.folder.absolute(), run.name, self.player.is_elsewhere)
        hears = (self.stop,) if isinstance(self.executor, ThreadPoolExecutor) else ()  # threads share the event
        try:
            self.under_way[self.executor.submit(job, *hears)] = run
        except ConfigError:  # the executor refuses all jobs
            raise
        except Exception as error:  # the executor broke as a worker died, was shut down, or lost its scheduler
            self.missing[run.name] = PauseflError(f"its executor takes no more jobs ({in_one_line(error)})")

    def _note(self, run: Planned, outcome: str | PauseflError) -> None:
        if isinstance(outcome, UnfitMachine):
            raise outcome
        if isinstance(outcome, RunInterrupted):
            if self.stop.is_set():
                self.missing[run.name] = CampaignInterrupted(
                    f"interrupted after {self.n_done} of {self.n_runs} runs were finished"
                )
                return
            if self.tries[run.name] < _TRIES_MAX:
                self.player.say(f"{run.name}: {outcome}; it goes on in another job")
                self._hand_in(run)
                return
            outcome = PauseflError(f"{outcome} ({_TRIES_MAX} times)")
        if isinstance(outcome, PauseflError):
            self.missing[run.name] = outcome
        self.n_done += 1
        self.n_ended += 1
        left, running = self.n_runs - self.n_done, sum(future.running() for future in self.under_way)
        still = time_left(time.monotonic() - self.began_s, self.n_ended, left, running)
        self.player.say(f"{run.name}: {outcome} ({self.n_done} of {self.n_runs}{still})")


@contextmanager
def _stopping_on_signals() -> Iterator[Event]:
    """Yields an event that the first signal to end sets. A second signal ends this process and its runs at once."""
    stop = Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    with signals_to(ask, signal.SIGINT, *asking_to_end()):
        yield stop


def _outcome(future: "Future[str | PauseflError]") -> str | PauseflError:
    """The outcome of a job, or the error that prevented one. RunInterrupted means that it may be submitted again."""
    try:
        return future.result()
    except RunInterrupted as error:
        return error
    except CancelledError:
        return RunInterrupted("cancelled")
    except (ImportError, AttributeError, TypeError) as error:
        return UnfitMachine(f"the executor's machines cannot play it: have they this pausefl? ({in_one_line(error)})")
    except Exception as error:  # the executor's own: its worker was killed or ran out of time
        return RunInterrupted(f"its job was lost ({excerpt(in_one_line(error))})")
