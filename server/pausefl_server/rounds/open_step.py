"""A round or an asynchronous step before its commit: its jobs, the clients that owe an answer, and the answers.

All jobs of a round have the same model and are handed out at its begin. The jobs of an asynchronous step have the
newest model, handed out as places become free, or the models of earlier steps.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import ordered
from pausefl_server.records import LogEvent, Miss, MissKind, Observation, RoundRecord
from pausefl_server.rounds.attempt import attempt_record
from pausefl_server.rounds.deadline import second_wait_s
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.messages import Dispatch, Refusal, Update
from pausefl_server.rounds.observations import bounded_timing, observe
from pausefl_server.selection.base import Selection
from pausefl_server.settings import ServerSettings

# A client whose stream breaks more often than this in a round is no longer waited for.
_MOST_BREAKS = 4


class Draw(NamedTuple):
    """One choice of a client by a selection. Draws sort in the order in which updates are combined."""

    round: int
    attempt: int
    place: int
    """The position in the selection."""
    client_id: str
    weight: float | None
    """The weight that the policy gives the update; None: its data size."""


@dataclass(slots=True)
class GivenJob:
    """A job that a client was given, and the state of the client's stream since then."""

    job: Dispatch
    sent_s: float
    """When it was offered to the client."""
    timeout_s: float
    """How long the server waits for the answer, from `sent_s` on."""
    elapsed_s: float
    """`sent_s` as elapsed time (`rounds.elapsed`)."""
    draws: tuple[Draw, ...]
    """The client's draws: one, unless the policy drew the client more often."""
    breaks: int = 0
    """How often the client lost its stream while it owed the answer."""
    is_gone: bool = False
    """Whether the client's stream broke and it has not reconnected."""

    def was_away(self, at_s: float) -> bool:
        """Whether, at `at_s`, more than twice the job's timeout has passed: the server itself stood still meanwhile."""
        return at_s - self.sent_s > 2 * self.timeout_s


