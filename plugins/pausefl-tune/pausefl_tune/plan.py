"""The plan of a search: its space, its seeds and its objectives."""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.server_records import check_policies, parameters_of, selected_policy
from pausefl.experiment.toml_source import bare_or_quoted, listed_values, parts_of_key, value_of_text
from pausefl.results.reading import EPSILON_LABELS, latency_unit
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.newcomers import NewcomerPolicy
from pausefl_server.selection.policies.baselines import Ucb
from pausefl_server.selection.policies.pause import Pause

By = Literal["simulate", "run"]
"""How a trial of `tune` is played: as a simulation or as a run."""
Point = Mapping[str, Any]
"""A value for each searched key. Empty for the published setting."""
_WEIGHTS = {"alpha": "log:0.01..1000", "gamma": "log:0.01..1000", "zeta": "log:0.01..100", "beta": "1.05..6.0"}
_FOR_EXAMPLE = "selection.pause.alpha=log:1..1000, selection.m=3..8 or selection.pause.window=0,8,32"
TABLES_WARNING = "Choices for a categorical distribution"
"""The start of Optuna's warning about choices that are tables or lists. Its JSON storage keeps them all the same."""
_FIXED = {
    "privacy.enabled": "decides whether leakage is measured; search with privacy and without it apart",
    "privacy.unit": "decides what every ε protects, and ε of two units do not compare; search them apart",
    "server.mode": "decides whether the sum of latencies is measured or the time that elapsed; search them apart",
    "workload.dataset": "decides what scores are of, and those of two data sets do not compare; search them apart",
    "experiment.clock": "decides whether latencies are measured, and the two do not compare; search them apart",
    "latency.signal": "decides what counts as latency, and the two do not compare; search them apart",
}
"""Keys that decide what is measured, and why they are not searched."""
_FIXED_IN_SIMULATIONS = {
    "experiment.rounds": "fewer take and leak less, and simulations do not learn; search it --by run"
}


@dataclass(frozen=True)
class Objective:
    """A figure of a run that a search minimises or maximises. It is never below 0."""

    name: str
    label: str
    greatest: float | None = None
    """None if the figure is minimised. Otherwise it is maximised, and this is its greatest possible value."""

    @property
    def sign(self) -> int:
        """1 if the figure is minimised, -1 if it is maximised."""
        return 1 if self.greatest is None else -1


LATENCY = Objective("total_latency_s", "total latency (s)")
LATENCY_TO_TARGET = Objective("latency_to_target_s", "latency to the target accuracy (s)")
"""In an asynchronous run, both are of the elapsed time, as latencies overlap."""
LEAKAGE = Objective("max_epsilon_spent", "greatest ε spent")
IMBALANCE = Objective("imbalance", "imbalance of choices")
ACCURACY = Objective("final_accuracy", "final test accuracy", greatest=1.0)


