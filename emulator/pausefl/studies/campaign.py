"""The plan and the state of a campaign: several runs in one folder. An interrupted campaign can be resumed."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.in_force import in_force
from pausefl.outcomes import RunInterrupted, with_resume_command
from pausefl.results.reading import read_run
from pausefl.results.stored_summary import read_summary
from pausefl.runtime.run_dir import (
    CAMPAIGN_PLAN,
    differences,
    refuse_changed_files,
    refuse_other_version,
    refuse_run_in,
    stored_experiment,
)
from pausefl_process.files import reason, write_durably
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.excerpts import excerpt

_ARGUMENTS: Mapping[str, Sequence[str]] = {
    "compare": ("policies", "seeds"),
    "compare --runs": ("runs",),
    "sweep": ("grid", "seeds"),
    "reproduce": ("name", "scale", "settings"),
}
"""Command -> the names of the arguments without which its campaign cannot go on."""


class CampaignInterrupted(RunInterrupted):
    """The user ended a campaign. Its finished runs stay on disk, and the message says how to resume it."""


@dataclass(frozen=True)
class Planned:
    """One run of a campaign: the name of its folder, and its experiment."""

    name: str
    experiment: Experiment
    point: Mapping[str, Any] = field(default_factory=dict)
    """In a sweep: the run's values of the grid's keys."""


Missing = Mapping[str, PauseflError]
"""The errors of runs without results, by the run's name."""


@dataclass(frozen=True)
class Plan:
    """The request for a campaign, written to campaign.json. It holds all that is needed to resume the campaign."""

    command: str
    """The subcommand of `pausefl` that plays and resumes the campaign."""
    source: str
    """The experiment as TOML."""
    arguments: Mapping[str, Any]
    """The other arguments of the command."""


@contextmanager
def told_how_to_go_on(folder: Path, go_on: str) -> Iterator[None]:
    """Turn Ctrl-C within the block into CampaignInterrupted, which names the folder and the command `go_on`.

    The block covers the time between runs and the writing of results.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CampaignInterrupted(f"{folder}: interrupted; go on with: {go_on}") from None


def begin(folder: Path, plan: Plan) -> None:
    """Create the campaign's folder and write its plan there. ConfigError if the folder holds another campaign."""
    refuse_other(folder, plan)
    write_plan(folder, plan)


def refuse_other(folder: Path, plan: Plan) -> None:
    """Raise ConfigError if the folder holds another campaign."""
    begun = plan_of(folder)
    if begun is not None and asdict(begun) != json.loads(json.dumps(asdict(plan))):
        raise ConfigError(
            f"{folder}: holds another campaign (pausefl {begun.command}); choose another folder, or go on with that"
            " one by --resume"
        )


