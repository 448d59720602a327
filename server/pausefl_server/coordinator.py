"""The round loop: select, send, wait, aggregate, commit, acknowledge."""

import asyncio
import math
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from pausefl_process.host_monitor import UNWATCHED, Watch
from pausefl_proto.actor import Actor
from pausefl_proto.draws import generator
from pausefl_proto.errors import PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, Vector, digest, pack_job
from pausefl_server.admission import check_hello, joined
from pausefl_server.budget_exhaustion import budgets_end, too_few_left, used_up
from pausefl_server.clients import FloatArray
from pausefl_server.evaluation import Evaluate, EvaluatorActor
from pausefl_server.ledger import check_release, is_plausible
from pausefl_server.messages import (
    Acknowledge,
    Dismiss,
    Dispatch,
    Lost,
    Peer,
    Pinged,
    Refusal,
    Register,
    SendPing,
    Shutdown,
    Update,
)
from pausefl_server.monitoring.progress import Announcer, Progress
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.open_round import Flight, inspect, observe, reconciled
from pausefl_server.pings import Ping, PingRota
from pausefl_server.records import Event, EventKind, RoundRecord
from pausefl_server.selection.base import Context, Oracle, Selection
from pausefl_server.selection.validation import checked
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState
from pausefl_server.store import CommitRound, SaveLateEvents, StoreActor

Result = TypeVar("Result")

# Work shorter than this is done on the event loop: a thread and back costs 0.1 ms.
_QUICK_S = 0.001


