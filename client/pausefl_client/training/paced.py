"""A trainer on an emulated device: a round of training takes as long as is said."""

from collections.abc import Callable
from functools import partial

from pausefl_client.training.pace import pace
from pausefl_client.training.trainer import Trainer, TrainingOutcome, TrainingSettings, WrappedTrainer
from pausefl_proto.wire import Vector


class PacedTrainer(WrappedTrainer):
    """Trains as another trainer does, and takes the time that is said for it, or longer where that does not suffice."""

    def __init__(self, trainer: Trainer, duration_s: Callable[[int], float]) -> None:
        """`duration_s` returns how long training takes in a round, in seconds."""
        super().__init__(trainer)
        self._duration_s = duration_s

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """The trainer's outcome, no earlier than `duration_s` says."""
        return pace().during(self._duration_s(round), partial(super().train, theta, round=round))


def steps_of(settings: TrainingSettings, n_examples: int) -> int:
    """How many optimizer steps a client with so many examples takes in a round."""
    steps = settings.epochs * -(-n_examples // settings.batch_size)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)
