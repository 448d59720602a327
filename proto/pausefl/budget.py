"""The schedule by which a client spends its privacy budget (PAUSE v2, eq. (6))."""

import math
from dataclasses import dataclass

from pausefl.errors import ConfigError


@dataclass(frozen=True)
class Budget:
    """ε̄ and η: the i-th participation spends ε_i = ε̄ (e^η − 1) e^{−ηi}, so that Σ_{i≥1} ε_i = ε̄.

    Both ends hold one; they compare `key` when a client says hello.
    """

    epsilon_budget: float
    eta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon_budget) and self.epsilon_budget > 0):
            raise ConfigError(f"privacy.epsilon_budget = {self.epsilon_budget}: must be a finite number above 0")
        if not (math.isfinite(self.eta) and self.eta > 0):
            raise ConfigError(f"privacy.eta = {self.eta}: must be a finite number above 0")

    @property
    def key(self) -> str:
        """The schedule as text; two ends agree when their keys are equal."""
        return f"geometric(epsilon_budget={self.epsilon_budget!r}, eta={self.eta!r})"

    def epsilon(self, i: int) -> float:
        """ε_i of the i-th participation, i from 1."""
        if i < 1:
            raise ValueError(f"participations count from 1, got {i}")
        return self.epsilon_budget * math.expm1(self.eta) * math.exp(-self.eta * i)

    def spent(self, participations: int) -> float:
        """Σ of ε_i over the first `participations`: ε̄ (1 − e^{−ηT}), in closed form, never above ε̄."""
        return -self.epsilon_budget * math.expm1(-self.eta * participations)
