"""Plays several runs in one folder; an interrupted campaign goes on where it stopped."""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import Experiment
from pausefl.outcomes import RunInterrupted, with_resume_command
from pausefl.results.stored_summary import read_summary
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, is_run_of, refuse_run_in
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.excerpts import excerpt

DRAWING = "figures are drawn and tables are written"
"""Said when all runs are played."""


class CampaignInterrupted(RunInterrupted):
    """The user ended a campaign; its finished runs stay, and the message says how to go on."""


@dataclass(frozen=True)
class Planned:
    """One run of a campaign: the name of its folder, and its experiment."""

    name: str
    experiment: Experiment


Missing = Mapping[str, PauseflError]
"""Why runs have no results, by name."""


@dataclass(frozen=True)
class Plan:
    """The campaign as asked for, written to campaign.json: enough to go on with it."""

    command: str
    """The subcommand of `pausefl` that goes on with it."""
    source: str
    """The experiment, as TOML."""
    arguments: Mapping[str, Any]
    """The command's other arguments."""


def missed_runs(run_dirs: Sequence[Path]) -> Iterator[str]:
    """A line for each run that clients of the experiment took no part in."""
    for run_dir in run_dirs:
        if absent := read_summary(run_dir).get("absent_clients"):
            yield f"{run_dir.name}: without {excerpt(', '.join(absent))}"


@contextmanager
def told_how_to_go_on(folder: Path, go_on: str) -> Iterator[None]:
    """CampaignInterrupted for Ctrl-C between the runs and while results are written: it names folder and way on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CampaignInterrupted(f"{folder}: interrupted; go on with: {go_on}") from None


def begin(folder: Path, plan: Plan) -> None:
    """Make the campaign's folder and write down what it is; ConfigError where it holds another campaign."""
    refuse_other(folder, plan)
    write_plan(folder, plan)


def refuse_other(folder: Path, plan: Plan) -> None:
    """ConfigError where the folder holds another campaign."""
    begun = plan_of(folder)
    if begun is not None and asdict(begun) != json.loads(json.dumps(asdict(plan))):
        raise ConfigError(
            f"{folder}: holds another campaign (pausefl {begun.command}); choose another folder, or go on with that"
            " one by --resume"
        )


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
    """The plan of a folder's campaign; None where it is no campaign's."""
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


def unfinished(runs: Sequence[Planned], folder: Path, go_on: str) -> Missing:
    """The runs of a campaign that are not finished; ConfigError where none is."""
    left = [run.name for run in runs if not is_played(run, folder)]
    if len(left) == len(runs):
        raise ConfigError(f"{folder}: none of its {len(runs)} runs is finished; go on with: {go_on}")
    return dict.fromkeys(left, PauseflError("not finished"))


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


def check_some_played(n_runs: int, missing: Missing, go_on: str) -> None:
    """CampaignInterrupted where the user ended it, and the error of a run where none has results."""
    for error in missing.values():
        if isinstance(error, CampaignInterrupted):
            raise CampaignInterrupted(f"{error}; go on with: {go_on}")
    if len(missing) == n_runs:
        name, error = next(iter(missing.items()))
        raise with_resume_command(error, go_on, name)


def check_all_played(run_dirs: Sequence[Path], missing: Missing, go_on: str) -> None:
    """Return if all runs have results and none failed; PauseflError that names those that have not, or did."""
    if missing:
        name, error = next(iter(missing.items()))
        of = f"{len(missing)} of {len(run_dirs) + len(missing)} runs have no results; {name}"
        raise PauseflError(f"{of}: {error}; go on with: {go_on}")
    failed = [run_dir.name for run_dir in run_dirs if read_summary(run_dir)["outcome"] == "failed"]
    if failed:
        again = f"to play them again, delete their folders, then {go_on}"
        raise PauseflError(f"{len(failed)} of {len(run_dirs)} runs ended early: {', '.join(failed)}; {again}")
