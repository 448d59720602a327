"""A round as a policy sees it. These records have no field for drawn or injected delays or a client's own clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter

from pausefl_server.records import Miss, RoundRecord


@dataclass(frozen=True, slots=True)
class PolicyObservation:
    """The part of an accepted update's observation that a policy may know."""

    client_id: str
    """The client that sent the update."""
    latency_s: float
    """The latency signal (`latency.signal`) in seconds, at the emulated scale."""
    n_examples: int
    """|D_k| after the cap on stated sizes, see `ClientTable.n_examples`."""
    epsilon: float
    """ε_i of this release; 0 in a run without privacy."""
    epsilon_spent: float
    """The client's ε spent after this release."""
    loss: float | None = None
    """The client's training loss, only where `privacy.disclose` lists it."""
    staleness: int = 0
    """τ, the steps between the model that the client was given and the step that its update entered; 0 in rounds."""
    teaches: bool = True
    """Whether estimates of latencies may use `latency_s`: not if a stopped process or sleeping machine distorted it."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the policy's `inspect` computed from the update, and the client's label counts if disclosed."""


@dataclass(frozen=True, slots=True)
class PolicyRound:
    """The part of a round, or of a failed attempt at one (without any update), that a policy may know."""

    round: int
    """The round's number, from 1."""
    chosen: tuple[str, ...]
    """The ids of the chosen clients in selection order. A client that was drawn twice appears twice."""
    observations: tuple[PolicyObservation, ...]
    """The accepted updates."""
    misses: tuple[Miss, ...]
    """The chosen clients without an accepted update. Their latencies are censored at `latency_s`."""


_seen = attrgetter(*(each.name for each in fields(PolicyObservation)))  # of an `Observation`, which has them all


def seen_by_policy(record: RoundRecord) -> PolicyRound:
    """The part of a round's record that a policy may know."""
    observations = tuple(PolicyObservation(*_seen(o)) for o in record.observations)
    return PolicyRound(record.round, record.chosen, observations, record.misses)
