"""Clients' answers in a log, by round and client, and what a policy may ask of it."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pausefl_proto.errors import ConfigError
from pausefl_server.records import Miss, Observation, RoundRecord
from pausefl_server.selection.base import Policy

LoggedAnswer = Observation | Miss
"""The outcome of asking a client: it answered, or it did not within the time that is its latency's bound."""


@dataclass(frozen=True)
class LoggedOutcomes:
    """The answers of a log."""

    client_ids: tuple[str, ...]
    """Every client that ever joined, sorted."""
    by_round: Mapping[tuple[int, str], LoggedAnswer]
    """That of each round's last attempt with the client, by round and client."""
    by_client: Mapping[str, Sequence[LoggedAnswer]]
    """All that a client ever did, by ascending latency."""
    losses: Mapping[str, Sequence[tuple[int, float]]]
    """The round and the training loss of each answer that disclosed it, in order."""

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> Self:
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
                    by_round[record.round, answer.client_id] = answer
            for o in record.observations:
                if o.loss is not None:
                    losses.setdefault(o.client_id, []).append((record.round, o.loss))
        for found in by_client.values():
            found.sort(key=_latency_s)
        return cls(tuple(sorted(ids)), by_round, by_client, losses)

    def tells(self, round: int, client_id: str, waited_s: float) -> bool:
        """Whether the log has what the client did in this round up to `waited_s`."""
        logged = self.by_round.get((round, client_id))
        return logged is not None and (not is_open(logged) or logged.latency_s >= waited_s)

    @property
    def has_labels(self) -> bool:
        """Whether any client disclosed how many examples it has of each label."""
        return any("label_0" in o.statistics for o in self.by_round.values() if isinstance(o, Observation))

    def resampled(self, rng: np.random.Generator) -> Mapping[str, Sequence[LoggedAnswer]]:
        """Every client's answers, as many, drawn with replacement, by ascending latency."""
        return {
            client_id: [found[i] for i in np.sort(rng.integers(len(found), size=len(found)))]
            for client_id, found in self.by_client.items()
        }

    def answer(
        self, round: int, client_id: str, pools: Mapping[str, Sequence[LoggedAnswer]], rng: np.random.Generator
    ) -> LoggedAnswer:
        """The client's own of this round, else one drawn from its pool, else one of another client's.

        Where the log did not wait for it, it is drawn from the later ones of the pool. Such draws together follow the
        Kaplan–Meier estimate (redistribution to the right; Efron, Fifth Berkeley Symposium, 1967). It stays open
        (`is_open`) where the pool has no later one.
        """
        owners = list(pools)
        pool = pools.get(client_id) or pools[owners[int(rng.integers(len(owners)))]]
        answer = self.by_round.get((round, client_id)) or pool[int(rng.integers(len(pool)))]
        while is_open(answer):
            later = bisect_right(pool, answer.latency_s, key=_latency_s)
            if later == len(pool):
                break
            answer = pool[int(rng.integers(later, len(pool)))]
        return replace(answer, client_id=client_id)

    def loss(self, client_id: str, round: int) -> float | None:
        """The client's training loss in the round nearest to this one in which it disclosed any; None: in none."""
        known = self.losses.get(client_id)
        if not known:
            return None
        after = min(bisect_left(known, round, key=lambda each: each[0]), len(known) - 1)
        return min(known[max(after - 1, 0) : after + 1], key=lambda each: abs(each[0] - round))[1]


def is_open(answer: LoggedAnswer) -> bool:
    """Whether the log did not wait for the answer: the client would have given it after `latency_s`."""
    return isinstance(answer, Miss) and answer.kind == "unneeded"


def _answers(attempt: RoundRecord) -> Sequence[LoggedAnswer]:
    """The outcomes of an attempt's clients; an answer that was not waited for comes after the end of the round."""
    ended_s = math.nextafter(attempt.round_latency_s, math.inf)
    misses = [replace(m, latency_s=max(m.latency_s, ended_s)) if is_open(m) else m for m in attempt.misses]
    return [*attempt.observations, *misses]


def _latency_s(answer: LoggedAnswer) -> float:
    return answer.latency_s


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