class Coordinator(Actor[Register | Lost | Update | Pinged | Refusal | Shutdown]):
    """Runs the rounds and is the only one who changes the run's state. `stopped_because` says how it ended."""

    def __init__(
        self,
        settings: ServerSettings,
        state: RunState,
        theta: Vector,
        store: StoreActor,
        evaluator: EvaluatorActor,
        telemetry: Telemetry,
        progress: Progress,
        *,
        late_events: list[Event],
        first_attempt: int = 1,
        optimizer_state: Vector | None = None,
        oracle: Oracle | None = None,
        monitor: Watch = UNWATCHED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("coordinator", capacity=4096)
        self.state = state
        self.theta = theta
        self.rejected_updates = 0
        self.stopped_because = ""
        self._settings = settings
        self._optimizer_state = settings.optimizer.start(theta.size) if optimizer_state is None else optimizer_state
        self._store = store
        self._evaluator = evaluator
        self._telemetry = telemetry
        self._progress = progress
        self._announcer = Announcer(settings, progress)
        self._oracle = oracle
        self._monitor = monitor
        self._clock = clock
        self._peers: dict[str, Peer] = {}
        self._events = late_events
        self._digest = digest(theta)
        self._flight: Flight | None = None  # the round that is under way
        self._budget = settings.privacy.budget if settings.privacy else None
        self._attempt = first_attempt  # at the next round; above 1 where that was taken back
        self._began_s = math.nan  # when the run would have begun had it never been interrupted
        self._unreported: RoundRecord | None = None  # committed, but nobody was told yet
        self._rota = PingRota(settings.pings_per_s)
        self._pings: list[Ping] = []  # answered, but not in the log yet
        self._expected: frozenset[str] = frozenset()  # who was to be there in the last round
        self._selection_s = float("inf")  # how long the last selection took
        self._minimum = settings.minimum_clients  # how many the first round waits for

    async def work(self) -> None:
        """Play the rounds that are left, then dismiss all clients. PauseflError when no round could begin."""
        # Compiling takes seconds the first time on a machine; no round waits for it.
        await asyncio.gather(self._gather_clients(), asyncio.to_thread(self.state.policy.warm_up))
        with self._monitor.watching():
            await self._play_all()
        await self._finish()

    async def receive(self, message: Register | Lost | Update | Pinged | Refusal | Shutdown) -> pb.Welcome | None:
        """Take in what actors say while a round is under way."""
        match message:
            case Register():
                return await self._register(message)
            case Lost():
                self._lose(message)
            case Update():
                self._take_update(message)
            case Pinged(client_id, ping_s):
                self._pings.append(Ping(self.state.round + 1, client_id, ping_s))
                if (row := self.state.table.row_of.get(client_id)) is not None:
                    self._telemetry.pinged(row, ping_s)
            case Refusal():
                self._take_refusal(message)
            case Shutdown(reason):
                self.stopped_because = self.stopped_because or reason
        return None

    # -- rounds

    async def _play_all(self) -> None:
        while not self.stopped_because:
            if self.state.round >= self._settings.rounds:
                self.stopped_because = "all rounds done"
                continue
            await self._call_the_roll(self.state.round + 1)
            if await self._somebody_is_there():
                await self._play(self.state.round + 1)

    async def _play(self, round: int) -> None:
        attempt, self._attempt = self._attempt, 1
        if math.isnan(self._began_s):
            self._began_s = self._clock() - self.state.wall_clock_s
        began_s, began_cpu_s = self._clock(), time.process_time()
        events, self._events = tuple(self._events), []
        self.state.before_round(round, events)
        retired = used_up(self.state.table, self._budget)
        self.state.before_round(round, retired)
        events = (*events, *retired)
        self.stopped_because = self.stopped_because or too_few_left(self.state.table, self.state.policy.m)
        if self.stopped_because or not self.state.table.eligible().size:
            self._attempt, self._events = attempt, [*events, *self._events]
            return
        quick = self._selection_s < _QUICK_S and self.theta.nbytes <= MAX_FRAME_BYTES
        selection, job = await _off_loop(quick, self._prepare, round, attempt)
        chosen = tuple(self.state.table.ids[row] for row in selection.rows)
        flight = self._flight = self._send(job, chosen)
        await asyncio.sleep(0)  # let the job leave before anything else is done
        await self._tell_of_last_round(busy=flight.due.keys())
        await self._collect(flight)
        self._flight = None
        if self.stopped_because:
            # The round in flight is given up; what its clients spent on it is not.
            self._events = [*events, *self._events, *(reconciled(u) for u in flight.updates.values())]
            return
        await self._commit(flight, selection, events, began_s, began_cpu_s)

    async def _commit(
        self, flight: Flight, selection: Selection, events: tuple[Event, ...], began_s: float, began_cpu_s: float
    ) -> None:
        """Make the model of what came, and both it and the round durable."""
        quick = self.theta.nbytes * len(flight.chosen) <= MAX_FRAME_BYTES
        theta, optimizer_state, model_digest = await _off_loop(quick, self._aggregate, selection, flight)
        observations = tuple(flight.observations[c] for c in sorted(flight.observations))
        host = self._monitor.report(began_s, time.process_time() - began_cpu_s)
        suspect = self._settings.limits.doubts(
            host,
            (o.host for o in observations),
            self._settings.signal,
            total_delays=self._settings.total_delays,
        )
        record = RoundRecord(
            round=flight.job.round,
            attempt=flight.job.attempt,
            chosen=flight.chosen,
            weights=None if selection.weights is None else tuple(selection.weights.tolist()),
            observations=observations,
            events=events,
            round_latency_s=max((o.latency_s for o in observations), default=0.0),
            wall_clock_s=self._clock() - self._began_s,
            selection_s=self._selection_s,
            model_digest=model_digest,
            details=selection.details,
            cluster_penalty_s=selection.cluster_penalty_s,
            host=host,
            suspect=suspect,
        )
        pings, self._pings = tuple(self._pings), []
        await self._store.ask(CommitRound(record, theta, pings, optimizer_state))
        self.theta, self._optimizer_state, self._digest = theta, optimizer_state, model_digest
        self.state.after_round(record)
        self._unreported = record

    def _prepare(self, round: int, attempt: int) -> tuple[Selection, Dispatch]:
        """Select and frame."""
        settings, table = self._settings, self.state.table
        context = Context(
            round=round,
            table=table,
            eligible=table.eligible(),
            rng=generator(settings.seed, "selection", round, attempt),
            epsilon_budget=settings.privacy.budget.epsilon_budget if settings.privacy else None,
            tau_min_s=settings.tau_min_s,
            oracle=self._oracle,
            clock=time.monotonic,
        )
        started = time.perf_counter()
        selection = self.state.policy.select(self.state.policy_state, context)
        self._selection_s = time.perf_counter() - started
        checked(selection, context)
        schedule = settings.privacy.schedule if settings.privacy else ""
        began_s = self._clock()
        messages = pack_job(round, attempt, self.theta, self._digest, schedule)
        ready_s = self._clock()
        return selection, Dispatch(round, attempt, messages, ready_s - began_s, ready_s)

    def _send(self, job: Dispatch, chosen: tuple[str, ...]) -> Flight:
        until_s = self._clock() + self._settings.round_timeout_s
        flight = Flight(job, chosen, due=dict.fromkeys(chosen, until_s))
        for client_id in flight.due:  # once each, also where a policy has drawn one twice
            self._offer(client_id, job)
        return flight

    def _offer(self, client_id: str, message: Dispatch | Acknowledge | SendPing | Dismiss) -> None:
        """Say it to a client that is there; one whose stream takes nothing any more must hold nobody up."""
        if (peer := self._peers.get(client_id)) is not None:
            peer.offer(message)

    async def _tell_of_last_round(self, busy: AbstractSet[str] = frozenset()) -> None:
        """What can wait until the next job is out: acknowledgements, metrics, progress, evaluation.

        `busy` clients have that job, which acknowledges all before it.
        """
        record, self._unreported = self._unreported, None
        if record is None:
            return
        for observation in record.observations:
            if observation.client_id not in busy:
                self._offer(observation.client_id, Acknowledge(record.round, record.attempt))
        self._report(record)
        await self._evaluate(record.round)
        for client_id in self._rota.due(self._clock(), busy):
            self._offer(client_id, SendPing())

    async def _collect(self, flight: Flight) -> None:
        """Take messages until everybody due has answered, is overdue, or the run is to end."""
        while flight.due and not self.stopped_because:
            patience_s = min(flight.due.values()) - self._clock()
            if patience_s > 0 and await self.pump(patience_s):
                await self.drain()
            else:
                late = flight.give_up(self._clock())
                self._events += [Event("missed", client_id, "gave no answer in time") for client_id in late]

    def _aggregate(self, selection: Selection, flight: Flight) -> tuple[Vector, Vector, str]:
        """θ, its optimizer's state and its digest, from the updates that came and are admitted, in selection order."""
        admitted = inspect(flight, self.state.policy, self.state.table, selection)
        if not admitted:
            return self.theta, self._optimizer_state, self._digest
        weights: FloatArray
        if selection.weights is None:
            weights = self.state.table.n_examples[selection.rows[admitted]].astype(np.float64)
        else:
            weights = selection.weights[admitted]
        updates = [flight.updates[flight.chosen[i]].vector for i in admitted]
        change = self._settings.aggregation.combine(updates, weights)
        theta, state = self._settings.optimizer.step(self.theta, change, self._optimizer_state)
        return theta, state, digest(theta)

    def _report(self, record: RoundRecord) -> None:
        ends = budgets_end(self.state.table, self._budget, self.state.round, self.state.policy.m)
        self._telemetry.round_committed(record, self.state, ends)
        self._announcer.round_committed(
            record,
            self.state,
            self._clock(),
            ends=ends,
            connected=len(self._peers),
            rejected=self.rejected_updates,
        )

    async def _evaluate(self, round: int) -> None:
        every = self._settings.evaluation_every
        if every and round % every == 0 and round < self._settings.rounds and not self._evaluator.stopped:
            await self._evaluator.tell(Evaluate(round, self.theta, subset=True))

    # -- who is there

    async def _gather_clients(self) -> None:
        if self.state.round >= self._settings.rounds:
            return  # the server was started again after the last round: nobody need come
        timeout_s = self._settings.connect_timeout_s
        if self._settings.expected is not None:
            self._minimum = min(self._minimum, len(self._settings.expected(self.state.round + 1)))
            self._progress({"kind": "roll-call", "round": self.state.round + 1})
        self._progress({"kind": "waiting", "connected": 0, "minimum": self._minimum})
        if not await self._wait_until(lambda: len(self._peers) >= self._minimum, timeout_s):
            raise PauseflError(
                f"only {len(self._peers)} of clients.minimum = {self._minimum} clients connected within {timeout_s:g} s"
            )

    async def _call_the_roll(self, round: int) -> None:
        """Wait for those who come or go with this round; who does neither in time is not waited for again."""
        if self._settings.expected is None:
            return
        before, self._expected = self._expected, self._settings.expected(round)
        coming, going = self._expected - before, before - self._expected
        if not coming and not going:
            return
        await self._tell_of_last_round()
        self._progress({"kind": "roll-call", "round": round})

        def late() -> frozenset[str]:
            return (coming - self._peers.keys()) | (going & self._peers.keys())

        await self._wait_until(lambda: not late(), self._settings.connect_timeout_s)
        if late() and not self.stopped_because:
            message = f"round {round} begins although {', '.join(sorted(late()))} did not come or go as expected"
            self._announcer.say(message)

    async def _somebody_is_there(self) -> bool:
        """True when a client can be chosen; False, with the reason noted, when none came within the timeout."""
        if self._anybody() or await self._wait_until(self._anybody, self._settings.connect_timeout_s):
            return not self.stopped_because
        exhausted = bool(self.state.table.retired.any()) or any(event.kind == "retired" for event in self._events)
        self.stopped_because = "every client has spent its budget" if exhausted else "no client is connected"
        return False

    def _anybody(self) -> bool:
        retired, row_of = self.state.table.retired, self.state.table.row_of
        gone = {event.client_id for event in self._events if event.kind == "retired"}
        return any(c not in gone and not (c in row_of and retired[row_of[c]]) for c in self._peers)

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Take messages until `condition` holds or the run is to end; False after `timeout_s`."""
        until_s = self._clock() + timeout_s
        while not condition() and not self.stopped_because:
            left_s = until_s - self._clock()
            if left_s <= 0:
                return False
            await self.pump(left_s)
        return True

    async def _register(self, message: Register) -> pb.Welcome:
        hello, client_id = message.hello, message.hello.client_id
        try:
            check_hello(hello, self._settings, self.state.table, self._peers)
        except WireError as error:
            self._count_rejected(f"client {client_id!r} was refused: {error}")
            raise
        self._peers[client_id] = message.peer
        self._rota.join(client_id)
        self._events.append(joined(hello))
        self._telemetry.arrived(len(self._peers))
        if self.state.round:
            self._announcer.say(f"client {client_id} joined")
        else:
            self._progress({"kind": "waiting", "connected": len(self._peers), "minimum": self._minimum})
        if self._flight is not None and client_id in self._flight.due:
            # It was chosen, lost its stream and is back: the same job, so it sends the same bytes.
            self._flight.due[client_id] = self._clock() + self._settings.round_timeout_s
            self._offer(client_id, replace(self._flight.job, ready_s=self._clock()))
        return pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id=self._settings.run_id)

    def _lose(self, message: Lost) -> None:
        client_id = message.peer.client_id
        if self._peers.get(client_id) is not message.peer:
            return
        del self._peers[client_id]
        self._rota.leave(client_id)
        self._events.append(Event("left", client_id, message.reason))
        self._telemetry.departed(len(self._peers))
        if self._flight is not None and client_id in self._flight.due:
            due = self._flight.due
            due[client_id] = min(due[client_id], self._clock() + self._settings.rejoin_timeout_s)
        if self.state.round:
            self._announcer.say(f"client {client_id} left: {message.reason}")

    def _take_update(self, update: Update) -> None:
        table, flight, row = self.state.table, self._flight, self.state.table.row_of.get(update.client_id)
        mirrored, used = (int(table.released[row]), int(table.used[row])) if row is not None else (0, 0)
        try:
            if flight is None or not flight.lacks(update):
                raise WireError(f"round {update.round} is over, its update came too late")
            check_release(update.release, self._budget, mirrored, used)
        except WireError as error:
            refusal = Refusal(update.client_id, update.round, str(error), rejected=True, release=update.release)
            self._take_refusal(refusal)
            return
        flight.take(update, observe(update, table, self._settings, self._clock()))

    def _take_refusal(self, refusal: Refusal) -> None:
        client_id = refusal.client_id
        if refusal.rejected:
            self._count_rejected(f"client {client_id} {refusal.reason}: rejected")
        kind: EventKind = "retired" if refusal.exhausted else "rejected" if refusal.rejected else "missed"
        self._events.append(Event(kind, client_id, refusal.reason))
        if is_plausible(refusal.release, self._budget):
            self._events.append(reconciled(refusal))
        if self._flight is not None and refusal.round == self._flight.job.round:
            self._flight.due.pop(client_id, None)

    def _count_rejected(self, message: str) -> None:
        self.rejected_updates += 1
        self._telemetry.rejected()
        self._announcer.say(message)

    # -- the end

    async def _finish(self) -> None:
        await self._tell_of_last_round()
        await self._store.ask(SaveLateEvents(self.state.round + 1, tuple(self._events)))
        self.state.before_round(self.state.round + 1, self._events)
        self._telemetry.finished(self.state, self.stopped_because)
        for client_id in self._peers:
            self._offer(client_id, Dismiss(self.stopped_because))


async def _off_loop(quick: bool, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run in a thread while the event loop keeps listening, unless the hop would take longer than the work."""
    return function(*arguments) if quick else await asyncio.to_thread(function, *arguments)
