"""What clients answered in a log, by round and client, and what a policy may ask of it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pausefl_proto.errors import ConfigError
from pausefl_server.records import Miss, Observation, RoundRecord
from pausefl_server.selection.base import Policy

LoggedAnswer = Observation | Miss
"""What a client did when it was asked: it answered, or it did not within the time that is its latency's bound."""


@dataclass(frozen=True)
class LoggedOutcomes:
    """The answers of a log."""

    client_ids: tuple[str, ...]
    """Every client that ever joined, sorted."""
    by_round: Mapping[tuple[int, str], LoggedAnswer]
    """That of each round's last attempt, by round and client."""
    by_client: Mapping[str, Sequence[LoggedAnswer]]
    """All that a client ever did, in order."""
    losses: Mapping[str, Sequence[tuple[int, float]]]
    """The round and the training loss of each answer that disclosed it, in order."""

    @classmethod
    def of(cls, records: Sequence[RoundRecord]) -> Self:
        """The answers of these rounds."""
        ids: set[str] = set()
        by_round: dict[tuple[int, str], LoggedAnswer] = {}
        by_client: dict[str, list[LoggedAnswer]] = {}
        losses: dict[str, list[tuple[int, float]]] = {}
        for record in records:
            for attempt in record.attempts:
                ids.update(event.client_id for event in attempt.events if event.kind == "joined")
                for answer in _answers(attempt):
                    by_client.setdefault(answer.client_id, []).append(answer)
            for answer in _answers(record):
                by_round[record.round, answer.client_id] = answer
            for o in record.observations:
                if o.loss is not None:
                    losses.setdefault(o.client_id, []).append((record.round, o.loss))
        return cls(tuple(sorted(ids)), by_round, by_client, losses)

    def has(self, round: int, client_id: str) -> bool:
        """Whether the log has the client in this round."""
        return (round, client_id) in self.by_round

    @property
    def has_labels(self) -> bool:
        """Whether any client disclosed how many examples it has of each label."""
        return any("label_0" in o.statistics for o in self.by_round.values() if isinstance(o, Observation))

    def resampled(self, rng: np.random.Generator) -> Mapping[str, Sequence[LoggedAnswer]]:
        """Every client's answers, as many, drawn with replacement."""
        return {
            client_id: [found[i] for i in rng.integers(len(found), size=len(found))]
            for client_id, found in self.by_client.items()
        }

    def answer(
        self, round: int, client_id: str, pools: Mapping[str, Sequence[LoggedAnswer]], rng: np.random.Generator
    ) -> LoggedAnswer:
        """The client's own of this round, else one drawn from its pool, else one of another client's."""
        logged = self.by_round.get((round, client_id))
        if logged is not None:
            return logged
        owners = list(pools)
        pool = pools.get(client_id) or pools[owners[int(rng.integers(len(owners)))]]
        return replace(pool[int(rng.integers(len(pool)))], client_id=client_id)

    def loss(self, client_id: str, round: int) -> float | None:
        """The client's training loss in the round nearest to this one in which it disclosed any; None: in none."""
        known = self.losses.get(client_id)
        if not known:
            return None
        after = min(bisect_left(known, round, key=lambda each: each[0]), len(known) - 1)
        return min(known[max(after - 1, 0) : after + 1], key=lambda each: abs(each[0] - round))[1]


def _answers(attempt: RoundRecord) -> Sequence[LoggedAnswer]:
    return [*attempt.observations, *attempt.misses]


def check_log_suffices(policy: Policy, name: str, outcomes: LoggedOutcomes) -> None:
    """ConfigError where the policy lives on what this log does not hold."""
    if type(policy).inspect is not Policy.inspect:
        raise ConfigError(
            f"--policy {name}: judges the updates themselves, which a log does not keep; it can only be replayed on"
            " runs of its own, without --policy and --set"
        )
    lacking = []
    if "loss" in policy.disclosures and not outcomes.losses:
        lacking.append("loss")
    if "labels" in policy.disclosures and not outcomes.has_labels:
        lacking.append("labels")
    if lacking:
        raise ConfigError(
            f"--policy {name}: needs clients to disclose their {' and '.join(lacking)}, which this log does not have;"
            " a run with privacy.disclose would"
        )
