"""Adds canaries to the updates of a run's clients. A fair coin decides the sign of each canary, anew in every job.

Clip, noise, ledger, encoding and network are those of the run.
"""

from dataclasses import dataclass, replace

import numpy as np

from pausefl.experiment.population.behaviours import Behaviour, Draw
from pausefl_audit.canaries import CANARY
from pausefl_client.training.trainer import Trainer, TrainingOutcome, WrappedTrainer
from pausefl_proto.arrays import IntArray
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Vector

_CANARIES = 64
"""The most coordinates of an update that are canaries. There is a limit as each is an entry in the log."""


@dataclass(frozen=True)
class Dealt(Behaviour):
    """The client's update carries canaries: some coordinates or, for the unit "vector", one, with the others at 0."""

    unit: PrivacyUnit = "coordinate"
    """`privacy.unit` of the run."""

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:
        """A trainer that trains and then writes the canaries into the update."""
        return _Dealt(trainer, self.unit, draw)


class _Dealt(WrappedTrainer):
    def __init__(self, trainer: Trainer, unit: PrivacyUnit, draw: Draw) -> None:
        super().__init__(trainer)
        self._unit, self._draw = unit, draw

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        outcome, at = super().train(theta, round=round), places(self.manifest.model_size, self._unit)
        update = outcome.update.copy()
        if self._unit == "vector":
            update[: self.manifest.charged.size] = 0
        update[at] = CANARY * signs(self._draw(round), at.size)
        return replace(outcome, update=update)


def places(size: int, unit: PrivacyUnit = "coordinate") -> IntArray:
    """The coordinates of an update that are canaries, ascending: evenly spaced, or for the unit "vector" the first."""
    found: IntArray = np.unique(np.linspace(0, size - 1, _CANARIES).astype(np.int64))
    return found[:1] if unit == "vector" else found


def signs(rng: np.random.Generator, count: int) -> Vector:
    """The random signs, 1 or −1, of `count` canaries, (count,) float32."""
    return np.where(rng.random(count) < 0.5, -1, 1).astype(np.float32)
