"""A trainer on an emulated device, whose rounds of training take a given time."""

from collections.abc import Callable
from functools import partial

from pausefl_client.training.pace import pace
from pausefl_client.training.trainer import Trainer, TrainingOutcome, TrainingSettings, WrappedTrainer
from pausefl_proto.wire import Vector


class PacedTrainer(WrappedTrainer):
    """Trains as another trainer does, but for no less than a given time. It takes longer if the training does."""

    def __init__(self, trainer: Trainer, duration_s: Callable[[int], float]) -> None:
        """`duration_s`: round -> how long training takes at least, in seconds."""
        super().__init__(trainer)
        self._duration_s = duration_s

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        return pace().during(self._duration_s(round), partial(super().train, theta, round=round))


def steps_of(settings: TrainingSettings, n_examples: int) -> int:
    """How many optimizer steps a client with `n_examples` examples takes in a round."""
    steps = settings.epochs * -(-n_examples // settings.batch_size)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)
