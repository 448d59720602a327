"""`pausefl tune`: searches an experiment's parameters with Optuna for the front of latency, leakage and accuracy.

May live here: the search space, the measurement of a trial, the search itself and its output files.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import get_args

from rich.console import Console

from pausefl.experiment.experiment import Experiment
from pausefl.extras import needs, require
from pausefl.library import check_list, checked, count_of, folder_of, player_of
from pausefl.outcomes import RunInterrupted, with_resume_command
from pausefl.runtime.run_dir import CAMPAIGN_PLAN
from pausefl.runtime.terminal import make_view
from pausefl.studies.campaign import Plan, Planned, begin, plan_of, read_plan, resume_campaign_command, write_plan
from pausefl.studies.playing import OneByOne, Player
from pausefl.terminal_table import plain_console
from pausefl_process.files import locked
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_tune.front import FrontPoint, compared
from pausefl_tune.measure import CLOCK, Measure, SettingRefused
from pausefl_tune.outputs import SUMMARY, write_tuning
from pausefl_tune.plan import By, TuningPlan
from pausefl_tune.study import search
from pausefl_tune.tuning import Tuning


@needs("server", "report", "tune")
def tune(
    experiment: Experiment,
    search: Sequence[str] = (),
    folder: str | Path | None = None,
    *,
    by: By = "simulate",
    trials: int = 50,
    seeds: int = 3,
    fresh_seeds: int = 10,
    target_accuracy: float | None = None,
    real_seeds: int = 0,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Tuning:
    """Search parameters, `["selection.pause.alpha=log:1..1000"]`, for latency, leakage and accuracy together.

    `by` says how a setting is played: "simulate" or "run". For `jobs` and `executor`, see `compare`. Returns the Pareto
    front, compared with the experiment's own setting on fresh seeds. Tables, settings and a figure are written to
    `folder`, runs/tune-<time> by default.
    """
    require("tune", "report")
    checked(experiment)
    trials, seeds, fresh_seeds = (
        count_of("trials", trials),
        count_of("seeds", seeds),
        count_of("fresh_seeds", fresh_seeds),
    )
    real_seeds = count_of("real_seeds", real_seeds, at_least=0)
    check_list("search", search, str, "texts KEY=SPACE")
    if by not in get_args(By):
        raise ConfigError(f"by = {by!r:.80}: must be {' or '.join(get_args(By))}")
    if not (target_accuracy is None or isinstance(target_accuracy, int | float)):
        raise ConfigError(f"target_accuracy = {target_accuracy!r:.80}: must be a number")
    plan = TuningPlan(experiment.to_toml(), search, by, trials, seeds, fresh_seeds, target_accuracy, real_seeds)
    with folder_of("tune", folder) as out:
        return tune_experiment(plan, out, plain_console(stderr=True), player_of(True, count_of("jobs", jobs), executor))


def tune_experiment(plan: TuningPlan, folder: Path, console: Console, player: Player | None = None) -> Tuning:
    """Search, compare the front with the published setting on fresh seeds, and write both to `folder`.

    `player` plays the runs, by default one after the other on this machine. Raises ConfigError for bad input,
    RunInterrupted if the user ends the search, and PauseflError for a failure that no setting caused.
    """
    _ = plan.space  # raises ConfigError before the folder is made
    _check_player(plan, player)
    begun = plan_of(folder)
    if begun is not None:  # the command may differ in where runs are played
        plan = replace(plan, command=begun.arguments.get("command", ""))
    begin(folder, _as_campaign(plan))
    return _tuned(plan, folder, console, player)


def resume_tuning(folder: Path, console: Console, real_seeds: int = 0, player: Player | None = None) -> Tuning:
    """Go on with a search. Settings that were tried are not tried again.

    `real_seeds` above 0 replaces the plan's value for good: a finished search can be measured on the real clock later.
    """
    begun = read_plan(folder, "tune")
    asked = {**begun.arguments, **({"real_seeds": real_seeds} if real_seeds else {})}
    if unknown := asked.keys() - {each.name for each in fields(TuningPlan)}:
        raise ConfigError(
            f"{folder / CAMPAIGN_PLAN}: {min(unknown)} is unknown here: another version began this search"
        )
    plan = TuningPlan(source=begun.source, **asked)
    _check_player(plan, player)
    return _tuned(plan, folder, console, player)


def _check_player(plan: TuningPlan, player: Player | None) -> None:
    """Raise ConfigError unless the player can play the runs of trials, and those on the real clock after the search."""
    points = [*([{}] if plan.by == "run" else []), *([{CLOCK: "real"}] if plan.real_seeds else [])]
    if player is not None:
        if player.options and not points:
            raise ConfigError(f"{' '.join(player.options)}: is for runs; trials are simulations, but with --by run")
        player.check([Planned("run", plan.experiment_at(point)) for point in points])


def _as_campaign(plan: TuningPlan) -> Plan:
    return Plan("tune", plan.source, {name: value for name, value in asdict(plan).items() if name != "source"})


def _tuned(plan: TuningPlan, folder: Path, console: Console, player: Player | None) -> Tuning:
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    player = player or OneByOne(partial(make_view, console))
    measure = Measure(plan, folder, player)
    go_on = resume_campaign_command("tune", folder, player.options)
    try:
        with locked(folder / "lock", f"search {folder}"):
            write_plan(folder, _as_campaign(plan))  # with the new value of `real_seeds`
            tried = search(plan, folder, measure, say)
            asked = len(tried.trials) + tried.pruned + len(tried.refused)
            if asked < plan.trials:
                say(f"the search ended after {asked} of {plan.trials} trials: its space holds no other setting")
            if tried.refused:
                say(f"settings refused: {len(tried.refused)}, all told in {SUMMARY}; the first: {tried.refused[0]}")
            points = [each.point for each in tried.front]
            front = compared(points, plan.unseen_seeds, plan.objectives, measure, say)
            if len(front) == 1:
                raise SettingRefused("every setting of the front had a run that failed on a fresh seed")
            confirmed: list[FrontPoint] = []
            if seeds := plan.real_clock_seeds:
                best, real = [front[0].point], {CLOCK: "real"}
                confirmed = compared(best, seeds, plan.confirmed_objectives, measure, say, real)
            tuning = Tuning(folder, plan, tried, front, confirmed)
            write_tuning(tuning)
    except (KeyboardInterrupt, RunInterrupted):  # a run raises RunInterrupted and does not know its search
        raise RunInterrupted(f"interrupted; go on with: {go_on}") from None
    except SettingRefused:
        raise
    except PauseflError as error:  # an error of the machine, or of the user's own code
        raise with_resume_command(error, go_on) from error
    return tuning
