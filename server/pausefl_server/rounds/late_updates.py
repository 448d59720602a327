"""Updates that come after their round has ended: dropped, or kept for the next round's model."""

import math
from dataclasses import dataclass

from pausefl_proto.errors import WireError
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.records import STILL_AT_WORK, LogEvent
from pausefl_server.rounds.aggregation import WeightedUpdate
from pausefl_server.rounds.messages import Update
from pausefl_server.rounds.observations import reconciled
from pausefl_server.rounds.open_round import OpenRound

_JobKey = tuple[str, int, int]  # client, round and attempt
# An update of a round before these is rejected.
_REMEMBERED_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class LateUpdate:
    """An update that belongs to an earlier round or attempt."""

    client_id: str
    round: int
    participation: int
    vector: Vector
    """(d,) float32."""
    weight: float
    """What it would have weighed in its own round."""

    def in_round(self, round: int) -> WeightedUpdate:
        """As it counts in a later round: s rounds later, by 1/√(1 + s) (Nguyen et al., FedBuff, 2022)."""
        return WeightedUpdate(self.client_id, self.vector, self.weight / math.sqrt(1 + round - self.round))

    def merged(self, round: int) -> LogEvent:
        """What the log is to know once it has entered the model of `round`."""
        detail = f"its update of round {self.round} entered the model of round {round}"
        return LogEvent("merged", self.client_id, detail, released=self.participation)

    def dropped(self, reason: str) -> LogEvent:
        """What the log is to know where it enters no model."""
        return LogEvent("dropped", self.client_id, f"its update of round {self.round} enters no model: {reason}")


class LateUpdates:
    """The jobs that ended without an answer, and the updates that came for them since; one a client, the last.

    They live in memory alone. The log says at once that one was kept, and what it cost: a server that was killed finds
    there what it has lost (`storage.restore`).
    """

    def __init__(self, *, keeps: bool) -> None:
        """`keeps`: for the next model; else each is dropped."""
        self._keeps = keeps
        self._weights: dict[_JobKey, float] = {}
        self._kept: dict[str, LateUpdate] = {}

    def expect(self, open_round: OpenRound, table: ClientTable) -> None:
        """Note the weights of a round's jobs that are not waited for any more; those of older rounds are forgotten."""
        job, weights = open_round.job, open_round.selection.weights
        self._weights = {key: w for key, w in self._weights.items() if key[1] > job.round - _REMEMBERED_ROUNDS}
        for i, client_id in enumerate(open_round.chosen):
            if client_id in open_round.misses and open_round.misses[client_id].kind in STILL_AT_WORK:
                weight = table.n_examples[table.row_of[client_id]] if weights is None else weights[i]
                key = client_id, job.round, job.attempt
                self._weights[key] = self._weights.get(key, 0.0) + float(weight)  # twice where it was drawn twice

    def take(self, update: Update) -> list[LogEvent]:
        """Drop or keep an update; returns what the log is to know, its ε too. WireError where none is expected."""
        weight = self._weights.pop((update.client_id, update.round, update.attempt), None)
        if weight is None:
            raise WireError(f"round {update.round} is over, its update came too late")
        participation, fate = update.release.participation, "kept for the next model" if self._keeps else "dropped"
        late = LogEvent("late", update.client_id, f"its update of round {update.round} was {fate}")
        events = [late, reconciled(update)] if participation else [late]
        if self._keeps:
            older = self._kept.get(update.client_id)
            kept = LateUpdate(update.client_id, update.round, participation, update.vector, weight)
            self._kept[update.client_id] = kept
            if older is not None:  # the log tells the end of one before it tells of the next
                return [older.dropped("a later one came"), *events]
        return events

    def kept_release(self, client_id: str) -> int:
        """Which release of the client is kept for the next model; 0 for none."""
        kept = self._kept.get(client_id)
        return 0 if kept is None else kept.participation

    def hand_over(self) -> tuple[LateUpdate, ...]:
        """All that were kept, by client; they are kept no more."""
        kept, self._kept = tuple(self._kept[client_id] for client_id in sorted(self._kept)), {}
        return kept
