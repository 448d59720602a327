"""The global model θ with its optimizer's state, and the step from one round's model to the next.

A control variate c (SCAFFOLD: Karimireddy et al., ICML 2020) may follow the d parameters in `theta`; in an update, the
client's change of c follows its change of the parameters. Running statistics come last. A client sends its own values,
not changes of the server's, so that variances are averaged. Rule and optimizer see the parameters alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, form, read_only
from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import Vector, digest
from pausefl_server.model.aggregation import Aggregation, checked_vector, weighted_mean
from pausefl_server.model.optimizers import Optimizer

_KEY = "aggregation.optimizer"


@dataclass(frozen=True, slots=True, eq=False)
class GlobalModel:
    """The global model after some round."""

    theta: Vector
    """float32: d parameters, d values of a control variate if there is one, statistics."""
    model_size: int
    """d, the number of parameters."""
    statistics_size: int
    optimizer_state: Vector
    """The server optimizer's state, float32 of one dimension; empty if it has none."""
    digest: str
    """`wire.digest` of `theta`, as it is logged and sent."""

    @staticmethod
    def start(
        theta: Vector,
        optimizer: Optimizer,
        optimizer_state: Vector | None = None,
        *,
        model_size: int | None = None,
        statistics_size: int = 0,
    ) -> "GlobalModel":
        """The model with which a run begins or resumes; without `optimizer_state`, the optimizer starts anew.

        `model_size` is d. It is needed if anything follows the parameters in `theta`.
        """
        d = theta.size if model_size is None else model_size
        state = _checked_state(optimizer.start(d)) if optimizer_state is None else optimizer_state
        return GlobalModel(theta, d, statistics_size, state, digest(theta))

    def updated(
        self,
        updates: Sequence[Vector],
        weights: FloatArray,
        rule: Aggregation,
        optimizer: Optimizer,
        *,
        clients: int | None = None,
        discounts: FloatArray | None = None,
    ) -> "GlobalModel":
        """The model moved by n updates, each of `theta`'s size, combined by `rule` with weights and factors s(τ).

        `clients` is N, the number of all clients; n by default. c moves by Σ Δc_i / N, each once, unweighted (eq. (5)).
        """
        d = self.model_size
        change = rule.discounted([update[:d] for update in updates], weights, discounts)
        share = min(1.0, len(updates) / (clients or len(updates)))
        # A step must not write to θ: clients and the evaluator may still need this model.
        given = read_only(self.theta[:d])
        theta, state = _checked_step(optimizer.step_for_share(given, change, self.optimizer_state, share), d)
        end = self.theta.size - self.statistics_size
        if end > d:
            own = [*{id(update): update[d:end] for update in updates}.values()]  # one of a client that was drawn twice
            mean = weighted_mean(own, np.ones(len(own)))
            theta = np.concatenate((theta, self.theta[d:end] + np.float32(len(own) / (clients or len(own))) * mean))
        if self.statistics_size:
            theta = np.concatenate((theta, weighted_mean([update[end:] for update in updates], weights)))
        return GlobalModel(theta, d, self.statistics_size, state, digest(theta))


def _checked_step(returned: object, d: int) -> tuple[Vector, Vector]:
    """The θ and state that an optimizer, perhaps a user's own, returned; PauseflError if they are not valid."""
    if not (isinstance(returned, tuple | list) and len(returned) == 2):
        raise PauseflError(f"{_KEY}: its step must return the next model and state, a tuple; returned {form(returned)}")
    theta, state = returned
    return checked_vector(theta, d, _KEY), _checked_state(state)


def _checked_state(state: object) -> Vector:
    """An optimizer's state, if a run's files can store it without a change; else PauseflError."""
    if isinstance(state, np.ndarray) and state.ndim == 1 and state.dtype == np.float32:
        return np.ascontiguousarray(state)
    must = "its state must be a float32 array of one dimension, an empty one for none"
    raise PauseflError(f"{_KEY}: {must}; returned {form(state)}")
