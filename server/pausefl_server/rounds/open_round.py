"""A round between its job and its commit: who still owes an answer, and what has come."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, MissKind, Observation, RoundRecord
from pausefl_server.rounds.deadline import second_wait_s
from pausefl_server.rounds.messages import Dispatch, Refusal, Update
from pausefl_server.rounds.observations import bounded_timing, observe, reconciled
from pausefl_server.selection.base import Selection
from pausefl_server.settings import ServerSettings

# A client whose stream breaks more often in a round is not waited for.
_MOST_BREAKS = 4


@dataclass(slots=True)
class OpenRound:
    """A job that is out, and the answers to it. Times are the server's clock."""

    job: Dispatch
    selection: Selection
    selection_s: float
    """How long the policy took to choose."""
    chosen: tuple[str, ...]
    """In selection order, in which updates are combined, in whatever order they come."""
    events: tuple[LogEvent, ...]
    """All that the selection knew and the round before did not."""
    sent_s: float
    """When the job was offered to the clients."""
    timeout_s: float
    """How long the round waits for its clients, from when the job was sent."""
    needed: int
    """How many answers end the round."""
    time_scale: float
    """The factor from emulated to real seconds."""
    due: dict[str, float] = field(init=False)
    """The clients that still owe an answer, and until when each is waited for."""
    handed_over: dict[str, float] = field(default_factory=dict)
    """When a client whose stream broke was first handed the job."""
    breaks: Counter[str] = field(default_factory=Counter)
    """How often each client lost its stream while it owed an answer."""
    gone: set[str] = field(default_factory=set)
    """The clients that owe an answer and have lost their stream."""
    updates: dict[str, Update] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)
    misses: dict[str, Miss] = field(default_factory=dict)
    """The clients that are not waited for any longer."""
    capped: list[LogEvent] = field(default_factory=list)
    """What clients said of their device time and was cut to what is plausible."""
    extended_until_s: float = -math.inf
    """Until when all are waited for where the server itself stood still; once a round."""

    def __post_init__(self) -> None:
        self.due = dict.fromkeys(self.chosen, self.deadline_s)

    @property
    def deadline_s(self) -> float:
        """Until when the round waits; no client moves it."""
        return max(self.sent_s + self.timeout_s, self.extended_until_s)

    def lacks(self, update: Update) -> bool:
        """Whether this is an answer that is still waited for."""
        return self.is_of(update) and update.client_id in self.due

    def is_of(self, answer: Update | Refusal) -> bool:
        """Whether this answers the job that is out, and not an earlier attempt at the round."""
        return (answer.round, answer.attempt) == (self.job.round, self.job.attempt)

    @property
    def is_answered(self) -> bool:
        """Whether enough clients have answered."""
        return len(self.updates) >= self.needed

    def end(self, now_s: float) -> None:
        """Wait no longer for the clients that still owe an answer: enough others have given theirs."""
        for client_id in tuple(self.due):
            self.miss(client_id, "unneeded", "enough others had answered", now_s)

    def take(self, update: Update, table: ClientTable, settings: ServerSettings, now_s: float) -> None:
        """Count an answer that was waited for; its client has a row in `table`."""
        del self.due[update.client_id]
        bounded = bounded_timing(update)
        if bounded is not update.timing:
            self.capped.append(LogEvent("capped", update.client_id, "device time"))
        self.updates[update.client_id] = update
        self.observations[update.client_id] = observe(update, bounded, table, settings, now_s)

    def returned(self, client_id: str, now_s: float) -> Dispatch | None:
        """The job for a client that lost its stream and is back; None when it is not waited for.

        Neither its deadline nor its round trip starts anew.
        """
        if client_id not in self.due or self.breaks[client_id] > _MOST_BREAKS:
            return None
        self.gone.discard(client_id)
        self.due[client_id] = self.deadline_s
        first_s = self.handed_over.get(client_id)
        return replace(self.job, handed_over_s=first_s) if first_s is not None else replace(self.job, ready_s=now_s)

    def lost(self, client_id: str, until_s: float, handed_over_s: float | None) -> None:
        """Wait for a client that lost its stream no longer than until `until_s`; not at all if it does so often.

        It may have lost it with an earlier round's job, which took up all of its stream: this round's round trip does
        not run from when that one was handed over.
        """
        if client_id not in self.due:
            return
        self.gone.add(client_id)
        self.breaks[client_id] += 1
        is_often = self.breaks[client_id] > _MOST_BREAKS
        self.due[client_id] = -math.inf if is_often else min(self.due[client_id], until_s)
        if handed_over_s is not None and handed_over_s >= self.job.ready_s:
            self.handed_over.setdefault(client_id, handed_over_s)

    def miss_overdue(self, now_s: float) -> list[str]:
        """Wait no longer for the clients that are overdue; returns them."""
        self._make_up_for_stall(now_s)
        overdue = [client_id for client_id, until_s in self.due.items() if until_s <= now_s]
        for client_id in overdue:
            is_lost = client_id in self.gone
            reason = "its stream broke and it did not come back in time" if is_lost else "gave no answer in time"
            self.miss(client_id, "lost" if is_lost else "timeout", reason, now_s)
        return overdue

    def _make_up_for_stall(self, now_s: float) -> None:
        """Wait for all clients once more where this is called late: their answers may lie unread."""
        first_s = min((until_s for until_s in self.due.values() if until_s > -math.inf), default=now_s)
        more_s = second_wait_s(now_s - first_s, self.timeout_s)
        if more_s and self.extended_until_s == -math.inf:
            self.extended_until_s = now_s + more_s
            for client_id, until_s in self.due.items():
                if until_s > -math.inf:
                    self.due[client_id] = max(until_s, self.extended_until_s)

    def miss(self, client_id: str, kind: MissKind, reason: str, now_s: float) -> None:
        """Wait no longer for a client that is due, without an update that can be used."""
        del self.due[client_id]
        waited_s = now_s - self.sent_s
        # Nothing tells how a silent client's time was spent: all of the wait counts as communication.
        self.misses[client_id] = Miss(client_id, kind, waited_s, latency_s=waited_s / self.time_scale, reason=reason)

    def release_of(self, client_id: str) -> int:
        """Which of its releases the client answered with; 0 where it has not answered."""
        update = self.updates.get(client_id)
        return 0 if update is None else update.release.participation

    def arrived(self) -> list[int]:
        """The positions in `chosen` of those whose updates came."""
        return [i for i, client_id in enumerate(self.chosen) if client_id in self.updates]

    def abandoned(self) -> list[LogEvent]:
        """The events to log when the round is given up: all it knew, and what its updates have spent."""
        return [*self.events, *(reconciled(update) for update in self.updates.values())]

    def record(self, model_digest: str, wall_clock_s: float, host: HostReport, settings: ServerSettings) -> RoundRecord:
        """The round as it is logged, once no more answers are waited for."""
        observations = tuple(self.observations[c] for c in sorted(self.observations))
        misses = tuple(self.misses[c] for c in sorted(self.misses))
        waits_s = (miss.latency_s for miss in misses if miss.kind != "unneeded")
        weights, hosts = self.selection.weights, (o.host for o in observations)
        return RoundRecord(
            round=self.job.round,
            attempt=self.job.attempt,
            chosen=self.chosen,
            weights=None if weights is None else tuple(weights.tolist()),
            observations=observations,
            events=self.events,
            round_latency_s=max((*(o.latency_s for o in observations), *waits_s), default=0.0),
            wall_clock_s=wall_clock_s,
            selection_s=self.selection_s,
            model_digest=model_digest,
            details=self.selection.details,
            cluster_penalty_s=self.selection.cluster_penalty_s,
            host=host,
            misses=misses,
            deadline_s=self.timeout_s,
            suspect=settings.limits.doubts(host, hosts, settings.signal, total_delays=settings.total_delays),
        )
