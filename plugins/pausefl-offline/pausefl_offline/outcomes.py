"""The outcomes of clients' jobs in a log, by round and client, and a check that they suffice for a policy."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Self

import numpy as np

from pausefl_proto.errors import ConfigError
from pausefl_server.records import Miss, Observation, RoundRecord
from pausefl_server.selection.base import Policy

_LATENCY_S = attrgetter("latency_s")
LoggedAnswer = Observation | Miss
"""The outcome of a client's job: an answer, or a miss, whose wait is a lower bound of the latency."""


@dataclass(frozen=True)
class LoggedOutcomes:
    """The outcomes of all jobs in a log."""

    client_ids: tuple[str, ...]
    """The ids of all clients that ever joined, sorted."""
    by_round: Mapping[tuple[int, str], LoggedAnswer]
    """By round and client id: the outcome in the round's last attempt that asked the client."""
    by_client: Mapping[str, Sequence[LoggedAnswer]]
    """All outcomes of each client, by ascending latency."""
    losses: Mapping[str, Sequence[tuple[int, float]]]
    """By client: (round, training loss) of each answer that disclosed its loss, in order of rounds."""

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> Self:
        """The outcomes in these rounds."""
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
            found.sort(key=_LATENCY_S)
        return cls(tuple(sorted(ids)), by_round, by_client, losses)

    def tells(self, round: int, client_id: str, waited_s: float) -> bool:
        """Whether the log shows what the client did in this round until `waited_s`."""
        logged = self.by_round.get((round, client_id))
        return logged is not None and (not is_open(logged) or logged.latency_s >= waited_s)

    def resampled(self, rng: np.random.Generator) -> Mapping[str, Sequence[LoggedAnswer]]:
        """A bootstrap resample of each client's outcomes, of the same size, by ascending latency."""
        return {
            client_id: [found[i] for i in np.sort(rng.integers(len(found), size=len(found)))]
            for client_id, found in self.by_client.items()
        }

    def answer(
        self, round: int, client_id: str, pools: Mapping[str, Sequence[LoggedAnswer]], rng: np.random.Generator
    ) -> LoggedAnswer:
        """The client's outcome in this round; without one, a draw from its pool or, if that is empty, another client's.

        If the log did not wait for the answer, it is replaced by a draw from the later ones of the pool. Such draws
        follow the Kaplan–Meier estimate (redistribution to the right; Efron, Fifth Berkeley Symposium, 1967). If the
        pool has no later one, the answer stays open (`is_open`).
        """
        owners = list(pools)
        pool = pools.get(client_id) or pools[owners[int(rng.integers(len(owners)))]]
        answer = self.by_round.get((round, client_id)) or pool[int(rng.integers(len(pool)))]
        while is_open(answer):
            later = bisect_right(pool, answer.latency_s, key=_LATENCY_S)
            if later == len(pool):
                break
            answer = pool[int(rng.integers(later, len(pool)))]
        return replace(answer, client_id=client_id)

    def loss(self, client_id: str, round: int) -> float | None:
        """The training loss that the client disclosed in the round nearest to `round`; None if it disclosed none."""
        known = self.losses.get(client_id)
        if not known:
            return None
        after = min(bisect_left(known, round, key=lambda each: each[0]), len(known) - 1)
        return min(known[max(after - 1, 0) : after + 1], key=lambda each: abs(each[0] - round))[1]


def is_open(answer: LoggedAnswer) -> bool:
    """Whether the log did not wait for the answer, which the client would have given later than `latency_s`."""
    return isinstance(answer, Miss) and answer.kind == "unneeded"


def _answers(attempt: RoundRecord) -> Sequence[LoggedAnswer]:
    """The outcomes of an attempt's clients. The bound of an answer that was not waited for is just after its end."""
    ended_s = math.nextafter(attempt.round_latency_s, math.inf)
    misses = [replace(m, latency_s=max(m.latency_s, ended_s)) if is_open(m) else m for m in attempt.misses]
    return [*attempt.observations, *misses]


def check_log_suffices(policy: Policy, name: str, outcomes: LoggedOutcomes) -> None:
    """Raise ConfigError if the policy needs updates, losses or labels that this log does not hold."""
    if policy.judges:
        raise ConfigError(
            f"--policy {name}: judges the updates themselves, which a log does not keep; it can only be replayed on"
            " runs of its own, without --policy and --set"
        )
    answers = (answer for answer in outcomes.by_round.values() if isinstance(answer, Observation))
    known = {"loss": bool(outcomes.losses), "labels": any("label_0" in answer.statistics for answer in answers)}
    lacking = [name for name, is_known in known.items() if name in policy.disclosures and not is_known]
    if lacking:
        raise ConfigError(
            f"--policy {name}: needs clients to disclose their {' and '.join(lacking)}, which this log does not have;"
            " a run with privacy.disclose would"
        )
