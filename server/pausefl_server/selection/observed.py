"""A round as a policy sees it: records that cannot hold drawn delays, injected parts or a client's own clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pausefl_server.records import Miss, RoundRecord


@dataclass(frozen=True, slots=True)
class PolicyObservation:
    """An accepted update, as far as a policy may know it."""

    client_id: str
    """The client whose update it is."""
    latency_s: float
    """The signal (`latency.signal`), at the emulated scale."""
    n_examples: int
    """|D_k| as it counts, see `ClientTable.n_examples`."""
    epsilon: float
    """ε_i of this release; 0 in a run without privacy."""
    epsilon_spent: float
    """The client's ε spent after this release."""
    loss: float | None = None
    """The client's training loss, only where `privacy.disclose` lists it."""
    staleness: int = 0
    """τ, the steps between the model that the client was given and the step that its update entered; 0 in rounds."""
    teaches: bool = True
    """Whether an estimate of latencies is to count `latency_s`: not where a stop or a sleep touched it."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the policy computed while the vectors were at hand, and label counts where disclosed."""


@dataclass(frozen=True, slots=True)
class PolicyRound:
    """A round, or an attempt at one in which no client gave an update, as far as a policy may know it."""

    round: int
    """The round's number, from 1."""
    chosen: tuple[str, ...]
    """In selection order; repeats a client drawn twice."""
    observations: tuple[PolicyObservation, ...]
    """The clients whose updates were accepted."""
    misses: tuple[Miss, ...]
    """The chosen clients without an accepted update: latencies censored at `latency_s`."""


def seen_by_policy(record: RoundRecord) -> PolicyRound:
    """The part of a round's record that a policy may know."""
    observations = tuple(
        PolicyObservation(
            client_id=o.client_id,
            latency_s=o.latency_s,
            n_examples=o.n_examples,
            epsilon=o.epsilon,
            epsilon_spent=o.epsilon_spent,
            loss=o.loss,
            staleness=o.staleness,
            teaches=o.teaches,
            statistics=o.statistics,
        )
        for o in record.observations
    )
    return PolicyRound(record.round, record.chosen, observations, record.misses)
