"""Searches with Optuna: several objectives, several seeds a trial, in a study on disk that can be gone on with."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pausefl.campaigns.tuning.measure import Figures, Measure, SettingRefused
from pausefl.campaigns.tuning.plan import Objective, TuningPlan
from pausefl.campaigns.tuning.space import Point, published_point, size_of
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

STUDY = "study.journal"
_REFUSED = "refused"
"""The attribute of a trial that says why its setting could not be played."""
_WANTED = "wanted"
"""The attribute of a trial that holds the setting asked for; Optuna notes value by value what it tries."""


@dataclass(frozen=True)
class TrialResult:
    """A setting that was tried on every seed."""

    point: Point
    values: Sequence[float]
    """The mean over the seeds of each objective, in their order."""


@dataclass(frozen=True)
class SearchResult:
    """All that a search tried."""

    trials: Sequence[TrialResult]
    front: Sequence[TrialResult]
    """Those that no other one dominates, each setting once."""
    pruned: int
    """How many trials were left after some of their seeds."""
    refused: Sequence[str]
    """Each setting that could not be played, and why."""

    @property
    def asked(self) -> int:
        """How many settings were asked for, whatever became of them."""
        return len(self.trials) + self.pruned + len(self.refused)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Optuna warns of choices that are tables or lists. The journal is JSON, which keeps both."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Choices for a categorical distribution", UserWarning)
        yield


@_without_warnings()
def search(plan: TuningPlan, folder: Path, measure: Measure, console: Console) -> SearchResult:
    """Try as many settings as the plan says, or all there are, each once; goes on with what `folder` has."""
    from optuna.trial import TrialState

    study = _study(plan, folder)
    _take_up_interrupted(study)
    with _progress(plan, console) as show:
        while (done := _done(study)) < plan.trials and (asked := _untried(study, plan)) is not None:
            show(done, _pruned(study))
            trial, point = asked
            finished = [each.values for each in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]
            try:
                values = tried(plan, point, measure, finished)
            except (ConfigError, SettingRefused) as error:  # another error leaves the trial to be taken up again
                trial.set_user_attr(_REFUSED, str(error))
                study.tell(trial, state=TrialState.PRUNED)  # the sampler learns nothing of trials that failed
                continue
            if values is None:
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, values)
    return _result(study, plan)


def tried(
    plan: TuningPlan, point: Point, measure: Measure, finished: Sequence[Sequence[float]]
) -> Sequence[float] | None:
    """The mean of each objective over the seeds; None as soon as a finished trial is sure to dominate this one.

    Optuna prunes no study of several objectives, as its pruners guess from one. Here nothing is guessed: no objective
    is ever below 0 and each that is to be great has a greatest value, so the seeds played bound the mean over all of
    them. A trial is left where even its bounds are dominated.
    """
    found: list[Figures] = []
    for seed in plan.trial_seeds:
        found.append(measure(point, seed))
        best = [_bound(objective, found, plan.seeds) for objective in plan.objectives]
        if len(found) < plan.seeds and any(dominates(each, best, plan.objectives) for each in finished):
            return None
    return best


def dominates(one: Sequence[float], other: Sequence[float], objectives: Sequence[Objective]) -> bool:
    """Whether `one` is better in an objective and worse in none."""
    pairs = list(zip(objectives, one, other, strict=True))
    return any(o.is_better(a, b) for o, a, b in pairs) and not any(o.is_better(b, a) for o, a, b in pairs)


def _bound(objective: Objective, found: Sequence[Figures], seeds: int) -> float:
    """The best that the mean over all seeds can still be; the mean itself once all are there."""
    played = sum(figures[objective.name] for figures in found)
    return (played + (objective.greatest or 0.0) * (seeds - len(found))) / seeds


def _study(plan: TuningPlan, folder: Path) -> "Study":
    """The study in `folder`, begun if there is none; its first trial is the published setting where it can be."""
    import optuna

    from pausefl.campaigns.tuning.journal import open_journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=open_journal(folder / STUDY),
        study_name="tune",
        directions=["minimize" if o.greatest is None else "maximize" for o in plan.objectives],
        load_if_exists=True,
    )
    # A search that goes on must not draw again what it drew first.
    study.sampler = optuna.samplers.TPESampler(seed=plan.experiment.experiment.seed + len(study.trials))
    published = published_point(plan.experiment, plan.space)
    if published is not None and not study.trials:
        _enqueue(study, published)
    return study


def _untried(study: "Study", plan: TuningPlan) -> "tuple[Trial, Point] | None":
    """A trial of a setting that was not tried before, and the setting; None where the space holds no other.

    The sampler returns to settings that it has seen, in a small space most of the time. Then the next one is drawn at
    random.
    """
    import optuna
    from optuna.trial import TrialState

    seen, sampler = {_key(trial.params) for trial in _ended(study)}, study.sampler
    try:
        while len(seen) < size_of(plan.space):
            trial = study.ask()
            point = {key: dimension.suggest(trial, key) for key, dimension in plan.space.items()}
            if _key(trial.params) not in seen:
                return trial, point
            study.tell(trial, state=TrialState.FAIL)
            study.sampler = optuna.samplers.RandomSampler(seed=plan.experiment.experiment.seed + len(study.trials))
    finally:
        study.sampler = sampler
    return None


def _key(point: Point) -> str:
    """The same for equal settings; of numbers, 5 and 5.0 are the same."""
    return repr(sorted((k, int(v) if isinstance(v, float) and v.is_integer() else v) for k, v in point.items()))


def _take_up_interrupted(study: "Study") -> None:
    """Try again what was being tried when the search was interrupted."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if point := trial.user_attrs.get(_WANTED, trial.params):
            _enqueue(study, point)
        study.tell(trial.number, state=TrialState.FAIL)


def _enqueue(study: "Study", point: Point) -> None:
    study.enqueue_trial(dict(point), user_attrs={_WANTED: dict(point)})


def _done(study: "Study") -> int:
    return len(_ended(study))


def _ended(study: "Study") -> "list[FrozenTrial]":
    """The trials that count: all but those that were interrupted, and those of settings tried before."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    return [trial for trial in trials if trial.state in ended or _REFUSED in trial.user_attrs]


def _pruned(study: "Study") -> int:
    from optuna.trial import TrialState

    pruned = study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    return sum(_REFUSED not in trial.user_attrs for trial in pruned)


def _result(study: "Study", plan: TuningPlan) -> SearchResult:
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    trials = [TrialResult(trial.params, trial.values) for trial in complete]
    once = {_key(each.point): each for each in trials}
    front = [
        each
        for each in once.values()
        if not any(dominates(other.values, each.values, plan.objectives) for other in once.values())
    ]
    refused = [f"{t.params} {t.user_attrs[_REFUSED]}" for t in _ended(study) if _REFUSED in t.user_attrs]
    if not trials:
        why = f": {refused[0]}" if refused else ""
        raise SettingRefused(f"none of {len(refused)} settings could be played{why}")
    return SearchResult(trials, front, _pruned(study), refused)


@contextmanager
def _progress(plan: TuningPlan, console: Console) -> Iterator[Callable[[int, int], None]]:
    """What shows how many trials are done and pruned: a bar, or lines where each run has a display of its own."""
    if plan.by == "run":
        yield lambda done, pruned: console.print(f"trial {done + 1} of {plan.trials} ({pruned} pruned)")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("trials", total=plan.trials)
        yield lambda done, pruned: progress.update(bar, completed=done, description=f"trials, {pruned} pruned")
