"""The round loop: select, send, collect, aggregate, commit, acknowledge."""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from pausefl_process.events import Outcome
from pausefl_proto.actor import Actor
from pausefl_proto.errors import PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, Vector
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.pings import Ping
from pausefl_server.records import EventKind, LogEvent, RoundRecord, unsettled
from pausefl_server.release_checks import check_release, is_plausible
from pausefl_server.rounds.aggregation import aggregate
from pausefl_server.rounds.budget_exhaustion import budgets_end, too_few_left, used_up
from pausefl_server.rounds.deadline import Patience, answers_needed, derived_deadline_s
from pausefl_server.rounds.evaluation import EvaluatorActor
from pausefl_server.rounds.late_updates import LateUpdates
from pausefl_server.rounds.membership import Membership
from pausefl_server.rounds.messages import Acknowledge, JobWithdrawn, Lost, Pinged, Refusal, Register, Shutdown, Update
from pausefl_server.rounds.observations import reconciled
from pausefl_server.rounds.open_round import OpenRound
from pausefl_server.rounds.pending_events import PendingEvents
from pausefl_server.rounds.preparation import PreparedRound, Preparer, off_loop
from pausefl_server.rounds.stopwatch import RoundStart, RunStopwatch
from pausefl_server.selection.base import Oracle, Selection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import StartingPoint
from pausefl_server.storage.store_actor import CommitRound, SaveFailedAttempt, SaveLateEvents, StoreActor

# How long clients at work when the run is stopped are waited for, so that what they spend is logged.
_DRAIN_S = 3.0

_Message = Register | Lost | Update | Pinged | Refusal | JobWithdrawn | Shutdown


