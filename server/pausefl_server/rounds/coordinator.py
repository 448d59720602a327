"""The loop of rounds and of asynchronous steps: select, send, collect, aggregate, commit, acknowledge."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet

from pausefl_process.events import Outcome
from pausefl_process.host_monitor import UNWATCHED, HostWatch
from pausefl_proto.errors import PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, digest
from pausefl_server.actor import Actor
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.records import EventKind, LogEvent, Ping, RoundRecord, unsettled
from pausefl_server.release_checks import check_release, is_plausible
from pausefl_server.rounds.aggregation import aggregate
from pausefl_server.rounds.budget_exhaustion import budgets_end, too_few_left, used_up
from pausefl_server.rounds.choosing import FreePlaces, free_places, updates_needed
from pausefl_server.rounds.deadline import Patience, answers_needed, round_timeout_s
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.evaluation import EvaluatorActor
from pausefl_server.rounds.late_updates import LateUpdates, dropped
from pausefl_server.rounds.membership import Membership
from pausefl_server.rounds.messages import Dispatch, Lost, Refusal, Register, Shutdown, Update
from pausefl_server.rounds.observations import reconciled, with_stop_before
from pausefl_server.rounds.open_step import Draw, OpenStep
from pausefl_server.rounds.pending_events import PendingEvents
from pausefl_server.rounds.preparation import Preparer, off_loop
from pausefl_server.selection.base import Oracle
from pausefl_server.settings import ServerSettings
from pausefl_server.state import StartingPoint
from pausefl_server.storage.store_actor import StoreActor

# How long a run that is stopped waits for clients at work, so that the ε they spend is logged.
_DRAIN_S = 3.0

_Message = Register | Lost | Update | Ping | Refusal | Shutdown


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
        watch: HostWatch = UNWATCHED,
        finishes_rounds: bool = False,
    ) -> None:
        """`oracle` serves policies that need it. `watch` monitors this host and provides the run's clock.

        With `finishes_rounds`, a run that is asked to end first finishes its open round if that takes at most 3 s.
        """
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
        self._attempts = dict(start.attempts)  # the next attempt, by round; 1 for rounds not listed
        self._watch = watch
        self._now_s = watch.clock
        self._run_began_s = math.nan  # when it would have begun without interruptions and sleeps of the machine
        self._preparer = Preparer(settings, self.state, oracle, self._now_s)
        self._late = LateUpdates(keeps=settings.keeps_late_updates)
        self._pending = PendingEvents(start.late_events)  # logged with the next commit
        self._pings: list[Ping] = []  # logged with the next commit
        self._start = start
        self._to_ask_again = dict(start.at_work)  # jobs to send again, once their clients have rows in the table
        self._open: OpenStep | None = None  # None between rounds; asynchronous runs always have one once begun
        self._surplus: dict[str, Update] = {}  # updates kept for a later step, by client
        self._elapsed: Elapsed | None = None  # None until a job has left
        self._unreported: tuple[RoundRecord, list[Update]] | None = None  # committed, updates not acknowledged yet
        self._is_at_work = False  # whether the log knows that this process has sent jobs
        self._finishes_rounds = finishes_rounds
        self._asked_to_end: tuple[str, float] | None = None  # the reason, and until when the open round may be finished
        self._without_update = 0  # attempts in a row without an update, since this process began
        self._needed = settings.updates_needed(self.state.policy.m)

    async def work(self) -> None:
        """Play the remaining rounds, then dismiss all clients. PauseflError if no round can begin."""
        # The first compilation on a machine takes seconds; it runs while clients connect, so no round waits for it.
        await asyncio.gather(self._gather_clients(), off_loop(False, self.state.policy.warm_up))
        with self._watch.watching():
            while not self.stopped_because:
                await self._play_next()
        await self._finish()

    async def receive(self, message: _Message) -> None:
        """Handle one message about a client or the run's end, also while a round is open."""
        if isinstance(message, Update | Refusal):
            self._members.answered(message)
        match message:
            case Register():
                self._register(message)
            case Lost():
                self._lose(message)
            case Update():
                self._take_update(message)
            case Ping(client_id, ping_s):
                self._pings.append(message)
                if (row := self.state.table.row_of.get(client_id)) is not None:
                    self._observer.pinged(row, ping_s)
            case Refusal(kind="withdrawn"):
                self._take_withdrawal(message)
            case Refusal():
                self._take_refusal(message)
            case Shutdown(reason):
                is_waiting = self._finishes_rounds and self._open is not None and not self._settings.is_asynchronous
                self._asked_to_end = reason, time.monotonic() + (_DRAIN_S if is_waiting else 0.0)
                self._heed_end()

    def _heed_end(self, *, is_between_rounds: bool = False) -> None:
        """End the run if it was asked to end, and no open round has time left to finish."""
        if self._asked_to_end and (is_between_rounds or time.monotonic() >= self._asked_to_end[1]):
            self._end_run("interrupted", self._asked_to_end[0])

    def _end_run(self, outcome: Outcome, reason: str) -> None:
        """Note that the run ends, how and why; later calls change nothing."""
        if not self.stopped_because:
            self.outcome, self.stopped_because = outcome, reason

    # -- a round

    async def _play_next(self) -> None:
        """Play the next round, if there is one and a client to play it with."""
        number = self.state.round + 1
        if number > self._settings.rounds:
            self._end_run("completed", f"all {'steps' if self._settings.is_asynchronous else 'rounds'} done")
        self._heed_end(is_between_rounds=True)
        if self.stopped_because:
            return
        await self._await_roll_call(number)
        if await self._can_select():
            await self._play(number)

    async def _play(self, number: int) -> None:
        started = self._now_s(), time.process_time()
        if math.isnan(self._run_began_s):
            self._run_began_s = started[0] - self.state.wall_clock_s
        known = len(self.state.table)
        events = self._fold_events(number)
        too_few = too_few_left(self.state, self._needed)
        may_come = too_few and not too_few_left(self.state, self._needed, to_come=self._members.to_come())
        is_at_work = bool(self._to_ask_again) or (self._open is not None and bool(self._open.due))
        if too_few or not (is_at_work or self.state.table.eligible().size):
            self.state.table.forget_rows_from(known)  # these newcomers are logged later, with further ones
            self._pending.put_back(events)
            if too_few and not (may_come and await self._newcomer_comes(too_few)):
                self._end_run("budgets_spent", too_few)
            return
        elapsed = self._elapsed or Elapsed(self.state.elapsed_s, self._now_s())
        step = self._open = self._open or OpenStep(number, self._needed, self._settings, elapsed)
        step.events += events
        step.attempt = self._attempts.get(number, 1)
        self._ask_again(step)
        self._take_surplus(step)
        await self._hand_out(step)
        owed = [event for event in step.events if event.kind == "unsettled" and event.client_id in step.jobs]
        again = [event for event in owed if event == unsettled(event.client_id, *step.jobs[event.client_id].job.key)]
        step.events = [event for event in step.events if event not in again]  # the end of each job is logged by itself
        self._take_whole(step)  # handing out has set how many answers are needed
        await asyncio.sleep(0)  # let the job leave before anything else is done
        await self._report_last_round(busy=step.due.keys())
        await self._collect(step)
        self._elapsed = step.elapsed
        if self.stopped_because:
            await self._abandon(step)
            return
        self._pending.add(*self._pending.not_settled_by(self._members.owed(step, ())))
        if not step.updates:
            self._open = self._step_after(step, number)
            await self._try_again(self._record(step, self.model, started))
            return
        self._open = self._step_after(step, number + 1)
        model = await self._aggregate(step)
        await self._commit(self._record(step, model, started), model, step)

    def _step_after(self, step: OpenStep, number: int) -> OpenStep | None:
        """The next asynchronous step, which keeps the jobs that are out; None in rounds, whose jobs have all ended.

        Clients whose models are too old are given up.
        """
        if not self._settings.is_asynchronous:
            return None
        after = step.next(number, self._needed)
        self._note_missed(after, after.give_up_stale(self._now_s()))
        return after

    def _ask_again(self, step: OpenStep) -> None:
        """Send the jobs that were out at an interruption again. Clients answer the same keys with the same bytes."""
        at_work, self._to_ask_again = self._to_ask_again, {}
        models = {key: self._start.models[key[0]] for key in at_work.values()}
        jobs = {key: self._preparer.frame(*key, theta, digest(theta)) for key, theta in models.items()}
        for client_id, key in sorted(at_work.items(), key=lambda item: (item[1], item[0])):
            rows, now_s = self.state.table.rows([client_id]), self._now_s()
            draw = Draw(*key, int(rows[0]), client_id, None)
            step.add_job(client_id, jobs[key], now_s, round_timeout_s(self._settings, self.state.table, rows), [draw])
            if key[0] == step.number:
                step.chosen.append(client_id)
            self._members.offer(client_id, jobs[key])
            if client_id not in self._members:
                step.lost(client_id, now_s + self._settings.rejoin_timeout_s, None)
        if at_work:
            self._elapsed = step.elapsed
            self._note_missed(step, step.give_up_stale(self._now_s()))

    def _free_places(self, step: OpenStep) -> FreePlaces | None:
        """The places that an asynchronous step can fill with idle clients now; None if there are none.

        A client that answered, missed or was given this model has to wait for the next step.
        """
        table, members = self.state.table, self._members
        taken = {*step.due, *step.updates, *step.misses, *step.chosen, *self._pending.retired()}
        idle = [row for row in table.eligible().tolist() if table.ids[row] in members and table.ids[row] not in taken]
        at_work, answered = table.rows(step.due), table.rows(step.updates).tolist()
        lacks, jobs = step.needed - len(answered), int(table.chosen.sum()) + len(step.chosen)
        return free_places(self._settings, self.state, step.number, idle, at_work, lacks, answered, jobs)

    async def _hand_out(self, step: OpenStep) -> None:
        """Give the model to the policy's choice of clients; asynchronously, while places are free and clients idle."""
        if not self._settings.is_asynchronous:
            await self._give(step, None)
            return
        while len(step.due) < self._settings.asynchronous.concurrency and (free := self._free_places(step)) is not None:
            await self._give(step, free)

    async def _give(self, step: OpenStep, free: FreePlaces | None) -> None:
        table, attempt = self.state.table, self._attempts.get(step.number, 1)
        selection, selection_s, job = await self._preparer.prepare(step.number, attempt, self.model, free)
        chosen = tuple(table.ids[row] for row in selection.rows)
        await self._log_before_jobs(step, job, dict.fromkeys(chosen))
        timeout_s = round_timeout_s(self._settings, table, selection.rows, self.state.failed_attempts)
        sent_s = self._now_s()
        if self._elapsed is None:
            self._elapsed = step.elapsed = Elapsed(self.state.elapsed_s, sent_s)
        step.selection_s += selection_s
        step.give(job, selection, chosen, sent_s, timeout_s)
        if free is None:
            asked, needs = table.rows({*chosen}), (self._needed, self._settings.spare, self._settings.quorum)
            beyond = int((~self.state.policy.counted(table)[asked]).sum())
            step.needed = answers_needed(len(asked), *needs, beyond)
        else:
            self._attempts[step.number] = attempt + 1
            self._take_surplus(step)
        for client_id in dict.fromkeys(chosen):  # once each, even if the policy drew a client twice
            self._members.offer(client_id, job)

    async def _log_before_jobs(self, step: OpenStep, job: Dispatch, chosen: Iterable[str]) -> None:
        """Before a job is sent, log durably which clients may charge it, so that a killed server still knows."""
        if self._settings.budget is None:
            return
        if self._settings.is_asynchronous:  # its jobs outlive the step: a restart asks for their answers again
            given = [LogEvent("given", c, job_round=job.round, job_attempt=job.attempt) for c in chosen]
            step.events += given
            self.state.before_round(step.number, given)
        elif self._is_at_work and self._pending.has_logged(step.events):
            return
        events = *step.events, *self._pending.waiting()
        await self._store.ask(lambda store: store.save_late_events(step.number, events))
        self._is_at_work = True

    async def _aggregate(self, step: OpenStep) -> GlobalModel:
        """The next model, from the round's updates and the kept late ones; notes for the log what became of each."""
        late = self._late.hand_over()
        quick = self.model.theta.nbytes * (len(step.updates) + len(late)) <= MAX_FRAME_BYTES
        combined = await off_loop(quick, aggregate, step, late, self.state, self.model, self._settings)
        step.observations.update(combined.observations)
        for event in combined.events:
            if event.kind == "rejected":
                self._observer.rejected(f"client {event.client_id} {event.detail}: rejected")
        self._pending.add(*combined.events)
        return combined.model

    def _record(self, step: OpenStep, model: GlobalModel, started: tuple[float, float]) -> RoundRecord:
        host = self._watch.report(started[0], time.process_time() - started[1])
        now_s = self._now_s()
        record = step.record(model.digest, now_s, now_s - self._run_began_s, host)
        self._elapsed = Elapsed(record.elapsed_s, now_s)  # it never goes back, whatever answer comes next
        if self._open is not None:
            self._open.elapsed = self._elapsed
        return record

    def _fold_events(self, round: int) -> tuple[LogEvent, ...]:
        """Fold all events since the last round, and the retirements they cause, into the state; returns them."""
        events = self._pending.take_known(self.state.table.row_of)
        self.state.before_round(round, events)
        retired = used_up(self.state.table, self._settings.budget)
        self.state.before_round(round, retired)
        return (*events, *retired)

    async def _collect(self, step: OpenStep) -> None:
        """Handle messages until enough clients have answered or all are overdue, or the run is to end."""
        while step.due and not step.is_answered and not self.stopped_because:
            # Messages that have arrived are handled first, even where the server itself is late.
            await self.pump(max(0.0, min(step.due.values()) - self._now_s()))
            await self.drain()
            self._heed_end()
            if not step.is_answered and not self.stopped_because:
                if missed := step.miss_overdue(self._now_s()):
                    self._note_missed(step, missed)
                self._take_whole(step)
                if self._settings.is_asynchronous and not step.is_answered:
                    await self._hand_out(step)
        if step.is_answered and not self._settings.is_asynchronous:
            self._give_up(step, step.end(self._now_s()))

    def _note_missed(self, step: OpenStep, missed: Collection[str]) -> None:
        self._give_up(step, missed)
        self._pending.add(*(LogEvent("missed", c, step.misses[c].reason) for c in missed))

    def _give_up(self, step: OpenStep, missed: Collection[str]) -> None:
        """Withdraw the jobs of clients that are no longer waited for; their updates may still come."""
        self._late.expect(step, missed, self.state.table)
        for client_id in missed:
            self._members.withdraw_job(client_id)

    async def _abandon(self, step: OpenStep) -> None:
        """End the open round without a commit; log the ε that its clients spent on it.

        A client at work may be charging the job. The server waits a moment for it, then logs it as unsettled.
        """
        self._take_surplus(step)
        until_s = self._now_s() + (_DRAIN_S if self._settings.budget is not None else 0.0)
        while step.due and (left_s := until_s - self._now_s()) > 0:
            await self.pump(left_s)
        self._open = None
        out_s = ((client_id, self.state.elapsed_s - given.elapsed_s) for client_id, given in step.jobs.items())
        self.state.broken_off_s = {client_id: had_s for client_id, had_s in out_s if had_s > 0}
        events, answers = self._pending.take(), step.updates.values()
        spent = (reconciled(update) for update in answers if self._settings.budget is not None)
        self._pending.put_back([*step.events, *spent, *events, *self._members.owed(step, step.due)])

    async def _commit(self, record: RoundRecord, model: GlobalModel, step: OpenStep) -> None:
        """Make the model and the round durable, then the run's state."""
        pings, self._pings = tuple(self._pings), []
        later = self._pending.to_log()  # logged together with the model they name: a repeated round makes another one
        await self._store.commit_round(record, model.theta, pings, model.optimizer_state, later)
        self.model = model
        self.state.after_round(record)
        self._attempts.pop(record.round, None)  # asynchronous steps, of which a run may have many, leave one each
        self._unreported = record, list(step.updates.values())
        self._without_update = 0

    async def _try_again(self, record: RoundRecord) -> None:
        """Log an attempt without an update. The round is then tried again, with other clients if there are any.

        Too many such attempts in a row end the run. An attempt in which a client's budget ended does not count: others
        may have some left.
        """
        pings, self._pings = tuple(self._pings), []
        later = self._pending.to_log()
        await self._store.ask(lambda store: store.save_failed_attempt(record, pings, later))
        self.state.after_failed_attempt(record)
        self._attempts[record.round] = record.attempt + 1
        self._observer.attempt_failed(record, self.state)
        self._without_update = 0 if self._pending.retired() else self._without_update + 1
        if self._without_update >= self._settings.rounds_without_update_max:
            last = record.misses[-1]
            why = f"no client gave an update in {self._without_update} attempts in a row; the last one"
            self._end_run("failed", f"{why}, {last.client_id}: {last.reason}")

    async def _report_last_round(self, busy: AbstractSet[str] = frozenset()) -> None:
        """Do what can wait until the next job is out: acknowledge updates, report, evaluate, ping.

        The `busy` clients have that job, which itself acknowledges their earlier updates.
        """
        if self._unreported is None:
            return
        (record, updates), self._unreported = self._unreported, None
        for update in updates:
            if update.client_id not in busy:
                self._members.offer(update.client_id, pb.Ack(round=update.round, attempt=update.attempt))
        self._observer.round_committed(record, self.state, budgets_end(self.state, self._settings))
        every = self._settings.evaluation_every
        if every and record.round % every == 0 and record.round < self._settings.rounds:
            self._evaluator.consider(record.round, self.model.theta)
        self._members.send_pings(self._now_s(), busy)

    # -- waiting for clients

    async def _gather_clients(self) -> None:
        number = self.state.round + 1
        if number > self._settings.rounds:
            return  # the server was restarted after the last round: it needs no clients
        minimum, timeout_s = self._members.first_minimum(number), self._settings.connect_timeout_s
        if self._settings.expected is not None:
            self._observer.roll_call(number)
        self._observer.waiting(minimum)
        if not await self._wait_until(lambda: len(self._members) >= minimum, timeout_s):
            connected = f"only {len(self._members)} of clients.minimum = {minimum} clients connected"
            too_few = f"{connected} within {timeout_s:g} s; one that takes no part logs why"
            self._members.dismiss_all(too_few)
            raise PauseflError(too_few)

    async def _await_roll_call(self, round: int) -> None:
        """Wait for the clients that should come or go with this round; later rounds do not wait for late ones again."""
        if not self._members.call_roll(round):
            return
        await self._report_last_round()
        self._observer.roll_call(round)
        if not await self._wait_until(lambda: not self._members.late(), self._settings.connect_timeout_s):
            late = ", ".join(sorted(self._members.late()))
            self._observer.noticed(f"round {round} begins although {late} did not come or go as expected")

    async def _can_select(self) -> bool:
        """Whether a client can be chosen. If none comes within the timeout, the run ends, and False is returned."""

        def can_select() -> bool:
            return self._members.can_select(self._pending.retired())

        if not can_select():
            await self._report_last_round()  # no next job will follow soon
        if not await self._wait_until(can_select, self._settings.connect_timeout_s):
            self._end_run(*self._members.end_without_any(self._pending.retired()))
        return not self.stopped_because

    async def _newcomer_comes(self, too_few: str) -> bool:
        """Whether a client that was never here comes within the timeout, or the run is to end."""
        await self._report_last_round()  # no next job will follow soon
        to_come, wait_s = self._members.to_come(), self._settings.connect_timeout_s
        self._observer.noticed(f"{too_few}; {to_come} more may come: waiting up to {wait_s:g} s", "waiting")
        return await self._wait_until(lambda: self._members.to_come() < to_come, wait_s)

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Handle messages until `condition` holds or the run is to end; False after `timeout_s`."""
        patience = Patience(timeout_s, self._now_s())
        while not condition() and not self.stopped_because and not self.stopped:
            if (left_s := patience.left_s(self._now_s())) <= 0:
                return False
            await self.pump(left_s)
        return True

    # -- what clients send

    def _register(self, message: Register) -> None:
        client_id, ledger = message.hello.client_id, message.hello.ledger
        self._pending.add(*self._members.register(message, self.state.round))
        job = None if self._open is None else self._open.returned(client_id, self._now_s())
        if job is not None:
            # The client lost its stream and is back. It gets the same job, and so answers with the same bytes.
            self._members.offer(client_id, job)
        # It may still work on a job that it had when a stream broke, and charge it after this hello.
        owed = self._members.withdraw_job(client_id) if job is None else None
        if ledger.HasField("at_work"):  # a client of 0.1.0 does not say it
            owed = (ledger.at_work.round, ledger.at_work.attempt) if ledger.at_work.round else None
        if owed and self._settings.budget is not None and (job is None or job.key != owed):
            self._pending.add(unsettled(client_id, *owed))

    def _lose(self, message: Lost) -> None:
        if (event := self._members.remove(message.peer, message.reason, self.state.round)) is None:
            return
        self._pending.add(event)
        if self._open is not None:
            until_s = self._now_s() + (self._settings.rejoin_timeout_s if message.may_return else 0.0)
            self._open.lost(event.client_id, until_s, message.handed_over_s)

    def _take_update(self, update: Update) -> None:
        table, step, client_id = self.state.table, self._open, update.client_id
        proven, used = table.known_releases(client_id)
        used = max(used, self._late.kept_release(client_id))
        if step is not None and client_id in step.updates:
            used = max(used, step.updates[client_id].release.participation)
        try:
            check_release(update.release, self._settings.budget, proven, used)
            if step is None or not step.lacks(update):
                self._take_late(update)
                return
        except WireError as error:
            self._take_refusal(Refusal(client_id, update.round, update.attempt, "rejected", str(error), update.release))
            return
        is_early = self._settings.is_asynchronous and (step.is_answered or self._settings.asynchronous.rule == "fedat")
        if is_early and not self.stopped_because:
            self._surplus[client_id] = update
            step.due[client_id] = math.inf
        else:
            self._use(step, update)

    def _use(self, step: OpenStep, update: Update) -> None:
        update = with_stop_before(update, self.state.usual_propagation_s.get(update.client_id, 0.0))
        step.take(update, self.state.table, self._now_s())

    def _take_surplus(self, step: OpenStep) -> None:
        """Use kept updates, as many as the step needs while these clients are at work; all of them if the run ends."""
        if self._settings.is_asynchronous:
            step.needed = updates_needed(self._settings, self.state, self.state.table.rows(step.due))
        surplus, self._surplus = self._surplus, {}
        for update in surplus.values():
            self._take_update(update)

    def _take_whole(self, step: OpenStep) -> None:
        """Use the kept answers to one job for the step, once all of the job's clients have answered."""
        for update in () if step.updates else step.whole(self._surplus):
            self._use(step, self._surplus.pop(update.client_id))
            step.needed = len(step.updates)

    def _take_late(self, update: Update) -> None:
        self._pending.add(*self._late.take(update))
        if self._settings.keeps_late_updates:  # a kill before the next commit loses them: the log must show that
            begun = self._open.events if self._open is not None else ()
            number, events = self.state.round + 1, (*begun, *self._pending.waiting())
            self._store.offer(lambda store: store.save_late_events(number, events))

    def _take_refusal(self, refusal: Refusal) -> None:
        client_id, is_rejected = refusal.client_id, refusal.kind == "rejected"
        if is_rejected:
            self._observer.rejected(f"client {client_id} {refusal.reason}: rejected")
        is_spent = refusal.kind == "exhausted" and self._settings.budget is not None
        kind: EventKind = "retired" if is_spent else "rejected" if is_rejected else "missed"
        self._pending.add(LogEvent(kind, client_id, refusal.reason))
        if is_plausible(refusal.release, self._settings.budget):
            self._pending.add(reconciled(refusal))
        if self._open is not None and self._open.lacks(refusal):
            self._open.fail(client_id, "rejected" if is_rejected else "refused", refusal.reason, self._now_s())

    def _take_withdrawal(self, refusal: Refusal) -> None:
        client_id, round_, attempt = refusal.client_id, refusal.round, refusal.attempt
        if self._open is not None and self._open.lacks(refusal):  # the run is ending, and no miss will tell of the job
            self._open.settle(client_id)
            if self._settings.budget is not None:
                self._pending.add(unsettled(client_id, round_, attempt))
        self._pending.add(LogEvent("withdrawn", client_id, refusal.reason, job_round=round_, job_attempt=attempt))

    # -- the end

    async def _finish(self) -> None:
        await self._report_last_round()
        if self._open is not None:  # jobs are out for a step that will not be committed
            for client_id in self._open.due:
                self._members.withdraw_job(client_id)
            await self._abandon(self._open)
        self._pending.add(*(dropped(update, "the run ended") for update, _ in self._late.hand_over()))
        number = self.state.round + 1
        events = *self._fold_events(number), *self._pending.take()
        await self._store.ask(lambda store: store.save_late_events(number, events, is_end=True))
        self._observer.finished(self.state, self.stopped_because, events)
        self._members.dismiss_all(self.stopped_because)
