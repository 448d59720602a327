"""How a round's combined update moves the model: the server's optimizer, a pure function with explicit state."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Ge, Lt

from pausefl_process.registry import Registry
from pausefl_proto.number_types import Positive
from pausefl_proto.wire import Vector
from pausefl_server.model.aggregation import weighted_mean

OptimizerName = Literal["sgd", "fedavgm", "fedadam", "fedyogi"]

_MOMENTS: dict[OptimizerName, int] = {"sgd": 0, "fedavgm": 1, "fedadam": 2, "fedyogi": 2}

# The wire accepts changes whose squares overflow float32. The square of this bound is 2¹²⁶; fedyogi's v never exceeds
# twice the greatest square, so it stays finite too.
_GREATEST_CHANGE = np.float32(2.0**63)


class Optimizer(ABC):
    """A server's optimizer, a pure function with explicit state; its fields are its table's parameters."""

    def start(self, model_size: int) -> Vector:
        """The state before round 1, a float32 array of one dimension, empty for none.

        It is committed with each round, so that a resumed run goes on with it.
        """
        return np.empty(0, np.float32)

    @abstractmethod
    def step(self, theta: Vector, change: Vector, state: Vector) -> tuple[Vector, Vector]:
        """The next model and state, both new, from θ and Δ, the round's combined update, (d,) float32."""

    def step_for_share(self, theta: Vector, change: Vector, state: Vector, share: float) -> tuple[Vector, Vector]:
        """The same as `step`, for optimizers that need the share, in (0, 1], of all clients whose updates made Δ."""
        return self.step(theta, change, state)


@dataclass(frozen=True)
class DynamicRegularizer(Optimizer):
    """FedDyn's server (Acar et al., ICLR 2021, Algorithm 1), for clients with `workload.training` "feddyn".

    h ← h − α s Δ and θ ← θ + Δ − h/α, where s is the share of clients whose updates came. The state is H = −h/α, so
    that α cancels: H ← H + s Δ, θ ← θ + Δ + H.
    """

    def start(self, model_size: int) -> Vector:
        return np.zeros(model_size, np.float32)

    def step(self, theta: Vector, change: Vector, state: Vector) -> tuple[Vector, Vector]:
        """The next model and H, after updates of all clients."""
        return self.step_for_share(theta, change, state, 1.0)

    def step_for_share(self, theta: Vector, change: Vector, state: Vector, share: float) -> tuple[Vector, Vector]:
        moved = state + np.float32(share) * change
        return theta + change + moved, moved


@dataclass(frozen=True)
class TierModels(Optimizer):
    """FedAT's server (Chai et al., SC 2021): θ = Σ_m T_(M+1−m)/T · w_m, where tier m has made T_m of all T steps.

    Tier 1 is the fastest, so slow tiers weigh more. Each w_m starts at θ_0. The state is w_1, ..., w_M, followed by
    T_1, ..., T_M.
    """

    tiers: int
    """M, the number of tiers."""
    tier: int
    """The tier, from 0, whose clients' mean is θ + Δ."""

    def step(self, theta: Vector, change: Vector, state: Vector) -> tuple[Vector, Vector]:
        """The next model, and the state with the tier's new model and count."""
        state = state.copy() if state.size else np.append(np.tile(theta, self.tiers), np.zeros(self.tiers, np.float32))
        models, counts = state[: -self.tiers].reshape(self.tiers, -1), state[-self.tiers :]
        models[self.tier] = theta + change
        counts[self.tier] += 1
        return weighted_mean([*models], counts[::-1].astype(np.float64)), state


@dataclass(frozen=True)
class ServerOptimizer(Optimizer):
    """How the server turns a round's update into the next model.

    Δ is the round's update. sgd: θ + λ Δ, plain averaging with λ = 1. fedavgm: m ← β₁ m + Δ, θ + λ m (Hsu, Qi and
    Brown, 2019). fedadam, fedyogi: m ← β₁ m + (1 − β₁) Δ, θ + λ m/(√v + τ) (Reddi et al., ICLR 2021, Algorithm 2),
    where v starts at τ² and becomes β₂ v + (1 − β₂) Δ² (fedadam) or v − (1 − β₂) Δ² sign(v − Δ²) (fedyogi). These two
    clip the values of Δ to ±2⁶³, about 10¹⁹.
    """

    kind: OptimizerName = "sgd"
    """The server's optimizer. "sgd" with learning rate 1 is plain averaging. "feddyn" has no other keys, and belongs to
    the training method of that name."""
    learning_rate: Positive = 1.0
    """λ, the factor of the server's step."""
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """β₁, the share of the first moment that each round keeps. For fedavgm, fedadam and fedyogi."""
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.99
    """β₂, the share of the second moment that each round keeps. For fedadam and fedyogi."""
    tau: Positive = 1e-3
    """τ, added to the root of the second moment. Greater values make fedadam and fedyogi less adaptive."""

    def start(self, model_size: int) -> Vector:
        """The state before round 1: m = 0, then v = τ²."""
        state: Vector = np.zeros(_MOMENTS[self.kind] * model_size, np.float32)
        state[model_size:] = self.tau**2
        return state

    def step(self, theta: Vector, change: Vector, state: Vector) -> tuple[Vector, Vector]:
        rate, d = np.float32(self.learning_rate), theta.size
        if self.kind == "sgd":
            return theta + rate * change, state
        beta_1, beta_2 = np.float32(self.beta_1), np.float32(self.beta_2)
        m, v = state[:d], state[d:]
        if self.kind == "fedavgm":
            m = beta_1 * m + change
            return theta + rate * m, m
        change = np.clip(change, -_GREATEST_CHANGE, _GREATEST_CHANGE)
        m = beta_1 * m + (1 - beta_1) * change
        squared = change * change
        if self.kind == "fedadam":
            v = beta_2 * v + (1 - beta_2) * squared
        else:
            v = v - (1 - beta_2) * squared * np.sign(v - squared)
        scale: Vector = np.sqrt(v, dtype=np.float32) + np.float32(self.tau)
        return theta + rate * m / scale, np.concatenate((m, v))


SERVER_OPTIMIZERS = Registry(
    "server_optimizers",
    {**dict.fromkeys(get_args(OptimizerName), ServerOptimizer), "feddyn": DynamicRegularizer},
    base="pausefl_server.model.optimizers:Optimizer",
)
"""The optimizers that `aggregation.optimizer.kind` names."""
