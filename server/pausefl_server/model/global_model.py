"""The global model θ with its optimizer's state, and the step from one round's to the next."""

from collections.abc import Sequence
from dataclasses import dataclass

from pausefl_proto.arrays import FloatArray
from pausefl_proto.wire import Vector, digest
from pausefl_server.model.aggregation import Aggregation, checked_vector
from pausefl_server.model.optimizers import Optimizer


@dataclass(frozen=True, slots=True, eq=False)
class GlobalModel:
    """θ after some round."""

    theta: Vector
    """(d,) float32."""
    optimizer_state: Vector
    """Moments of the server's optimizer, () where it has none."""
    digest: str
    """`wire.digest` of θ, as it is logged and sent."""

    @staticmethod
    def start(theta: Vector, optimizer: Optimizer, optimizer_state: Vector | None = None) -> "GlobalModel":
        """θ to begin or go on with; without `optimizer_state`, the optimizer starts anew."""
        state = optimizer.start(theta.size) if optimizer_state is None else optimizer_state
        return GlobalModel(theta, state, digest(theta))

    def updated(
        self, updates: Sequence[Vector], weights: FloatArray, rule: Aggregation, optimizer: Optimizer
    ) -> "GlobalModel":
        """The model moved by these updates, each (d,) float32, combined by `rule` with one weight each."""
        theta, state = optimizer.step(self.theta, rule.combine(updates, weights), self.optimizer_state)
        theta = checked_vector(theta, self.theta.size, "aggregation.optimizer")
        return GlobalModel(theta, state, digest(theta))
