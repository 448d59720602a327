"""Searches with Optuna: several objectives, several seeds a trial, in a study on disk that can be gone on with."""

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
from sqlalchemy.exc import SQLAlchemyError  # which Optuna brings, and does not wrap where a study is opened

from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_tune.measure import Figures, SettingRefused
from pausefl_tune.plan import TABLES_WARNING, Objective, Point, TuningPlan

STUDY = "study.db"
_REFUSED = "refused"
"""The attribute of a pruned trial that says why its setting could not be played."""
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
    """All that a search tried."""

    trials: Sequence[TrialResult]
    front: Sequence[TrialResult]
    """Those that no other one dominates."""
    pruned: int
    """How many trials were left after some of their seeds."""
    refused: Sequence[str]
    """Each setting that could not be played, and why."""


def search(plan: TuningPlan, folder: Path, measure: MeasureSetting, say: Say) -> SearchResult:
    """Try as many settings as the plan says, or all there are, each once; goes on with what `folder` has."""
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
    """The database of a search, begun if there is none; PauseflError of one line where it cannot be used."""
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
    """The mean of each objective over the seeds; None as soon as a finished trial is sure to dominate this one.

    Optuna's pruners know one objective. Here nothing is guessed: no objective is ever below 0 and each that is to be
    great has a greatest value, so the seeds played bound the mean over all of them.
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
    """The study, which first tries the published setting, if the space holds it, and then what was interrupted."""
    directions = [StudyDirection.MINIMIZE if o.greatest is None else StudyDirection.MAXIMIZE for o in plan.objectives]
    study = optuna.create_study(storage=storage, study_name="tune", directions=directions, load_if_exists=True)
    if not _trials(study, *_ENDED) and all(_holds(each, plan.own_point[key]) for key, each in plan.space.items()):
        study.enqueue_trial(dict(plan.own_point))
    for trial in _trials(study, TrialState.RUNNING):
        study.enqueue_trial(trial.params)
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def _holds(space: BaseDistribution, value: object) -> bool:
    if isinstance(space, CategoricalDistribution):
        return value in space.choices
    assert isinstance(space, IntDistribution | FloatDistribution)
    return isinstance(value, int | float) and space.low <= value <= space.high


def _untried(study: optuna.Study, plan: TuningPlan, ended: Sequence[FrozenTrial]) -> optuna.Trial | None:
    """A trial of a setting that was not tried before; None where the space holds no other.

    The sampler returns to settings that it has seen, in a small space most of the time. Then one is drawn at random.
    """
    counts = [
        len(each.choices)
        if isinstance(each, CategoricalDistribution)
        else each.high - each.low + 1
        if isinstance(each, IntDistribution)
        else math.inf
        for each in plan.space.values()
    ]
    samplers = optuna.samplers.TPESampler, optuna.samplers.RandomSampler
    seen, trial = [each.params for each in ended], None
    while len(seen) < math.prod(counts):
        # A search that goes on must not draw again what it drew first.
        study.sampler = samplers[trial is not None](seed=plan.experiment.experiment.seed + len(study.trials))
        trial = study.ask(dict(plan.space))
        if trial.params not in seen:
            return trial
        study.tell(trial, state=TrialState.FAIL)
    return None


def _try(study: optuna.Study, trial: optuna.Trial, plan: TuningPlan, measure: MeasureSetting) -> None:
    """Play a trial and note what became of it; the sampler learns of settings that were refused as of pruned ones."""
    values = None
    try:
        values = tried(plan, trial.params, measure, [each.values for each in _trials(study, TrialState.COMPLETE)])
    except (ConfigError, SettingRefused) as error:  # another error leaves the trial to be taken up again
        trial.set_user_attr(_REFUSED, str(error))
    study.tell(trial, values, state=TrialState.PRUNED if values is None else TrialState.COMPLETE)


def _trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=states)


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
