"""What a search is asked for, and what it measures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pausefl.campaigns.tuning.space import SearchSpace, parse_search
from pausefl.config.experiment import Experiment
from pausefl.config.loading import parse_experiment
from pausefl.config.server_records import check_policies, selected_policy
from pausefl.results.reading import EPSILON_LABELS
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.base import Policy
from pausefl_server.selection.newcomers import NewcomerPolicy

By = Literal["simulate", "run"]
"""What a trial plays."""


@dataclass(frozen=True)
class Objective:
    """A figure of a run that a search makes small or great. None is ever below 0."""

    name: str
    label: str
    greatest: float | None = None
    """None: the smaller, the better. Else the greater, the better, up to this."""

    def is_better(self, one: float, other: float) -> bool:
        """Whether `one` is strictly better."""
        return one < other if self.greatest is None else one > other


LATENCY = Objective("total_latency_s", "total latency (s)")
LATENCY_TO_TARGET = Objective("latency_to_target_s", "latency to the target accuracy (s)")
LEAKAGE = Objective("max_epsilon_spent", "greatest ε spent")
IMBALANCE = Objective("imbalance", "imbalance of choices")
ACCURACY = Objective("final_accuracy", "final test accuracy", greatest=1.0)


@dataclass(frozen=True)
class TuningPlan:
    """A search, as asked for; what is written to campaign.json. ConfigError for what cannot be."""

    source: str
    """The experiment as TOML; its own values are the published setting."""
    search: Sequence[str] = ()
    """KEY=SPACE each; empty: the weights of the policy."""
    by: By = "simulate"
    trials: int = 50
    seeds: int = 3
    """How many seeds a trial has, from the experiment's on."""
    fresh_seeds: int = 10
    """How many seeds after these compare the front with the published setting."""
    target_accuracy: float | None = None
    real_seeds: int = 0
    """How many seeds after these play the recommended and the published setting on the real clock."""
    command: str = ""
    """The command line that asks for it; empty from Python."""

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("seeds", self.seeds)):
            if value < 1:
                raise ConfigError(f"--{name} {value}: must be at least 1")
        if self.fresh_seeds < 2:
            raise ConfigError(f"--fresh-seeds {self.fresh_seeds}: must be at least 2, to tell settings from chance")
        if self.target_accuracy is not None and not 0 < self.target_accuracy < 1:
            raise ConfigError(f"--target-accuracy {self.target_accuracy}: must lie between 0 and 1")
        if self.real_seeds < 0:
            raise ConfigError(f"--real-seeds {self.real_seeds}: must be at least 0")
        if self.real_seeds and (self.by, self.experiment.experiment.clock) == ("run", "real"):
            raise ConfigError(f"--real-seeds {self.real_seeds}: goes with --by run --virtual, or with --by simulate")
        if self.real_seeds and self.experiment.clients.batched == "on":
            raise ConfigError(f'--real-seeds {self.real_seeds}: goes with clients.batched = "auto" or "off"')
        self._check_by()

    @cached_property
    def experiment(self) -> Experiment:
        """The published setting."""
        experiment = parse_experiment(self.source)
        check_policies(experiment)
        return experiment

    @cached_property
    def space(self) -> SearchSpace:
        """Where the search looks."""
        return parse_search(self.search, self.experiment)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Latency, leakage in a private run, and accuracy; where nothing is trained, imbalance stands for that."""
        latency = LATENCY if self.target_accuracy is None else LATENCY_TO_TARGET
        privacy = self.experiment.privacy
        leakage = (replace(LEAKAGE, label=f"greatest {EPSILON_LABELS[privacy.unit]}"),) if privacy.enabled else ()
        return latency, *leakage, ACCURACY if self.by == "run" else IMBALANCE

    @property
    def confirmed_objectives(self) -> tuple[Objective, ...]:
        """What is measured on the real clock, where all settings train."""
        return tuple(ACCURACY if objective is IMBALANCE else objective for objective in self.objectives)

    @property
    def trial_seeds(self) -> range:
        """The seeds of every trial."""
        first = self.experiment.experiment.seed
        return range(first, first + self.seeds)

    @property
    def unseen_seeds(self) -> range:
        """Seeds that no trial has."""
        first = self.trial_seeds.stop
        return range(first, first + self.fresh_seeds)

    @property
    def real_clock_seeds(self) -> range:
        """Seeds that neither a trial nor the front has."""
        first = self.unseen_seeds.stop
        return range(first, first + self.real_seeds)

    def _check_by(self) -> None:
        """That what a trial plays has what is measured."""
        experiment = self.experiment
        if self.by == "run" or self.real_seeds:
            asked = "--by run" if self.by == "run" else f"--real-seeds {self.real_seeds}"
            if experiment.workload.model == "synthetic":
                raise ConfigError(f'{asked}: needs a model that learns, not workload.model = "synthetic"')
            if experiment.privacy.enabled and experiment.privacy.ledger_dir:
                raise ConfigError(f"{asked}: goes without privacy.ledger_dir, whose budgets all runs would share")
        if self.by == "run":
            return
        if self.target_accuracy is not None:
            raise ConfigError(f"--target-accuracy {self.target_accuracy}: goes with --by run, as simulations train not")
        policy = selected_policy(experiment.selection)
        if isinstance(policy, NewcomerPolicy) or type(policy).inspect is not Policy.inspect:
            raise ConfigError(
                f"selection.policy: {experiment.selection.policy} looks at updates, which simulations have not;"
                " tune it --by run"
            )
