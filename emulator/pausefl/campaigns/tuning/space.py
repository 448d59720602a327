"""Where a search looks: a key of the experiment, and a range or a list of its values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pausefl.campaigns.values import listed_values
from pausefl.config.experiment import Experiment
from pausefl.config.loading import parse_experiment
from pausefl.config.server_records import check_policies, selected_policy
from pausefl.config.toml_source import bare_or_quoted, parts_of_key, value_of_text
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from optuna import Trial

Point = Mapping[str, Any]
"""A value for every key that is searched."""
_WEIGHTS = {"alpha": "log:0.01..1000", "gamma": "log:0.01..1000", "zeta": "log:0.01..100", "beta": "1.05..6.0"}
"""PAUSE's weights, and where they are searched unless said otherwise."""
_FOR_EXAMPLE = "selection.pause.alpha=log:1..1000, selection.m=3..8 or selection.pause.window=0,8,32"


@dataclass(frozen=True)
class SearchRange:
    """Numbers from `low` to `high`, whole ones where both are."""

    low: float
    high: float
    is_log: bool

    @property
    def ends(self) -> Sequence[Any]:
        """The least and the greatest."""
        return self.low, self.high

    @property
    def size(self) -> float:
        """How many values it has."""
        are_whole = isinstance(self.low, int) and isinstance(self.high, int)
        return self.high - self.low + 1 if are_whole else math.inf

    def suggest(self, trial: "Trial", key: str) -> Any:
        """A value that Optuna's sampler takes."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(key, self.low, self.high, log=self.is_log)
        return trial.suggest_float(key, self.low, self.high, log=self.is_log)

    def holds(self, value: object) -> bool:
        """Whether the value lies in it."""
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class SearchChoices:
    """A list of values."""

    ends: Sequence[Any]
    """All the values."""

    @property
    def size(self) -> float:
        """How many values it has."""
        return sum(value not in self.ends[:place] for place, value in enumerate(self.ends))  # some are tables

    def suggest(self, trial: "Trial", key: str) -> Any:
        """The value that Optuna's sampler takes."""
        return trial.suggest_categorical(key, list(self.ends))

    def holds(self, value: object) -> bool:
        """Whether it is one of them."""
        return value in self.ends


SearchSpace = Mapping[str, SearchRange | SearchChoices]


def parse_search(settings: Sequence[str], experiment: Experiment) -> SearchSpace:
    """The space that KEY=SPACE texts span, the weights of the experiment's policy without any.

    A space is A..B, log:A..B or A,B,C. ConfigError for a text that is none, and for a key or value that no experiment
    has.
    """
    space: dict[str, SearchRange | SearchChoices] = {}
    for setting in settings or _default(experiment):
        key, separator, text = setting.partition("=")
        if not separator or not key.strip() or not text.strip():
            raise ConfigError(f"--search {setting}: must be KEY=SPACE such as {_FOR_EXAMPLE}")
        if parts_of_key(key.strip()) in map(parts_of_key, space):
            raise ConfigError(f"--search {key.strip()}: is given twice")
        if parts_of_key(key.strip()) == ["experiment", "seed"]:
            raise ConfigError("--search experiment.seed: each trial plays seeds of its own, see --seeds")
        space[key.strip()] = _dimension(setting, text.strip())
    source = experiment.to_toml()
    for key, dimension in space.items():
        for value in dimension.ends:
            try:
                found = experiment_at(source, {key: value})
            except ConfigError as error:
                raise ConfigError(f"--search {key}: {error}") from None
            if why := _measures_otherwise(experiment, found):
                raise ConfigError(f"--search {key}: {why}")
    return space


def size_of(space: SearchSpace) -> float:
    """How many settings a space holds."""
    return math.prod(dimension.size for dimension in space.values())


def _measures_otherwise(experiment: Experiment, other: Experiment) -> str:
    """Why the figures of two experiments are of different things; empty where they are not."""
    if other.privacy.enabled != experiment.privacy.enabled:
        return "decides whether leakage is measured; search with privacy and without it apart"
    if other.privacy.unit != experiment.privacy.unit:
        return "decides what every ε protects, and ε of two units do not compare; search them apart"
    if other.latency.signal != experiment.latency.signal:
        return "decides what counts as latency, and the two do not compare; search them apart"
    return ""


def experiment_at(source: str, point: Point, seed: int | None = None) -> Experiment:
    """The experiment at a point, under its own or another seed; ConfigError where it is none."""
    experiment = parse_experiment(source, {**point} if seed is None else {**point, "experiment.seed": seed})
    check_policies(experiment)
    return experiment


def published_point(experiment: Experiment, space: SearchSpace) -> Point | None:
    """The experiment's own values of the keys searched; None where it lies outside the space."""
    point = values_of(experiment, space)
    return point if all(space[key].holds(value) for key, value in point.items()) else None


def values_of(experiment: Experiment, keys: Iterable[str]) -> Point:
    """The experiment's own values of these keys, wherever they lie."""
    return {key: _value_of(experiment, key) for key in keys}


def changes_of(experiment: Experiment, point: Point) -> Point:
    """What of a point is not the experiment's own; of numbers, 5 and 5.0 are the same."""
    own = values_of(experiment, point)
    return {key: value for key, value in point.items() if value != own[key]}


def _default(experiment: Experiment) -> list[str]:
    name, policy = experiment.selection.policy, selected_policy(experiment.selection)
    table = f"selection.{bare_or_quoted(name)}"
    found = [f"{table}.{key}={text}" for key, text in _WEIGHTS.items() if hasattr(policy, key)]
    if not found:
        raise ConfigError(f"--search: {name} has none of PAUSE's weights, so say what to search: {_FOR_EXAMPLE}")
    return found


def _dimension(setting: str, text: str) -> SearchRange | SearchChoices:
    is_log, range_text = text.startswith("log:"), text.removeprefix("log:")
    low, separator, high = range_text.partition("..")
    if not separator and not is_log:
        return SearchChoices(listed_values(text))
    ends = value_of_text(low.strip()), value_of_text(high.strip())
    are_numbers = all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    if not (separator and are_numbers and ends[0] < ends[1] and (ends[0] > 0 or not is_log)):
        above = ", above 0 with log:" if is_log else ""
        raise ConfigError(f"--search {setting}: must be two numbers A..B with A < B{above}")
    return SearchRange(*ends, is_log)


def _value_of(experiment: Experiment, key: str) -> Any:
    """What the experiment has for a key, or its policy where the experiment leaves it at its default."""
    *tables, name = parts_of_key(key)
    found: Any = experiment.model_dump(mode="json")
    for table in tables:
        found = found.get(table, {}) if isinstance(found, dict) else {}
    if isinstance(found, dict) and name in found:
        return found[name]
    if len(tables) == 2 and tables[0] == "selection":
        return getattr(selected_policy(experiment.selection, tables[1]), name, None)
    return None
