"""The schedule by which a client spends its privacy budget over its participations (PAUSE v2, eq. (6))."""

import math
from dataclasses import dataclass

from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, NonNegative, Positive

# Two machines may round e^{-ηi} differently in the last place.
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Budget(Bounded):
    """The schedule of a client's privacy budget: the i-th participation spends ε_i = ε̄ (e^η − 1) e^{−ηi}, in sum ε̄.

    Server and client have the same one. A client retires when its next ε_i would be below `epsilon_floor`, because the
    noise would harm more than the update helps. This depends only on i, never on an update, so it discloses nothing.
    """

    epsilon_budget: Positive
    eta: Positive
    epsilon_floor: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_to_clip(1) > 1e36:  # from the first release on, no model could learn anything
            raise ConfigError(
                f"privacy.epsilon_budget = {self.epsilon_budget}: too small to spend with privacy.eta = {self.eta}"
            )
        if self.epsilon_floor > self.epsilon(1):
            raise ConfigError(
                f"privacy.epsilon_floor = {self.epsilon_floor:g}: must be at most"
                f" epsilon_1 = {self.epsilon(1):g}, or no client could ever release anything"
            )

    @property
    def key(self) -> str:
        """The schedule of the ε_i as text. A ledger belongs to one schedule."""
        return f"geometric(epsilon_budget={self.epsilon_budget!r}, eta={self.eta!r})"

    def epsilon(self, i: int) -> float:
        """ε_i, which the i-th participation spends, i from 1."""
        if i < 1:
            raise ValueError(f"participations count from 1, got {i}")
        # ε̄ (1 − e^−η) e^{−η(i − 1)}, which does not overflow for a great η.
        return -self.epsilon_budget * math.expm1(-self.eta) * math.exp(-self.eta * (i - 1))

    def noise_to_clip(self, i: int) -> float:
        """The noise scale divided by the clip bound: 2/ε_i in both privacy units, as the sensitivity is 2 bounds."""
        return 2 / self.epsilon(i) if self.epsilon(i) else math.inf

    def spent(self, participations: int) -> float:
        """The ε spent by the first T = `participations`: Σ ε_i = ε̄ (1 − e^{−ηT}), never above ε̄."""
        return -self.epsilon_budget * math.expm1(-self.eta * participations)

    def affords(self, i: int) -> bool:
        """Whether the i-th participation may happen: ε_i is above 0 and not below the floor."""
        return self.epsilon(i) > 0 and self.epsilon(i) >= self.epsilon_floor

    def may_be_spent(self, participations: int) -> bool:
        """Whether the budget may be used up after this many: no further one may happen, or ε̄ is spent up to rounding.

        Such a small rest would need more noise than an update can hold.
        """
        is_spent = is_same_epsilon(self.spent(participations), self.epsilon_budget)
        return is_spent or not self.affords(participations + 1)

    @property
    def participations(self) -> int | None:
        """The number of participations until the floor is reached; None without a floor."""
        if not self.epsilon_floor:
            return None
        i = round(1 + (math.log(self.epsilon(1)) - math.log(self.epsilon_floor)) / self.eta)
        # The logarithm may round to either side of a whole number.
        return i if self.affords(i) else i - 1


@dataclass(frozen=True)
class Release:
    """One private release: its number i, its ε_i, and the ε that its client has spent, this one included."""

    participation: int = 0
    epsilon: float = 0.0
    epsilon_spent: float = 0.0


def is_same_epsilon(reported: float, scheduled: float) -> bool:
    """Whether an ε, or a sum of several, equals the schedule's, except for another machine's rounding."""
    return math.isclose(reported, scheduled, rel_tol=_RELATIVE_TOLERANCE)