@dataclass(slots=True)
class OpenStep:
    """The jobs that are out, and the answers since the last commit. Times are read on the server's clock."""

    number: int
    needed: int
    """How many answers end the step."""
    settings: ServerSettings
    elapsed: Elapsed
    events: list[LogEvent] = field(default_factory=list)
    """All events that are new to the step's selections: those since the step before."""
    chosen: list[str] = field(default_factory=list)
    """The clients that were given this step's model, in selection order."""
    selections: list[Selection] = field(default_factory=list)
    """The selections that chose these clients."""
    selection_s: float = 0.0
    """How long the policy took to choose."""
    attempt: int = 1
    """The number of the last hand-out of this step's model."""
    timeout_s: float = 0.0
    """The longest time that a hand-out waits for its clients."""
    jobs: dict[str, GivenJob] = field(default_factory=dict)
    """The job of each client that owes an answer, or that answered or missed in this step."""
    due: dict[str, float] = field(default_factory=dict)
    """Until when the server waits for each client that owes an answer; infinite if the answer is kept, not yet used."""
    updates: dict[str, Update] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)
    misses: dict[str, Miss] = field(default_factory=dict)
    """The misses of clients that are no longer waited for."""
    capped: list[LogEvent] = field(default_factory=list)
    """Events of stated device times that were cut to a plausible value."""
    extended_until_s: float = -math.inf
    """Until when the server waits for all clients after it stood still itself. This happens once a step at most."""

    def give(self, job: Dispatch, selection: Selection, chosen: Iterable[str], sent_s: float, timeout_s: float) -> None:
        """Note that the chosen clients, in selection order, are given this job now."""
        self.chosen.extend(chosen := tuple(chosen))
        self.selections.append(selection)
        self.attempt, self.timeout_s = job.attempt, max(self.timeout_s, timeout_s)
        weights = [None] * len(chosen) if selection.weights is None else selection.weights.tolist()
        draws: dict[str, list[Draw]] = {}
        for i, each in enumerate(zip(chosen, weights, strict=True)):
            draws.setdefault(each[0], []).append(Draw(job.round, job.attempt, i, *each))
        for client_id, of_client in draws.items():
            self.add_job(client_id, job, sent_s, timeout_s, of_client)

    def add_job(self, client_id: str, job: Dispatch, sent_s: float, timeout_s: float, draws: Iterable[Draw]) -> None:
        """Wait for a client's answer to this job, which may be an earlier step's."""
        self.jobs[client_id] = given = GivenJob(job, sent_s, timeout_s, self.elapsed.at(sent_s), tuple(draws))
        self.due[client_id] = self.deadline_s(given)

    def deadline_s(self, given: GivenJob) -> float:
        """Until when the server waits for a job's answer. Nothing that a client does changes it."""
        return max(given.sent_s + given.timeout_s, self.extended_until_s)

    def next(self, number: int, needed: int) -> "OpenStep":
        """The step after this one's commit, with the jobs that are still out."""
        jobs = {client_id: self.jobs[client_id] for client_id in self.due}
        return OpenStep(number, needed, self.settings, self.elapsed, jobs=jobs, due=self.due)

    def lacks(self, answer: Update | Refusal) -> bool:
        """Whether the step waits for this answer: its client owes one, and to this very job."""
        key = answer.round, answer.attempt
        return answer.client_id in self.due and self.jobs[answer.client_id].job.key == key

    @property
    def is_answered(self) -> bool:
        """Whether enough clients have answered."""
        return len(self.updates) >= self.needed

    def whole(self, kept: Mapping[str, Update]) -> list[Update]:
        """The kept answers to the first job that all of its clients have answered; empty if there is no such job."""
        owed = {self.jobs[client_id].job.key for client_id in self.due if client_id not in kept}
        whole = [u for u in kept.values() if self.lacks(u) and self.jobs[u.client_id].job.key not in owed]
        return [u for u in whole if (u.round, u.attempt) == (whole[0].round, whole[0].attempt)]

    def end(self, now_s: float) -> list[str]:
        """Stop waiting for the clients that still owe an answer, as enough others have answered; returns them."""
        unneeded = list(self.due)
        for client_id in unneeded:
            self.miss(client_id, "unneeded", "enough others had answered", now_s)
        return unneeded

    def give_up_stale(self, now_s: float) -> list[str]:
        """Stop waiting for the clients whose models are too old; returns them."""
        staleness_max = self.settings.asynchronous.staleness_max
        stale = [c for c in self.due if self.jobs[c].job.round < self.number - staleness_max]
        for client_id in stale:
            self.miss(client_id, "timeout", f"its model is more than {staleness_max} steps old", now_s)
        return stale

    def take(self, update: Update, table: ClientTable, now_s: float) -> None:
        """Record an update that the step waits for; its client must have a row in `table`."""
        given = self.settle(update.client_id)
        bounded = bounded_timing(update)
        if bounded is not update.timing:
            self.capped.append(LogEvent("capped", update.client_id, "device time"))
        self.updates[update.client_id] = update
        seen = observe(update, bounded, table, self.settings, now_s, is_overdue=given.was_away(update.arrived_s))
        took_s = bounded.signal_s("round_trip", self.settings.time_scale) + seen.timing.server_wait_s
        self.elapsed = self.elapsed.after(given.elapsed_s, took_s, now_s)
        self.observations[update.client_id] = replace(
            seen,
            staleness=self.number - update.round,
            handed_out_s=given.elapsed_s,
            came_back_s=given.elapsed_s + took_s,
        )

    def returned(self, client_id: str, now_s: float) -> Dispatch | None:
        """The job to send again to a client that has reconnected; None if it is not waited for.

        Neither the deadline nor the round trip restarts.
        """
        if self.due.get(client_id, math.inf) == math.inf or (given := self.jobs[client_id]).breaks > _MOST_BREAKS:
            return None
        given.is_gone = False
        self.due[client_id] = self.deadline_s(given)
        return replace(given.job, ready_s=now_s) if given.job.handed_over_s is None else given.job

    def lost(self, client_id: str, until_s: float, handed_over_s: float | None) -> None:
        """Wait until `until_s` at most for a client whose stream broke; no longer at all if that happens too often.

        `handed_over_s` may be that of an earlier job, which was still being sent when the stream broke. It is then
        ignored: this job's round trip cannot begin before the job was made.
        """
        if self.due.get(client_id, math.inf) == math.inf:
            return
        given = self.jobs[client_id]
        given.is_gone, given.breaks = True, given.breaks + 1
        self.due[client_id] = -math.inf if given.breaks > _MOST_BREAKS else min(self.due[client_id], until_s)
        if given.job.handed_over_s is None and handed_over_s is not None and handed_over_s >= given.job.ready_s:
            given.job = replace(given.job, handed_over_s=handed_over_s)

    def miss_overdue(self, now_s: float) -> list[str]:
        """Stop waiting for the clients that are overdue; returns them."""
        if min(self.due.values(), default=math.inf) > now_s:  # as after most messages
            return []
        self._make_up_for_stall(now_s)
        overdue = [client_id for client_id, until_s in self.due.items() if until_s <= now_s]
        for client_id in overdue:
            is_gone = self.jobs[client_id].is_gone
            reason = "its stream broke and it did not come back in time" if is_gone else "gave no answer in time"
            self.fail(client_id, "lost" if is_gone else "timeout", reason, now_s)
        return overdue

    def fail(self, client_id: str, kind: MissKind, reason: str, now_s: float) -> None:
        """Record the miss of a client for which the step waited until now."""
        given = self.jobs[client_id]
        self.elapsed = self.elapsed.after(given.elapsed_s, (now_s - given.sent_s) / self.settings.time_scale, now_s)
        self.miss(client_id, kind, reason, now_s)

    def _make_up_for_stall(self, now_s: float) -> None:
        """Extend all waits once if the server stood still until after the first one: answers may be unread."""
        waiting = {client_id: until_s for client_id, until_s in self.due.items() if until_s > -math.inf}
        first = min(waiting, key=waiting.__getitem__, default=None)
        if first is None or waiting[first] > now_s or self.extended_until_s > -math.inf:
            return
        if more_s := second_wait_s(now_s - waiting[first], self.jobs[first].timeout_s):
            self.extended_until_s = now_s + more_s
            for client_id, until_s in waiting.items():
                self.due[client_id] = max(until_s, self.extended_until_s)

    def miss(self, client_id: str, kind: MissKind, reason: str, now_s: float) -> None:
        """Stop waiting for a client that owes an answer, and record a miss: it gave no usable update."""
        given = self.settle(client_id)
        waited_s = now_s - given.sent_s
        # It is unknown how a silent client spent its time: all of the wait counts as communication.
        latency_s, at_work_s = waited_s / self.settings.time_scale, self.elapsed.at(now_s) - given.elapsed_s
        self.misses[client_id] = Miss(client_id, kind, waited_s, latency_s, reason, max(0.0, at_work_s))

    def settle(self, client_id: str) -> GivenJob:
        """Stop waiting for a client, for whatever reason; returns its job."""
        del self.due[client_id]
        return self.jobs[client_id]

    def arrived(self) -> list[Draw]:
        """The draws of the clients whose updates came, in an order that does not depend on their arrival."""
        return sorted(draw for client_id in self.updates for draw in self.jobs[client_id].draws)

    def weight(self, draw: Draw, table: ClientTable) -> float:
        """The weight of this draw's update before it is discounted."""
        return float(table.n_examples[table.row_of[draw.client_id]]) if draw.weight is None else draw.weight

    def record(self, model_digest: str, now_s: float, wall_clock_s: float, host: HostReport) -> RoundRecord:
        """The log record of the step, made at `now_s`, when it waits for no more answers."""
        observations = tuple(self.observations[c] for c in sorted(self.observations))
        is_overdue = any(self.jobs[c].was_away(self.jobs[c].sent_s + m.waited_s) for c, m in self.misses.items())
        of_server = self.settings.limits.of_server(host, is_overdue=is_overdue)
        teaches = self.settings.limits.teaches(of_server)
        misses = tuple(replace(self.misses[c], teaches=teaches) for c in sorted(self.misses))
        weights = [selection.weights for selection in self.selections if selection.weights is not None]
        return replace(
            attempt_record(self.number, self.attempt, self.chosen, observations, misses),
            weights=tuple(np.concatenate(weights).tolist()) if weights else None,
            events=tuple(self.events),
            wall_clock_s=wall_clock_s,
            selection_s=self.selection_s,
            model_digest=model_digest,
            details=self.selections[-1].details if self.selections else {},
            cluster_penalty_s=sum(selection.cluster_penalty_s for selection in self.selections),
            host=host,
            deadline_s=self.timeout_s,
            elapsed_s=self.elapsed.at(now_s),
            suspect=ordered((*of_server, *(doubt for o in observations for doubt in o.suspect))),
        )
