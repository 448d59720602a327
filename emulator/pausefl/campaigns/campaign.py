"""Plays several runs in one folder; an interrupted campaign goes on where it stopped."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from pausefl.campaigns.time_left import TimeLeft
from pausefl.config.experiment import Experiment
from pausefl.exit_status import RunInterrupted, with_resume_command
from pausefl.results.stored_summary import read_summary
from pausefl.runtime.fleet import View
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, REPORT, is_run_of, refuse_run_in
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError, PauseflError


class CampaignInterrupted(RunInterrupted):
    """The user ended a campaign; its finished runs stay, and the message says how to go on."""


@dataclass(frozen=True)
class Planned:
    """One run of a campaign: the name of its folder, and its experiment."""

    name: str
    experiment: Experiment


@dataclass(frozen=True)
class Plan:
    """What was asked for, as written to campaign.json: enough to go on with it."""

    command: str
    """The subcommand of `pausefl` that goes on with it."""
    source: str
    """The experiment, as TOML."""
    arguments: Mapping[str, Any]
    """What else the command was given."""


Show = Callable[[str], AbstractContextManager[View]]
"""The display of one run, by its title."""


class Player(Protocol):
    """Plays the runs of a campaign."""

    @property
    def options(self) -> Sequence[str]:
        """The options of a command that has its runs played so."""

    def check(self, runs: Sequence[Planned]) -> None:
        """ConfigError for runs that it cannot play, before anything is written."""

    def play(self, runs: Sequence[Planned], folder: Path, go_on: str) -> list[Path]:
        """Play every run that is not finished yet and return all run directories, in order.

        ConfigError, before any is played, where a finished run is not the planned one. `go_on` is the command that
        goes on with the campaign, empty where errors are to name none. CampaignInterrupted when the user ends a
        run: none of the others is begun.
        """


@dataclass(frozen=True)
class OneByOne:
    """Plays one run after the other, each on a display of its own."""

    show: Show
    options: Sequence[str] = ()

    def check(self, runs: Sequence[Planned]) -> None:
        """Return: every run can be played alone."""

    def play(self, runs: Sequence[Planned], folder: Path, go_on: str) -> list[Path]:
        """As of `Player`."""
        left = [(number, run) for number, run in enumerate(runs, start=1) if is_left(run, folder)]
        estimate = TimeLeft()
        for n_before, (number, run) in enumerate(left):
            time_left = estimate.said(len(left) - n_before)
            estimate.began(run.name, is_resumed=(folder / run.name).exists())
            try:
                with self.show(f"{run.name} ({number} of {len(runs)}{time_left})") as view:
                    outcome = run_experiment(run.experiment, folder / run.name, view, resume=True)["outcome"]
            except KeyboardInterrupt:
                outcome = "interrupted"
            except PauseflError as error:
                raise with_resume_command(error, go_on, run.name) from error
            if outcome == "interrupted":
                raise CampaignInterrupted(
                    f"interrupted in run {number} of {len(runs)} ({run.name}); go on with: {go_on}"
                )
            estimate.ended(run.name)
        return [folder / run.name for run in runs]


@contextmanager
def told_how_to_go_on(folder: Path, go_on: str) -> Iterator[None]:
    """CampaignInterrupted for Ctrl-C between the runs and while results are written: it names folder and way on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CampaignInterrupted(f"{folder}: interrupted; go on with: {go_on}") from None


def begin(folder: Path, plan: Plan) -> None:
    """Make the campaign's folder and write down what it is; ConfigError where it holds another campaign."""
    begun = plan_of(folder)
    if begun is not None and asdict(begun) != json.loads(json.dumps(asdict(plan))):
        raise ConfigError(
            f"{folder}: holds another campaign (pausefl {begun.command}); choose another folder, or go on with that"
            " one by --resume"
        )
    write_plan(folder, plan)


def write_plan(folder: Path, plan: Plan) -> None:
    """Make the campaign's folder and write down what it is, in the place of what stood there.

    ConfigError for the folder of a run.
    """
    refuse_run_in(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / CAMPAIGN_PLAN, json.dumps(asdict(plan), indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error


def plan_of(folder: Path) -> Plan | None:
    """What a folder's campaign was asked for; None where it is no campaign's."""
    try:
        return Plan(**json.loads((folder / CAMPAIGN_PLAN).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def check_named_once(runs: Sequence[Planned]) -> None:
    """ConfigError for two runs of one name: one would be played, and counted as two."""
    counts = Counter(run.name for run in runs)
    if twice := next((name for name, n in counts.items() if n > 1), None):
        raise ConfigError(f"{twice}: two of the runs have this name; name each policy and each value once")


def check_own_budgets(runs: Sequence[Planned]) -> None:
    """ConfigError for private runs that share a `privacy.ledger_dir`: each would find what those before it left."""
    tables = [run.experiment.privacy for run in runs]
    shared = [table.ledger_dir for table in tables if table.enabled and table.ledger_dir]
    if len(set(shared)) < len(shared):
        raise ConfigError(f"{len(runs)} runs: go without privacy.ledger_dir, whose budgets they would share")


def read_plan(folder: Path, command: str) -> Plan:
    """The plan of a campaign that is to go on; ConfigError when the folder holds none of this command."""
    plan = plan_of(folder)
    if plan is None:
        raise ConfigError(f"--resume {folder}: holds no interrupted pausefl {command} (no valid {CAMPAIGN_PLAN})")
    if plan.command != command:
        raise ConfigError(f"--resume {folder}: was begun by pausefl {plan.command}, go on with that command")
    return plan


def finished_run_dirs(runs: Sequence[Planned], folder: Path, go_on: str) -> list[Path]:
    """All run directories of a campaign, in order; ConfigError unless every run is finished."""
    if n_left := sum(not is_played(run, folder) for run in runs):
        raise ConfigError(f"{folder}: {n_left} of its {len(runs)} runs are not finished; go on with: {go_on}")
    return [folder / run.name for run in runs]


def resume_campaign_command(command: str, folder: Path, options: Sequence[str] = ()) -> str:
    """The command that goes on with a comparison, a sweep or a search; `options` as its player has them."""
    return shlex.join(["pausefl", command, "--resume", str(folder), *options])


def is_finished(run_dir: Path) -> bool:
    """Whether a run has come to its own end there; ConfigError when an older version has played it."""
    return (run_dir / "summary.json").exists() and read_summary(run_dir)["outcome"] != "interrupted"


def is_played(run: Planned, folder: Path) -> bool:
    """Whether a planned run is finished in its campaign's folder; ConfigError when another experiment was played."""
    run_dir = folder / run.name
    if not is_finished(run_dir):
        return False
    if not is_run_of(run.experiment, run_dir):
        raise ConfigError(
            f"{run_dir}: holds a finished run of another experiment; delete it to play the planned one, or choose"
            " another folder"
        )
    return True


def is_left(run: Planned, folder: Path) -> bool:
    """Whether a planned run has rounds to play or a report to draw; ConfigError as of `is_played`."""
    return not is_played(run, folder) or not (folder / run.name / REPORT).exists()


def check_all_played(run_dirs: Sequence[Path], go_on: str) -> None:
    """Return if none of a campaign's runs failed; PauseflError that names those that did."""
    failed = [run_dir.name for run_dir in run_dirs if read_summary(run_dir)["outcome"] == "failed"]
    if failed:
        again = f"to play them again, delete their folders, then {go_on}"
        raise PauseflError(f"{len(failed)} of {len(run_dirs)} runs ended early: {', '.join(failed)}; {again}")
