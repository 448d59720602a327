"""A trainer that trains nothing: a vector of a given size, for benchmarks and tests of everything around training."""

from typing import ClassVar

import numpy as np

from pausefl_client.data.holdings import synthetic_holding
from pausefl_client.training.pace import pace
from pausefl_client.training.trainer import TrainingOutcome
from pausefl_proto.draws import generator
from pausefl_proto.wire import Manifest, TensorSpec, Vector

_WINDOWS = 1024


class SyntheticTrainer:
    """Answers with d random values (drawn once from (seed, client_id)) whatever the model is; needs no torch.

    A round's update is a window on those values, so it costs nothing and differs between any 1,024 rounds in a row.
    """

    n_examples = 1
    label_counts: ClassVar[dict[str, float]] = {}

    def __init__(self, size: int, *, seed: int, client_id: str, train_s: float = 0.0) -> None:
        """`size` is d. `train_s` is processor time spent per round; a stopped process does not spend it."""
        self.holding = synthetic_holding(client_id)
        self.manifest = Manifest((TensorSpec("synthetic", (size,)),))
        rng = generator(seed, "synthetic", client_id)
        self._values = rng.standard_normal(size + _WINDOWS - 1, np.float32) * np.float32(1e-3)
        self._values.flags.writeable = False
        self._train_s = train_s

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """A read-only view of d values; ValueError if θ has another size."""
        size = self.manifest.size
        if theta.size != size:
            raise ValueError(f"theta has {theta.size} values, the model has {size}")
        if self._train_s:
            pace().compute(self._train_s)
        start = round % _WINDOWS
        return TrainingOutcome(self._values[start : start + size], loss=0.0)

    def state(self) -> bytes:
        """Nothing: every round stands alone."""
        return b""

    def restore(self, state: bytes) -> None:
        """Ignore it."""