class Coordinator(Actor[_Message]):
    """Runs the rounds; it alone changes the run's state. `stopped_because` and `outcome` say how the run ended."""

    def __init__(
        self,
        settings: ServerSettings,
        start: StartingPoint,
        store: StoreActor,
        evaluator: EvaluatorActor,
        observer: RunObserver,
        *,
        oracle: Oracle | None = None,
        stopwatch: RunStopwatch | None = None,
    ) -> None:
        """`oracle` is for policies that need it; `stopwatch` is the run's only clock."""
        super().__init__("coordinator", capacity=4096)
        self.state = start.state
        self.model = start.model
        self.stopped_because = ""
        self.outcome: Outcome = "completed"
        self._settings = settings
        self._store = store
        self._evaluator = evaluator
        self._observer = observer
        self._members = Membership(settings, self.state.table, observer)
        self._attempts = dict(start.attempts)  # which comes next, by round; 1 unless said otherwise
        self._stopwatch = stopwatch or RunStopwatch()
        self._now_s = self._stopwatch.clock
        self._preparer = Preparer(settings, self.state, oracle, self._now_s)
        self._late = LateUpdates(keeps=settings.keeps_late_updates)
        self._pending = PendingEvents(start.late_events)  # goes into the log with the next commit
        self._pings: list[Ping] = []  # as well
        self._open: OpenRound | None = None  # the round whose answers are waited for
        self._unreported: RoundRecord | None = None  # committed, but not acknowledged and reported yet
        self._is_at_work = False  # whether a job has left since this process began, as the log knows
        self._without_update = 0  # attempts in a row, since this process began
        self._m = self.state.policy.m - settings.spare  # how many clients a round takes, of those that it asks

    @property
    def theta(self) -> Vector:
        """The global model now, (d,) float32."""
        return self.model.theta

    async def work(self) -> None:
        """Play the rounds that are left, then dismiss all clients. PauseflError when no round could begin."""
        # Compiling takes seconds the first time on a machine; no round waits for it.
        await asyncio.gather(self._gather_clients(), off_loop(False, self.state.policy.warm_up))
        with self._stopwatch.watching():
            while not self.stopped_because:
                await self._play_next()
        await self._finish()

    async def receive(self, message: _Message) -> pb.Welcome | None:
        """Take in what clients send and what happens to them, also while a round is open."""
        if isinstance(message, Update | Refusal | JobWithdrawn):
            self._members.answered(message)
        match message:
            case Register():
                return self._register(message)
            case Lost():
                self._lose(message)
            case Update():
                self._take_update(message)
            case Pinged(client_id, ping_s):
                self._pings.append(Ping(self.state.round + 1, client_id, ping_s))
                if (row := self.state.table.row_of.get(client_id)) is not None:
                    self._observer.pinged(row, ping_s)
            case Refusal():
                self._take_refusal(message)
            case JobWithdrawn(client_id, round_, _):
                self._pending.add(LogEvent("withdrawn", client_id, f"dropped its job of round {round_} unpaid"))
            case Shutdown(reason):
                self._end_run("interrupted", reason)
        return None

    def _end_run(self, outcome: Outcome, reason: str) -> None:
        """Play no further round; the first reason counts."""
        if not self.stopped_because:
            self.outcome, self.stopped_because = outcome, reason

    # -- a round

    async def _play_next(self) -> None:
        """Play the next round, if there is one and a client to play it with."""
        number = self.state.round + 1
        if number > self._settings.rounds:
            self._end_run("completed", "all rounds done")
            return
        await self._await_roll_call(number)
        if await self._can_select():
            await self._play(number)

    async def _play(self, round: int) -> None:
        started = self._stopwatch.start_round(self.state.wall_clock_s)
        known = len(self.state.table)
        events = self._fold_events(round)
        if too_few := too_few_left(self.state.table, self._m):
            self._end_run("budgets_spent", too_few)
        if self.stopped_because or not self.state.table.eligible().size:
            self.state.table.forget_rows_from(known)  # the log will have these clients come with those that come later
            self._pending.put_back(events)
            return
        prepared = await self._preparer.prepare(round, self._attempts.get(round, 1), self.model)
        if self._settings.budget is not None and not (self._is_at_work and self._pending.has_logged(events)):
            # Who came may charge this job: a kill must not leave a log that knows nothing of them, or of it.
            await self._store.ask(SaveLateEvents(round, (*events, *self._pending.waiting())))
            self._is_at_work = True
        self._open = open_round = self._send(prepared, events)
        await asyncio.sleep(0)  # let the job leave before anything else is done
        await self._report_last_round(busy=open_round.due.keys())
        await self._collect(open_round)
        if self.stopped_because:
            await self._abandon(open_round)
            return
        self._open = None
        self._late.expect(open_round, self.state.table)
        self._pending.add(*self._pending.not_settled_by(self._members.owed(open_round)))
        self._members.withdraw_jobs(c for c, miss in open_round.misses.items() if miss.kind in ("timeout", "unneeded"))
        if not open_round.updates:
            await self._try_again(self._record(open_round, self.model, started))
            return
        model = await self._aggregate(open_round)
        await self._commit(self._record(open_round, model, started), model)

    async def _aggregate(self, open_round: OpenRound) -> GlobalModel:
        """The next model, from the round's updates and kept late ones; notes what became of each for the log."""
        number, late = open_round.job.round, self._late.hand_over()
        quick = self.model.theta.nbytes * (len(open_round.chosen) + len(late)) <= MAX_FRAME_BYTES
        weighted = [update.in_round(number) for update in late]
        combined = await off_loop(quick, aggregate, open_round, weighted, self.state, self.model, self._settings)
        open_round.observations.update(combined.observations)
        for event in combined.rejected:
            self._observer.rejected(f"client {event.client_id} {event.detail}: rejected")
        rejected = combined.late_rejected
        fates = (u.dropped(rejected[i]) if i in rejected else u.merged(number) for i, u in enumerate(late))
        self._pending.add(*combined.rejected, *open_round.capped, *combined.capped, *fates)
        return combined.model

    def _record(self, open_round: OpenRound, model: GlobalModel, started: RoundStart) -> RoundRecord:
        host = self._stopwatch.report(started)
        return open_round.record(model.digest, self._stopwatch.wall_clock_s(), host, self._settings)

    def _fold_events(self, round: int) -> tuple[LogEvent, ...]:
        """Take all events since the last round into the state, with the retirements that follow; returns them."""
        events = self._pending.take_known(self.state.table.row_of)
        self.state.before_round(round, events)
        retired = used_up(self.state.table, self._settings.budget)
        self.state.before_round(round, retired)
        return (*events, *retired)

    def _send(self, prepared: PreparedRound, events: tuple[LogEvent, ...]) -> OpenRound:
        chosen = tuple(self.state.table.ids[row] for row in prepared.selection.rows)
        open_round = OpenRound(
            *(prepared.job, prepared.selection, prepared.selection_s, chosen, events),
            sent_s=self._now_s(),
            timeout_s=self._timeout_s(prepared.selection),
            needed=answers_needed(len(set(chosen)), self._m, self._settings.spare, self._settings.quorum),
            time_scale=self._settings.time_scale,
        )
        for client_id in open_round.due:  # once each, also where a policy has drawn one twice
            self._members.offer(client_id, prepared.job)
        return open_round

    def _timeout_s(self, selection: Selection) -> float:
        if self._settings.round_timeout_s is not None:
            return self._settings.round_timeout_s
        failed, scale = self.state.failed_attempts, self._settings.time_scale
        return derived_deadline_s(self.state.table, selection.rows, failed_attempts=failed, time_scale=scale)

    async def _collect(self, open_round: OpenRound) -> None:
        """Handle messages until enough clients have answered or all are overdue, or the run is to end."""
        while open_round.due and not open_round.is_answered and not self.stopped_because:
            # At least what has come is heard, also where the server is late itself.
            await self.pump(max(0.0, min(open_round.due.values()) - self._now_s()))
            await self.drain()
            if not open_round.is_answered and not self.stopped_because:
                for client_id in open_round.miss_overdue(self._now_s()):
                    self._pending.add(LogEvent("missed", client_id, open_round.misses[client_id].reason))
        if open_round.is_answered:
            open_round.end(self._now_s())

    async def _abandon(self, open_round: OpenRound) -> None:
        """End the open round without its commit; what its clients spent on it is logged.

        A client that is still at work may be charging: it is waited for a moment, then logged as unsettled.
        """
        until_s = self._now_s() + (_DRAIN_S if self._settings.budget is not None else 0.0)
        while open_round.due and (left_s := until_s - self._now_s()) > 0:
            await self.pump(left_s)
        self._open = None
        events = self._pending.take()
        self._pending.put_back([*open_round.abandoned(), *events, *self._members.owed(open_round)])

    async def _commit(self, record: RoundRecord, model: GlobalModel) -> None:
        """Make the model and the round durable, then the run's state."""
        pings, self._pings = tuple(self._pings), []
        later = self._pending.to_log()  # with the model they tell of, or a kill would make it another's
        await self._store.ask(CommitRound(record, model.theta, pings, model.optimizer_state, later))
        self.model = model
        self.state.after_round(record)
        self._unreported = record
        self._without_update = 0

    async def _try_again(self, record: RoundRecord) -> None:
        """Log an attempt at a round that gave no update; the round is tried again, with other clients if there are any.

        Too many such attempts in a row end the run. One that found budgets used up does not count: the others may still
        have some.
        """
        pings, self._pings = tuple(self._pings), []
        await self._store.ask(SaveFailedAttempt(record, pings, self._pending.to_log()))
        self.state.after_failed_attempt(record)
        self._attempts[record.round] = record.attempt + 1
        self._observer.attempt_failed(record, self.state)
        self._without_update = 0 if self._pending.retired() else self._without_update + 1
        if self._without_update >= self._settings.rounds_without_update_max:
            last = record.misses[-1]
            self._end_run(
                "failed",
                f"no client gave an update in {self._without_update} attempts in a row; the last one,"
                f" {last.client_id}: {last.reason}",
            )

    async def _report_last_round(self, busy: AbstractSet[str] = frozenset()) -> None:
        """Do what can wait until the next job is out: acknowledge, report, evaluate, ping.

        `busy` clients have that job, which acknowledges all before it.
        """
        record, self._unreported = self._unreported, None
        if record is None:
            return
        for observation in record.observations:
            if observation.client_id not in busy:
                self._members.offer(observation.client_id, Acknowledge(record.round, record.attempt))
        end = budgets_end(self.state.table, self._settings.budget, self.state.round, self._m)
        self._observer.round_committed(record, self.state, end)
        every = self._settings.evaluation_every
        if every and record.round % every == 0 and record.round < self._settings.rounds:
            self._evaluator.consider(record.round, self.theta)
        self._members.send_pings(self._now_s(), busy)

    # -- waiting for clients

    async def _gather_clients(self) -> None:
        number = self.state.round + 1
        if number > self._settings.rounds:
            return  # the server was started again after the last round: no client need come
        minimum, timeout_s = self._members.first_minimum(number), self._settings.connect_timeout_s
        if self._settings.expected is not None:
            self._observer.roll_call(number)
        self._observer.waiting(minimum)
        if not await self._wait_until(lambda: len(self._members) >= minimum, timeout_s):
            raise PauseflError(
                f"only {len(self._members)} of clients.minimum = {minimum} clients connected within {timeout_s:g} s"
            )

    async def _await_roll_call(self, round: int) -> None:
        """Wait for the clients that come or go with this round; those that are late are not waited for again."""
        if not self._members.call_roll(round):
            return
        await self._report_last_round()
        self._observer.roll_call(round)
        await self._wait_until(lambda: not self._members.late(), self._settings.connect_timeout_s)
        if (late := self._members.late()) and not self.stopped_because:
            self._observer.noticed(
                f"round {round} begins although {', '.join(sorted(late))} did not come or go as expected"
            )

    async def _can_select(self) -> bool:
        """True when a client can be chosen; False, with the reason noted, when none came within the timeout."""

        def can_select() -> bool:
            return self._members.can_select(self._pending.retired())

        if not can_select():
            await self._report_last_round()  # no next job will follow soon
        if await self._wait_until(can_select, self._settings.connect_timeout_s):
            return not self.stopped_because
        self._end_run(*self._members.end_without_any(self._pending.retired()))
        return False

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Handle messages until `condition` holds or the run is to end; False after `timeout_s`."""
        patience = Patience(timeout_s, self._now_s())
        while not condition() and not self.stopped_because and not self.stopped:
            if (left_s := patience.left_s(self._now_s())) <= 0:
                return False
            await self.pump(left_s)
        return True

    # -- what clients send

    def _register(self, message: Register) -> pb.Welcome:
        client_id = message.hello.client_id
        self._pending.add(*self._members.register(message, self.state.round))
        if self._open is not None and (job := self._open.returned(client_id, self._now_s())) is not None:
            # It was chosen, lost its stream and is back: the same job, so it sends the same bytes.
            self._members.offer(client_id, job)
        elif (withdrawn := self._members.withdraw_job(client_id)) is not None and self._settings.budget is not None:
            # It may still work on the job that it had when its stream broke, and charge it after this hello.
            self._pending.add(unsettled(client_id, withdrawn.round, withdrawn.attempt))
        return pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id=self._settings.run_id)

    def _lose(self, message: Lost) -> None:
        event = self._members.remove(message.peer, message.reason, self.state.round)
        if event is None:
            return
        self._pending.add(event)
        if self._open is not None:
            patience_s = self._settings.rejoin_timeout_s if message.may_return else 0.0
            until_s = self._now_s() + patience_s
            self._open.lost(event.client_id, until_s, message.handed_over_s)

    def _take_update(self, update: Update) -> None:
        table, open_round, client_id = self.state.table, self._open, update.client_id
        proven, used = table.known_releases(client_id)
        used = max(used, self._late.kept_release(client_id), open_round.release_of(client_id) if open_round else 0)
        try:
            check_release(update.release, self._settings.budget, proven, used)
            if open_round is None or not open_round.lacks(update):
                self._take_late(update)
                return
        except WireError as error:
            job = update.round, update.attempt
            self._take_refusal(Refusal(client_id, *job, "rejected", str(error), update.release))
            return
        open_round.take(update, table, self._settings, self._now_s())

    def _take_late(self, update: Update) -> None:
        self._pending.add(*self._late.take(update))
        if self._settings.keeps_late_updates:  # which are lost if the server is killed before the next commit
            begun = self._open.events if self._open is not None else ()
            self._store.offer(SaveLateEvents(self.state.round + 1, (*begun, *self._pending.waiting())))

    def _take_refusal(self, refusal: Refusal) -> None:
        client_id, is_rejected = refusal.client_id, refusal.kind == "rejected"
        if is_rejected:
            self._observer.rejected(f"client {client_id} {refusal.reason}: rejected")
        is_spent = refusal.kind == "exhausted" and self._settings.budget is not None
        kind: EventKind = "retired" if is_spent else "rejected" if is_rejected else "missed"
        self._pending.add(LogEvent(kind, client_id, refusal.reason))
        if is_plausible(refusal.release, self._settings.budget):
            self._pending.add(reconciled(refusal))
        if self._open is not None and self._open.is_of(refusal) and client_id in self._open.due:
            self._open.miss(client_id, "rejected" if is_rejected else "refused", refusal.reason, self._now_s())

    # -- the end

    async def _finish(self) -> None:
        await self._report_last_round()
        self._pending.add(*(update.dropped("the run ended") for update in self._late.hand_over()))
        number, events = self.state.round + 1, self._pending.take()
        await self._store.ask(SaveLateEvents(number, events, is_end=True))
        self.state.before_round(number, events)
        self._observer.finished(self.state, self.stopped_because, events)
        self._members.dismiss_all(self.stopped_because)