@dataclass(frozen=True)
class TuningPlan:
    """The plan of a search, written to campaign.json. Raises ConfigError for values that do not fit together."""

    source: str
    """The experiment as TOML. Its own values are the published setting."""
    search: Sequence[str] = ()
    """Texts KEY=SPACE. Empty to search the weights of the policy."""
    by: By = "simulate"
    trials: int = 50
    seeds: int = 3
    """How many seeds a trial has. The first is the experiment's seed."""
    fresh_seeds: int = 10
    """How many of the following seeds compare the front with the published setting."""
    target_accuracy: float | None = None
    real_seeds: int = 0
    """How many of the following seeds play the recommended and the published setting on the real clock."""
    command: str = ""
    """The command line that started the search. Empty if Python code started it."""

    def __post_init__(self) -> None:
        own, policy = self.experiment, selected_policy(self.experiment.selection)
        target, real = f"--target-accuracy {self.target_accuracy}", f"--real-seeds {self.real_seeds}"
        has_target = self.target_accuracy is not None
        trains, by_run = self.by == "run" or self.real_seeds > 0, "--by run" if self.by == "run" else real
        sees_updates = isinstance(policy, NewcomerPolicy) or policy.judges
        problems = {
            f"--trials {self.trials}: must be at least 1": self.trials < 1,
            f"--seeds {self.seeds}: must be at least 1": self.seeds < 1,
            f"--fresh-seeds {self.fresh_seeds}: must be at least 2, to tell settings from chance": self.fresh_seeds < 2,
            f"{target}: must lie between 0 and 1": has_target and not 0 < (self.target_accuracy or 0) < 1,
            f"{target}: goes with --by run, as simulations train not": has_target and self.by != "run",
            f"{real}: must be at least 0": self.real_seeds < 0,
            f"{real}: goes with --by run --virtual, or with --by simulate": self.real_seeds
            and (self.by, own.experiment.clock) == ("run", "real"),
            f'{real}: goes with clients.batched = "auto" or "off"': self.real_seeds and own.clients.batched == "on",
            f'{by_run}: needs a model that learns, not workload.model = "synthetic"': trains
            and own.workload.model == "synthetic",
            f"{by_run}: goes without privacy.ledger_dir, whose budgets all runs would share": trains
            and own.privacy.enabled
            and own.privacy.ledger_dir,
            f"selection.policy: {own.selection.policy} looks at updates, which simulations have not; tune it --by run":
            self.by != "run" and sees_updates,
        }  # fmt: skip
        for problem, is_there in problems.items():
            if is_there:
                raise ConfigError(problem)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment with its own values: the published setting."""
        return self.experiment_at({})

    def experiment_at(self, point: Point, seed: int | None = None) -> Experiment:
        """The experiment at a point, under its own or another seed. Raises ConfigError if it is not valid."""
        experiment = parse_experiment(self.source, {**point} if seed is None else {**point, "experiment.seed": seed})
        check_policies(experiment)
        return experiment

    @cached_property
    def space(self) -> Mapping[str, BaseDistribution]:
        """The search space by key. Raises ConfigError for a text that is no space, and for a bad key or end."""
        space: dict[str, BaseDistribution] = {}
        fixed_keys = _FIXED if self.by == "run" else {**_FIXED, **_FIXED_IN_SIMULATIONS}
        for setting in self.search or self._weights():
            key, _, text = (part.strip() for part in setting.partition("="))
            if not key or not text:
                raise ConfigError(f"--search {setting}: must be KEY=SPACE such as {_FOR_EXAMPLE}")
            if parts_of_key(key) in map(parts_of_key, space):
                raise ConfigError(f"--search {key}: is given twice")
            if re.fullmatch(r"experiment\.(\w+_)?seed", ".".join(parts_of_key(key))):
                raise ConfigError(f"--search {key}: a lucky seed is no setting; all trials play the same, see --seeds")
            space[key], ends = _dimension(setting, text)
            for value in ends:
                try:
                    found = self.experiment_at({key: value})
                except ConfigError as error:
                    raise ConfigError(f"--search {key}: {error}") from None
                for fixed, why in fixed_keys.items():
                    if value_of(found, fixed) != value_of(self.experiment, fixed):
                        raise ConfigError(f"--search {key}: {why}")
        return space

    @property
    def own_point(self) -> Point:
        """The published values of the searched keys, which may lie outside the space."""
        return {key: value_of(self.experiment, key) for key in self.space}

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Latency, leakage in a private run, and accuracy. Simulations do not train: imbalance stands for accuracy."""
        latency = LATENCY if self.target_accuracy is None else LATENCY_TO_TARGET
        unit = latency_unit([{"time_scale": self.experiment.latency.time_scale}])
        label = latency.label.replace("(s)", f"({unit})")
        if self.experiment.is_asynchronous:
            label = re.sub("(total )?latency", "elapsed time", label)
        latency = replace(latency, label=label)
        privacy = self.experiment.privacy
        leakage = (replace(LEAKAGE, label=f"greatest {EPSILON_LABELS[privacy.unit]}"),) if privacy.enabled else ()
        return latency, *leakage, ACCURACY if self.by == "run" else IMBALANCE

    @property
    def confirmed_objectives(self) -> tuple[Objective, ...]:
        """The objectives on the real clock, where all settings train."""
        return tuple(ACCURACY if objective is IMBALANCE else objective for objective in self.objectives)

    @property
    def trial_seeds(self) -> range:
        """The seeds of every trial."""
        return range(first := self.experiment.experiment.seed, first + self.seeds)

    @property
    def unseen_seeds(self) -> range:
        """The fresh seeds, which no trial has."""
        return range(first := self.trial_seeds.stop, first + self.fresh_seeds)

    @property
    def real_clock_seeds(self) -> range:
        """The seeds of the real clock, which neither a trial nor the front has."""
        return range(first := self.unseen_seeds.stop, first + self.real_seeds)

    def _weights(self) -> list[str]:
        name, policy = self.experiment.selection.policy, selected_policy(self.experiment.selection)
        table = f"selection.{bare_or_quoted(name)}"
        if isinstance(policy, Pause | Ucb):  # those of the same name of another policy are not PAUSE's
            return [f"{table}.{key}={text}" for key, text in _WEIGHTS.items() if hasattr(policy, key)]
        raise ConfigError(f"--search: {name} has none of PAUSE's weights, so say what to search: {_FOR_EXAMPLE}")


def value_of(experiment: Experiment, key: str) -> Any:
    """The experiment's value of a key. For a policy's parameter that it does not set, the policy's default."""
    *tables, name = parts_of_key(key)
    found: Any = experiment.model_dump(mode="json")
    for table in tables:
        found = found.get(table, {}) if isinstance(found, dict) else {}
    if isinstance(found, dict) and name in found:
        return found[name]
    is_of_policy = len(tables) == 2 and tables[0] == "selection"
    return parameters_of(selected_policy(experiment.selection, tables[1])).get(name) if is_of_policy else None


def _dimension(setting: str, text: str) -> tuple[BaseDistribution, Sequence[Any]]:
    """The distribution of a text A..B, log:A..B or A,B,C, and its ends or values."""
    is_log = text.startswith("log:")
    low, separator, high = text.removeprefix("log:").partition("..")
    if not separator and not is_log:
        values = listed_values(text)
        once = [value for place, value in enumerate(values) if value not in values[:place]]  # some are tables
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", TABLES_WARNING, UserWarning)
            return CategoricalDistribution(once), once
    ends = [value_of_text(end.strip()) for end in (low, high)]
    are_numbers = all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    if not (separator and are_numbers and ends[0] < ends[1] and (ends[0] > 0 or not is_log)):
        above = ", above 0 with log:" if is_log else ""
        raise ConfigError(f"--search {setting}: must be two numbers A..B with A < B{above}")
    kind = IntDistribution if all(isinstance(end, int) for end in ends) else FloatDistribution
    return kind(ends[0], ends[1], log=is_log), ends
