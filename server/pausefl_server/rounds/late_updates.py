"""Late updates, which come after the server stopped waiting for them: dropped, or kept for the next model.

A model's fresh and late updates are aggregated together. Late ones are discounted by their staleness
(`model.staleness`), the number of rounds since their own.
"""

from collections.abc import Iterable

from pausefl_proto.errors import WireError
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent
from pausefl_server.rounds.messages import Update
from pausefl_server.rounds.observations import reconciled
from pausefl_server.rounds.open_step import OpenStep

_JobKey = tuple[str, int, int]  # client, round and attempt
# Updates that this many last rounds or steps missed are expected; those missed earlier are rejected.
_REMEMBERED_ROUNDS = 64


def merged(late: Update, round: int) -> LogEvent:
    """The event of a late update that has entered the model of `round`."""
    detail = f"its update of round {late.round} entered the model of round {round}"
    return LogEvent("merged", late.client_id, detail, released=late.release.participation)


def dropped(late: Update, reason: str) -> LogEvent:
    """The event of a late update that enters no model."""
    return LogEvent("dropped", late.client_id, f"its update of round {late.round} enters no model: {reason}")


class LateUpdates:
    """The jobs that ended without an answer, and the last late update of each client, if it is kept.

    They are in memory only. The log says at once that an update was kept, and the ε it cost: after a kill, the server
    finds there what it has lost (`storage.restore`).
    """

    def __init__(self, *, keeps: bool) -> None:
        """`keeps`: late updates are kept for the next model; otherwise they are dropped."""
        self._keeps = keeps
        self._weights: dict[_JobKey, tuple[int, float]] = {}  # with the round or step that missed the update
        self._kept: dict[str, tuple[Update, float]] = {}  # by client, with its weight

    def expect(self, step: OpenStep, missed: Iterable[str], table: ClientTable) -> None:
        """Note the weights that the updates of clients missed just now would have; forget those of old rounds."""
        oldest = step.number - _REMEMBERED_ROUNDS
        self._weights = {key: kept for key, kept in self._weights.items() if kept[0] > oldest}
        for client_id in missed:
            given = step.jobs[client_id]
            self._weights[client_id, *given.job.key] = step.number, sum(step.weight(d, table) for d in given.draws)

    def take(self, update: Update) -> list[LogEvent]:
        """Drop or keep a late update; returns the events to log, its ε included. WireError if none is expected."""
        _, weight = self._weights.pop((update.client_id, update.round, update.attempt), (0, None))
        if weight is None:
            raise WireError(f"round {update.round} is over, its update came too late")
        detail = f"its update of round {update.round} was {'kept for the next model' if self._keeps else 'dropped'}"
        late = LogEvent("late", update.client_id, detail, job_round=update.round, job_attempt=update.attempt)
        events = [late, reconciled(update)] if update.release.participation else [late]
        if self._keeps:
            older, self._kept[update.client_id] = self._kept.get(update.client_id), (update, weight)
            if older is not None:  # the log tells the end of the older update first
                return [dropped(older[0], "a later one came"), *events]
        return events

    def kept_release(self, client_id: str) -> int:
        """The number of the client's release that is kept for the next model; 0 if none is."""
        kept = self._kept.get(client_id)
        return 0 if kept is None else kept[0].release.participation

    def hand_over(self) -> tuple[tuple[Update, float], ...]:
        """Remove and return all kept updates with their weights, sorted by client id."""
        kept, self._kept = tuple(self._kept[client_id] for client_id in sorted(self._kept)), {}
        return kept
