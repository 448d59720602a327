"""The trainer's interface for a client session. It does not import torch: a synthetic model needs none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from pausefl_client.data.holdings import Holding
from pausefl_client.registries import OPTIMIZERS, SCHEDULES
from pausefl_client.training.pace import pace
from pausefl_proto.number_types import Bounded, Count, Positive
from pausefl_proto.wire import Manifest, Vector

StatisticsAt = Literal["average", "local"]
"""What happens to running statistics of normalisation: the server averages them, or each client keeps its own."""


@dataclass(frozen=True)
class TrainingSettings(Bounded):
    """Settings of one round's local training. The defaults are those of PAUSE's published runs."""

    optimizer: str = "adam"
    """The local optimizer: a lower-case torch.optim name from `pausefl validate --list`, or "module:name"."""
    learning_rate: Positive = 0.01
    """The learning rate of local training."""
    batch_size: Count = 20
    """How many examples one local optimizer step uses."""
    epochs: Count = 1
    """How many times a client goes through its examples in one round, within `max_steps`."""
    max_steps: Count | None = 100
    """The most optimizer steps of one round's local training, which ends after them."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the optimizer, such as { weight_decay = 0.01 }."""
    schedule: Mapping[str, Any] = field(default_factory=dict)
    """How the learning rate changes from round to round: a table with `kind` and that schedule's own keys, such as
    { kind = "cosine", T_max = 100 }. Without it, the rate is constant."""
    statistics: StatisticsAt | None = None
    """What happens to the running statistics of batch normalisation. "average": clients send them with the update,
    without noise, and the server averages them by data size. "local": each client keeps its own, and the evaluator
    estimates others on held-out data. The default is "local" in a private run or with FedBN, else "average"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        OPTIMIZERS.check_name(self.optimizer, "workload.optimizer")
        if self.schedule:
            SCHEDULES.check_name(str(self.schedule.get("kind", "")), "workload.schedule.kind")

    def steps(self, n_examples: int) -> int:
        """How many optimizer steps a client with `n_examples` examples takes in a round."""
        steps = self.epochs * -(-n_examples // self.batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)


@dataclass(frozen=True, eq=False)
class TrainingOutcome:
    """The outcome of one round of local training."""

    update: Vector
    """h_k = θ_k − θ, float32 (PAUSE v2, eq. (2)), before clipping and noise. Statistics are values, not changes."""
    loss: float
    """Mean training loss over the round's steps."""


class Trainer(Protocol):
    """Trains a model on one client's examples."""

    @property
    def n_examples(self) -> int:
        """|D_k|, the number of the client's examples."""

    @property
    def label_counts(self) -> dict[str, float]:
        """Number of examples by "label_<class>", for runs that disclose it. Empty without classes or with over 1024."""

    @property
    def manifest(self) -> Manifest:
        """The meaning of the d values of θ."""

    @property
    def holding(self) -> Holding:
        """The identity of the examples, before the client changes them in any way."""

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """Train from θ, (d,) float32, and return the outcome. The same arguments give the same batches.

        A trainer should call `withdrawal.stop_if_withdrawn` at each step, to end early if the job is withdrawn.
        """

    def state(self) -> bytes:
        """What the trainer remembers from round to round, as bytes to be saved. Empty if it remembers nothing."""

    def restore(self, state: bytes) -> None:
        """Replace the trainer's state by a saved one. Empty bytes reset it to its start."""


class WrappedTrainer:
    """A trainer that forwards everything to another trainer. Subclasses change parts of that."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

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


class PacedTrainer(WrappedTrainer):
    """Trains as another trainer does, but for no less than a given time. It takes longer if the training does."""

    def __init__(self, trainer: Trainer, duration_s: Callable[[int], float]) -> None:
        """`duration_s`: round -> how long training takes at least, in seconds."""
        super().__init__(trainer)
        self._duration_s = duration_s

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        return pace().during(self._duration_s(round), partial(super().train, theta, round=round))


def innermost(trainer: Trainer) -> Trainer:
    """The trainer inside all wrappers."""
    while isinstance(trainer, WrappedTrainer):
        trainer = trainer._trainer
    return trainer
