"""A trainer on an emulated device: a round of training takes as long as is said."""

from collections.abc import Callable
from functools import partial

from pausefl_client.data.holdings import Holding
from pausefl_client.training.pace import pace
from pausefl_client.training.trainer import Trainer, TrainingOutcome, TrainingSettings
from pausefl_proto.wire import Manifest, Vector


class PacedTrainer:
    """Trains as another trainer does, and takes the time that is said for it, or longer where that does not suffice."""

    def __init__(self, trainer: Trainer, duration_s: Callable[[int], float]) -> None:
        """`duration_s` returns how long training takes in a round, in seconds."""
        self._trainer = trainer
        self._duration_s = duration_s

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
        """What the trainer gives, no earlier than `duration_s` says."""
        return pace().during(self._duration_s(round), partial(self._trainer.train, theta, round=round))

    def state(self) -> bytes:
        return self._trainer.state()

    def restore(self, state: bytes) -> None:
        self._trainer.restore(state)


def steps_of(settings: TrainingSettings, n_examples: int) -> int:
    """How many optimizer steps a client with so many examples takes in a round."""
    steps = settings.epochs * -(-n_examples // settings.batch_size)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)
