"""What a client session asks of whatever trains for it. No torch here: a session with a synthetic model needs none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pausefl_client.data.holdings import Holding
from pausefl_client.registries import OPTIMIZERS, SCHEDULES
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Manifest, Vector


@dataclass(frozen=True)
class TrainingSettings:
    """Local training of one round; the fields are the keys of `[workload]` (PAUSE's published runs by default)."""

    optimizer: str = "adam"
    """A name of `registries.OPTIMIZERS`: one of torch.optim in lower case."""
    learning_rate: float = 0.01
    batch_size: int = 20
    epochs: int = 1
    max_steps: int | None = 100
    """Ends a round's training after that many optimizer steps; None: only the epochs count."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """What else the optimizer is made with, such as weight_decay."""
    schedule: Mapping[str, Any] = field(default_factory=dict)
    """How the learning rate changes from round to round: a `kind` of `registries.SCHEDULES` and its parameters; empty:
    it does not."""

    def __post_init__(self) -> None:
        OPTIMIZERS.check_name(self.optimizer, "workload.optimizer")
        if self.schedule:
            SCHEDULES.check_name(str(self.schedule.get("kind", "")), "workload.schedule.kind")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"workload.learning_rate = {self.learning_rate}: must be a finite number above 0")
        for key in ("batch_size", "epochs", "max_steps"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"workload.{key} = {value}: must be at least 1")


@dataclass(frozen=True, eq=False)
class TrainingOutcome:
    """What one round of local training gives."""

    update: Vector
    """h_k = θ_k − θ, (d,) float32 (PAUSE v2, eq. (2)), not yet clipped or noised."""
    loss: float
    """Mean training loss over the round's steps."""


class Trainer(Protocol):
    """Trains a model on one client's examples."""

    @property
    def n_examples(self) -> int:
        """|D_k|."""

    @property
    def label_counts(self) -> dict[str, float]:
        """Examples by label as "label_<class>", for runs that disclose them; empty without labels or with over 1024."""

    @property
    def manifest(self) -> Manifest:
        """What the d values of θ mean."""

    @property
    def holding(self) -> Holding:
        """Which examples these are, before anything the client may do to them."""

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """Train from θ, (d,) float32; the same arguments give the same batches.

        A trainer that calls `withdrawal.stop_if_withdrawn` once a step ends early when the server waits no longer.
        """

    def state(self) -> bytes:
        """What it remembers from round to round, to be written down; empty where that is nothing."""

    def restore(self, state: bytes) -> None:
        """Remember this and nothing else; empty: be as at the start."""


class WrappedTrainer:
    """A trainer that is another one, but for what subclasses change."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def wrapped(self) -> Trainer:
        """The other one."""
        return self._trainer

    @property
    def n_examples(self) -> int:
        return self._trainer.n_examples

    @property
    def label_counts(self) -> dict[str, float]:
        return self._trainer.label_counts

    @property
    def manifest(self) -> Manifest:
        return self._trainer.manifest

    @property
    def holding(self) -> Holding:
        return self._trainer.holding

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        return self._trainer.train(theta, round=round)

    def state(self) -> bytes:
        return self._trainer.state()

    def restore(self, state: bytes) -> None:
        self._trainer.restore(state)


def innermost(trainer: Trainer) -> Trainer:
    """The trainer within all that is wrapped around it."""
    while isinstance(trainer, WrappedTrainer):
        trainer = trainer.wrapped
    return trainer
