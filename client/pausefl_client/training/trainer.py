"""The interface of whatever trains for a client session. No torch here: a session with a synthetic model needs none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pausefl_client.data.holdings import Holding
from pausefl_client.registries import OPTIMIZERS, SCHEDULES
from pausefl_proto.number_types import Count, Positive
from pausefl_proto.wire import Manifest, Vector

StatisticsAt = Literal["average", "local"]
"""Where running statistics of normalisation go: to the server, which averages them, or nowhere."""


@dataclass(frozen=True)
class TrainingSettings:
    """Local training of one round, as PAUSE's published runs do by default."""

    optimizer: str = "adam"
    """One of torch.optim in lower case that `pausefl validate --list` names, or "module:name"."""
    learning_rate: Positive = 0.01
    """The learning rate of local training."""
    batch_size: Count = 20
    """How many examples one local optimizer step uses."""
    epochs: Count = 1
    """How many times a client goes through its examples in one round."""
    max_steps: Count | None = 100
    """Ends a round's local training after this many optimizer steps."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of the optimizer, such as { weight_decay = 0.01 }."""
    schedule: Mapping[str, Any] = field(default_factory=dict)
    """How the learning rate changes from round to round, by `kind`, as { kind = "cosine", T_max = 100 }; constant,
    unless said."""
    statistics: StatisticsAt | None = None
    """Where the running statistics of batch normalisation go. "average": beside the update, without noise, and the
    server averages them by data size. "local": they stay with each client, and the evaluator estimates its own on
    held-out data. Without it, "local" in a private run and with FedBN, and else "average"."""

    def __post_init__(self) -> None:
        OPTIMIZERS.check_name(self.optimizer, "workload.optimizer")
        if self.schedule:
            SCHEDULES.check_name(str(self.schedule.get("kind", "")), "workload.schedule.kind")


@dataclass(frozen=True, eq=False)
class TrainingOutcome:
    """The outcome of one round of local training."""

    update: Vector
    """h_k = θ_k − θ, float32 (PAUSE v2, eq. (2)), not yet clipped or noised. Statistics come as they are, no change."""
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
        """The meaning of the d values of θ."""

    @property
    def holding(self) -> Holding:
        """The identity of the examples, before anything the client may do to them."""

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """Train from θ, (d,) float32; the same arguments give the same batches.

        A trainer that calls `withdrawal.stop_if_withdrawn` once a step ends early when the server waits no longer.
        """

    def state(self) -> bytes:
        """Its memory from round to round, to be written down; empty where it has none."""

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
