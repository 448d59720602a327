"""Searches with Optuna: several objectives, several seeds a trial, in a study on disk that can be resumed."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError  # Optuna brings it, and does not wrap it when it opens a study

from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_tune.measure import Figures, SettingRefused
from pausefl_tune.plan import TABLES_WARNING, Objective, Point, TuningPlan

STUDY = "study.db"
_REFUSED = "refused"
"""The attribute of a pruned trial that says why its setting could not be played."""
_AGAIN = "again"
"""The attribute of a trial that tries the setting of an interrupted one."""
_ENDED = TrialState.COMPLETE, TrialState.PRUNED
MeasureSetting = Callable[[Point, int], Figures]
Say = Callable[[str], object]


@dataclass(frozen=True)
class TrialResult:
    """A setting that was tried on every seed."""

    point: Point
    values: Sequence[float]
    """The mean over the seeds of each objective, in their order."""


@dataclass(frozen=True)
class SearchResult:
    """The results of all trials of a search."""

    trials: Sequence[TrialResult]
    front: Sequence[TrialResult]
    """The trials that no other trial dominates."""
    pruned: int
    """How many trials were ended before their last seed."""
    refused: Sequence[str]
    """Each setting that could not be played, and the reason."""


def search(plan: TuningPlan, folder: Path, measure: MeasureSetting, say: Say) -> SearchResult:
    """Try `plan.trials` settings, or all of the space, each once. Goes on with a search that `folder` already has."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings(), _opened(folder / STUDY) as storage:
        warnings.filterwarnings("ignore", TABLES_WARNING, UserWarning)
        study = _study(plan, storage)
        while len(ended := _trials(study, *_ENDED)) < plan.trials and (trial := _untried(study, plan, ended)):
            say(f"trial {len(ended) + 1} of {plan.trials}")
            _try(study, trial, plan, measure)
        return _result(study)


@contextmanager
def _opened(path: Path) -> Iterator[optuna.storages.RDBStorage]:
    """Open the database of a search, or make it. Raises PauseflError, in one line, if it cannot be used."""
    storage = None
    try:
        yield (storage := optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}"))
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        said = str(error.__cause__ or error).splitlines()[0]
        raise PauseflError(f"{path}: cannot be used ({said})") from error
    finally:
        if storage is not None:
            storage.engine.dispose()


def tried(
    plan: TuningPlan, point: Point, measure: MeasureSetting, finished: Sequence[Sequence[float]]
) -> Sequence[float] | None:
    """Try a setting. Returns the mean of each objective over the seeds, or None once a finished trial dominates it.

    Optuna's pruners know one objective. Here nothing is guessed: no objective is below 0, and each maximised one has a
    greatest value. So the seeds played bound the mean over all seeds, and the best mean still possible is compared.
    """
    bounds = {objective: (objective.greatest or 0.0) * plan.seeds for objective in plan.objectives}
    for left, seed in zip(reversed(range(plan.seeds)), plan.trial_seeds, strict=True):
        figures = measure(point, seed)
        bounds = {o: bound + figures[o.name] - (o.greatest or 0.0) for o, bound in bounds.items()}
        best = [bound / plan.seeds for bound in bounds.values()]
        if left and any(dominates(each, best, plan.objectives) for each in finished):
            return None
    return best


def dominates(one: Sequence[float], other: Sequence[float], objectives: Sequence[Objective]) -> bool:
    """Whether `one` is better in an objective and worse in none."""
    worse = [o.sign * (a - b) for o, a, b in zip(objectives, one, other, strict=True)]
    return max(worse) <= 0 and min(worse) < 0


def _study(plan: TuningPlan, storage: optuna.storages.BaseStorage) -> optuna.Study:
    """The study. It first tries the published setting, if the space has it, and then trials that were interrupted."""
    directions = [StudyDirection.MINIMIZE if o.greatest is None else StudyDirection.MAXIMIZE for o in plan.objectives]
    study = optuna.create_study(storage=storage, study_name="tune", directions=directions, load_if_exists=True)
    is_begun = any(each.params or each.state is TrialState.WAITING for each in _trials(study))
    if not is_begun and all(_holds(each, plan.own_point[key]) for key, each in plan.space.items()):
        study.enqueue_trial(dict(plan.own_point))
    for trial in _trials(study, TrialState.RUNNING):
        study.enqueue_trial(trial.params, {_AGAIN: True})
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def _holds(space: BaseDistribution, value: object) -> bool:
    if isinstance(space, CategoricalDistribution):
        return value in space.choices
    assert isinstance(space, IntDistribution | FloatDistribution)
    return isinstance(value, int | float) and space.low <= value <= space.high


def _count(space: BaseDistribution) -> float:
    """How many values a parameter may have."""
    if isinstance(space, CategoricalDistribution):
        return len(space.choices)
    return space.high - space.low + 1 if isinstance(space, IntDistribution) else math.inf


def _untried(study: optuna.Study, plan: TuningPlan, ended: Sequence[FrozenTrial]) -> optuna.Trial | None:
    """A trial of a setting that was not tried before. None if the space has no other.

    The sampler returns to settings that it has seen, in a small space most of the time. Then one is drawn at random.
    """
    settings = math.prod(map(_count, plan.space.values()))
    samplers = optuna.samplers.TPESampler, optuna.samplers.RandomSampler
    seen, trial = [each.params for each in ended], None
    while len(seen) < settings:
        # The seed differs from trial to trial, and an interruption does not change it: a resumed search must neither
        # repeat its first draws nor draw others than a search that was never interrupted.
        drawn = sum(_AGAIN not in each.user_attrs for each in _trials(study))
        study.sampler = samplers[trial is not None](seed=plan.experiment.experiment.seed + drawn)
        trial = study.ask(dict(plan.space))
        if trial.params not in seen:
            return trial
        study.tell(trial, state=TrialState.FAIL)
    return None


def _try(study: optuna.Study, trial: optuna.Trial, plan: TuningPlan, measure: MeasureSetting) -> None:
    """Play a trial and record its result. The sampler treats settings that were refused like pruned ones."""
    values = None
    try:
        values = tried(plan, trial.params, measure, [each.values for each in _trials(study, TrialState.COMPLETE)])
    except (ConfigError, SettingRefused) as error:  # after any other error, the trial is tried again
        trial.set_user_attr(_REFUSED, str(error))
    study.tell(trial, values, state=TrialState.PRUNED if values is None else TrialState.COMPLETE)


def _trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """The trials in any of these states; without states, all."""
    return study.get_trials(deepcopy=False, states=states or None)


def _result(study: optuna.Study) -> SearchResult:
    trials, front = (
        [TrialResult(each.params, each.values) for each in some]
        for some in (_trials(study, TrialState.COMPLETE), study.best_trials)
    )
    left = _trials(study, TrialState.PRUNED)
    refused = [f"{each.params} {each.user_attrs[_REFUSED]}" for each in left if _REFUSED in each.user_attrs]
    if not trials:
        raise SettingRefused(f"none of {len(refused)} settings could be played: {refused[0]}")
    return SearchResult(trials, front, len(left) - len(refused), refused)