def write_plan(folder: Path, plan: Plan) -> None:
    """Create the campaign's folder and write its plan there, replacing an older one. ConfigError for a run's folder."""
    refuse_run_in(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / CAMPAIGN_PLAN, json.dumps(asdict(plan), indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error


def plan_of(folder: Path) -> Plan | None:
    """The plan of the campaign in a folder; None if there is no plan. ConfigError if the plan is damaged."""
    file = folder / CAMPAIGN_PLAN
    if not file.exists():
        return None
    try:
        plan = Plan(**json.loads(file.read_bytes()))
        if lacking := set(_ARGUMENTS.get(plan.command, ())) - dict(plan.arguments).keys():
            raise ValueError(f"it lacks {min(lacking)}, as of another version")
        return plan
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file}: cannot be read ({reason(error)}); restore it from a copy") from error


def check_apart(runs: Sequence[Planned]) -> None:
    """Raise ConfigError if two runs have the same name, or if private runs share a `privacy.ledger_dir`.

    Of two runs of one name, only one would be played, and it would count twice. Earlier runs would spend later runs'
    budgets.
    """
    counts = Counter(run.name for run in runs)
    if twice := next((name for name, n in counts.items() if n > 1), None):
        raise ConfigError(f"{twice}: two of the runs have this name; name each policy and each value once")
    shared = [t.ledger_dir for run in runs if (t := run.experiment.privacy).enabled and t.ledger_dir]
    if len(set(shared)) < len(shared):
        raise ConfigError(f"{len(runs)} runs: go without privacy.ledger_dir, whose budgets they would share")


def read_plan(folder: Path, command: str) -> Plan:
    """The plan of a campaign to resume. ConfigError if the folder holds no campaign of this command."""
    plan = plan_of(folder)
    if plan is None:
        raise ConfigError(f"--resume {folder}: holds no interrupted pausefl {command} (no {CAMPAIGN_PLAN})")
    if plan.command != command:
        raise ConfigError(f"--resume {folder}: was begun by pausefl {plan.command}, go on with that command")
    return plan


def unfinished(runs: Sequence[Planned], folder: Path, command: str) -> Missing:
    """The errors of runs that are not finished or are damaged, by run name. ConfigError if no run has results."""
    left, damaged = left_and_damaged(runs, folder)
    missing = {**dict.fromkeys((run.name for run in left), PauseflError("not finished")), **damaged}
    if len(missing) == len(runs):
        go_on = resume_campaign_command(command, folder)
        none = ConfigError(f"{folder}: none of its {len(runs)} runs is finished; go on with: {go_on}")
        raise next(iter(damaged.values()), none)
    return missing


def left_and_damaged(runs: Sequence[Planned], folder: Path) -> tuple[list[Planned], Missing]:
    """The runs that are not finished, and the errors of finished runs that cannot be read, by run name.

    ConfigError if a finished run is of another experiment, or any run of another version.
    """
    damaged: dict[str, PauseflError] = {}
    for run in runs:
        run_dir = folder / run.name
        refuse_other_version(run_dir)
        try:
            if is_finished(run_dir):
                stored_experiment(run_dir)
                read_run(run_dir)
        except ConfigError as error:
            damaged[run.name] = error
    return [run for run in runs if run.name not in damaged and not is_played(run, folder)], damaged


def resume_campaign_command(command: str, folder: Path, options: Sequence[str] = ()) -> str:
    """The command that resumes a comparison, a sweep or a search. `options` are those of its player."""
    return shlex.join(["pausefl", command, "--resume", str(folder), *options])


def is_finished(run_dir: Path) -> bool:
    """Whether a run has ended there without interruption. ConfigError if an older version has played it."""
    return (run_dir / "summary.json").exists() and read_summary(run_dir)["outcome"] != "interrupted"


def is_played(run: Planned, folder: Path) -> bool:
    """Whether a planned run is finished in the campaign's folder. ConfigError if another experiment was played."""
    run_dir = folder / run.name
    if not is_finished(run_dir):
        return False
    planned = in_force(run.experiment)
    if differences(in_force(stored_experiment(run_dir)), planned):
        raise ConfigError(
            f"{run_dir}: holds a finished run of another experiment; delete it to play the planned one, or choose"
            " another folder"
        )
    refuse_changed_files(planned, run_dir)
    return True


def check_some_played(n_runs: int, missing: Missing, go_on: str) -> None:
    """Raise CampaignInterrupted if the user ended the campaign, or a run's error if no run has results."""
    for error in missing.values():
        if isinstance(error, CampaignInterrupted):
            raise CampaignInterrupted(f"{error}; go on with: {go_on}")
    if len(missing) == n_runs:
        name, error = next(iter(missing.items()))
        raise with_resume_command(error, go_on, name)


def check_all_played(run_dirs: Sequence[Path], missing: Missing, go_on: str, say: Callable[[str], object]) -> None:
    """Raise PauseflError if runs have no results or have failed; it names them.

    `say` is called with a line for each run in which some of the experiment's clients took no part.
    """
    summaries = {run_dir.name: read_summary(run_dir) for run_dir in run_dirs}
    for name, summary in summaries.items():
        if absent := summary["absent_clients"]:
            say(f"{name}: without {excerpt(', '.join(absent))}")
    if missing:
        name, error = next(iter(missing.items()))
        of = f"{len(missing)} of {len(run_dirs) + len(missing)} runs have no results; {name}"
        raise PauseflError(f"{of}: {error}; go on with: {go_on}")
    if failed := [name for name, summary in summaries.items() if summary["outcome"] == "failed"]:
        again = f"to play them again, delete their folders, then {go_on}"
        raise PauseflError(f"{len(failed)} of {len(run_dirs)} runs ended early: {', '.join(failed)}; {again}")
