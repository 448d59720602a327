"""Staleness weights s(τ), by name: how much an update counts that was made from an older model.

docs/asynchronous.md has the steps' formulas and their sources. Nguyen et al. (FedBuff) divide by the number of updates:
this is normaliser "plain" with equal weights, by which old updates count less even if all updates are old. FedAsync's
step is that of "plain" with α (θ_i − θ), for a client's model θ_i, in place of Δ_i.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

from pausefl_process.registry import Registry
from pausefl_proto.errors import PauseflError
from pausefl_proto.number_types import Bounded, Count, NonNegative, Positive, PositiveShare, Whole


class StalenessRule(Bounded, ABC):
    """A staleness weight s(τ), a pure function; its fields are the parameters of its table."""

    @abstractmethod
    def weight(self, staleness: int) -> float:
        """s(τ), above 0 and at most 1, for τ = 0, 1, 2, ..."""


@dataclass(frozen=True)
class ConstantStaleness(StalenessRule):
    """s = 1: an update counts the same, however old its model is."""

    def weight(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True)
class PolynomialStaleness(StalenessRule):
    """s = (1 + τ)^−a (FedAsync, Section 5.2; FedBuff with a = 1/2)."""

    exponent: NonNegative = 0.5
    """a, the exponent. Old updates count less with greater values; 0 makes all count the same."""

    def weight(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.exponent)


@dataclass(frozen=True)
class HingeStaleness(StalenessRule):
    """s = 1 up to τ = b, then 1/(a(τ − b) + 1) (FedAsync, Section 5.2)."""

    slope: Positive = 10.0
    """a, the slope: with greater values, s falls faster beyond b."""
    tolerated: Whole = 4
    """b, the greatest staleness, in steps, at which an update counts in full."""

    def weight(self, staleness: int) -> float:
        return 1.0 / (self.slope * max(0, staleness - self.tolerated) + 1.0)


STALENESS_RULES = Registry(
    "staleness_rules",
    {"polynomial": PolynomialStaleness, "constant": ConstantStaleness, "hinge": HingeStaleness},
    base="pausefl_server.model.staleness:StalenessRule",
)
"""The rules that `asynchronous.staleness.kind` names."""


@dataclass(frozen=True)
class AsynchronousSteps:
    """How steps are taken with `server.mode = "asynchronous"`. Steps replace rounds everywhere.

    An idle client gets each free place at once, with the newest model. Every K-th update that arrives makes a step.
    The run's last step hands out no more jobs than it lacks updates. After its answer a client is idle until the next
    step, so no client gets the same model twice: with K = C = all clients, this is FedAvg in rounds. `staleness` and
    `normaliser` also apply to late updates of rounds, see `server.late`.
    """

    concurrency: Count = 10
    """C, how many clients are at work at once. It replaces `selection.m`."""
    buffer: Count = 5
    """K, how many updates make a step. A step has fewer if no client is at work and none can be asked."""
    staleness_max: Whole = 50
    """The greatest staleness, in steps. A client whose model is older is given up: it misses, and its update enters no
    model. The server keeps this number of models on its disk, and two more."""
    normaliser: Literal["plain", "discounted"] = "plain"
    """The divisor of the sum of a step's weighted updates. "plain": Σ|D_i|. "discounted": Σ s(τ_i)|D_i|, so that
    equally old updates are not damped."""
    rule: Literal["fedbuff", "fedasync", "fedat"] = "fedbuff"
    """"fedbuff" adds updates to the model. "fedasync" mixes each client's own model into it. "fedat" belongs to the
    policy of that name: it averages one model per tier, and old updates count in full."""
    alpha: PositiveShare = 0.6
    """Rule "fedasync": α, the share of the client's model in the next one, before s(τ)."""

    @property
    def mixed_share(self) -> float:
        """The share of its client's own model that an update mixes into the next one; 0: it adds a change."""
        return {"fedbuff": 0.0, "fedasync": self.alpha, "fedat": 1.0}[self.rule]


@dataclass(frozen=True)
class Asynchronous(AsynchronousSteps):
    """`AsynchronousSteps` with the staleness rule as an object."""

    staleness: StalenessRule = field(default_factory=PolynomialStaleness)
    """The rule that gives s(τ)."""

    def weight(self, staleness: int) -> float:
        """s(τ), or 1 for "fedat"; PauseflError if a user's own rule returns a value that is not in (0, 1]."""
        weight = 1 if self.rule == "fedat" else self.staleness.weight(staleness)
        if not (isinstance(weight, Real) and 0 < weight <= 1):
            raise PauseflError(f"asynchronous.staleness: returned {weight!r} for {staleness} steps; must be in (0, 1]")
        return float(weight)
