"""A trainer without training, for benchmarks and tests of everything else. Its update is a random vector."""

from typing import ClassVar

import numpy as np

from pausefl_client.data.holdings import synthetic_holding
from pausefl_client.training.pace import pace
from pausefl_client.training.trainer import TrainingOutcome
from pausefl_proto.arrays import read_only
from pausefl_proto.draws import generator
from pausefl_proto.wire import Manifest, TensorSpec, Vector

_WINDOWS = 1024


class SyntheticTrainer:
    """Returns updates of d random values, whatever the model is. Needs no torch.

    d + 1,023 values are drawn once from (seed, client_id). A round's update is a window on them. It costs no time, and
    any 1,024 rounds in a row have different updates.
    """

    n_examples = 1
    label_counts: ClassVar[dict[str, float]] = {}

    def __init__(self, size: int, *, seed: int, client_id: str, train_s: float = 0.0) -> None:
        """`size` is d. `train_s` is the CPU time to spend per round; a stopped process spends none."""
        self.holding = synthetic_holding(client_id)
        self.manifest = Manifest((TensorSpec("synthetic", (size,)),))
        rng = generator(seed, "synthetic", client_id)
        self._values = read_only(rng.standard_normal(size + _WINDOWS - 1, np.float32) * np.float32(1e-3))
        self._train_s = train_s

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """The round's update, a read-only view of d values, whatever θ is."""
        if self._train_s:
            pace().compute(self._train_s)
        start = round % _WINDOWS
        return TrainingOutcome(self._values[start : start + self.manifest.size], loss=0.0)

    def state(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        """Ignore the state."""
