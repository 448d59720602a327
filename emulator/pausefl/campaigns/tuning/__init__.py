"""Searches an experiment's parameters: the Pareto front of latency, leakage and accuracy, held against fresh seeds.

May live here: the search space, what a trial measures, the search itself and what it writes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from pausefl.campaigns.campaign import Plan, Show, begin, read_plan, resume_campaign_command, write_plan
from pausefl.campaigns.tuning.fresh import FrontPoint, compared, on_real_clock
from pausefl.campaigns.tuning.measure import SettingRefused, measure_by_run, measure_of
from pausefl.campaigns.tuning.plan import TuningPlan
from pausefl.campaigns.tuning.study import SearchResult, search
from pausefl.exit_status import RunInterrupted, with_resume_command
from pausefl.extras import require
from pausefl.runtime.fleet import View
from pausefl.runtime.terminal import make_view
from pausefl_process.files import locked
from pausefl_proto.errors import PauseflError


@dataclass(frozen=True)
class Tuning:
    """What a search found."""

    folder: Path
    """Where front.csv, front.png, the settings as TOML and the study lie."""
    plan: TuningPlan
    """What was asked for."""
    tried: SearchResult
    """Every setting that was tried."""
    front: Sequence[FrontPoint]
    """The settings that none dominates, the recommended one first; the published setting comes last."""
    confirmed: Sequence[FrontPoint]
    """The recommended and the published setting on the real clock, where that was asked for."""


def tune_experiment(plan: TuningPlan, folder: Path, console: Console) -> Tuning:
    """Search, compare the front with the published setting on fresh seeds, and write both to `folder`.

    ConfigError for bad input, RunInterrupted when the user ends it, PauseflError for what is wrong with no setting.
    """
    require("tune", "report")
    _ = plan.space  # ConfigError before there is a folder
    begin(folder, _as_campaign(plan))
    return _tuned(plan, folder, console)


def resume_tuning(folder: Path, console: Console, real_seeds: int = 0) -> Tuning:
    """Go on with an interrupted search; settings that were tried are not tried again.

    `real_seeds` above 0 takes the place of the plan's for good: a finished search can be held on the real clock
    afterwards.
    """
    require("tune", "report")
    begun = read_plan(folder, "tune")
    plan = TuningPlan(source=begun.source, **{**begun.arguments, **({"real_seeds": real_seeds} if real_seeds else {})})
    return _tuned(plan, folder, console)


def _as_campaign(plan: TuningPlan) -> Plan:
    asked = {name: value for name, value in asdict(plan).items() if name != "source"}
    return Plan("tune", plan.source, {**asked, "search": list(plan.search)})


def _tuned(plan: TuningPlan, folder: Path, console: Console) -> Tuning:
    from pausefl.campaigns.tuning.outputs import SUMMARY, write_tuning

    show = _shower(console)
    measure = measure_of(plan, folder, show)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    try:
        with locked(folder / "lock", f"search {folder}"):
            write_plan(folder, _as_campaign(plan))  # with the real seeds that were asked for later
            tried = search(plan, folder, measure, console)
            if tried.asked < plan.trials:
                say(f"the search ended after {tried.asked} of {plan.trials} trials: its space holds no other setting")
            if tried.refused:
                say(f"settings refused: {len(tried.refused)}, all told in {SUMMARY}; the first: {tried.refused[0]}")
            front = compared(plan, tried, measure, say)
            confirmed = on_real_clock(plan, front[0].point, measure_by_run(plan, folder, show), say)
            tuning = Tuning(folder, plan, tried, front, confirmed)
            write_tuning(tuning)
    except (KeyboardInterrupt, RunInterrupted):  # the latter by a run, which does not know its search
        raise RunInterrupted(f"interrupted; go on with: {resume_campaign_command('tune', folder)}") from None
    except SettingRefused:
        raise
    except PauseflError as error:  # of the machine, or of the user's own code
        raise with_resume_command(error, resume_campaign_command("tune", folder)) from error
    return tuning


def _shower(console: Console) -> Show:
    def show(title: str) -> AbstractContextManager[View]:
        return make_view(console, title)

    return show
