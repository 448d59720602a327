"""A coordinator with its real store and log. Its clients are actors of the test."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pausefl_process.events import Notice, ProgressEvent, RollCall
from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Budget, Release
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, Manifest, TensorSpec, Vector
from pausefl_server.actor import Actor
from pausefl_server.monitoring.observer import Observers
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Timing
from pausefl_server.rounds.coordinator import Coordinator
from pausefl_server.rounds.evaluation import EvaluateModel, EvaluatorActor
from pausefl_server.rounds.messages import Dispatch, Lost, Register, Update
from pausefl_server.selection.base import Policy
from pausefl_server.selection.policies.baselines import All
from pausefl_server.settings import PrivacySettings
from pausefl_server.state import RunState, StartingPoint, replay
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.restore import StoredModels, restore
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import StoreActor
from rigs.settings import server_settings

Shown = TypeVar("Shown")

SIZE = 8
MANIFEST = Manifest((TensorSpec("w", (SIZE,)),))
BUDGET = Budget(epsilon_budget=10.0, eta=0.25)
PRIVATE = PrivacySettings(BUDGET, "coordinate", "agreed")
EXAMPLES = {"a": 10, "b": 30, "c": 60, "d": 100}


def update_of(client_id: str, round: int) -> Vector:
    rng = np.random.default_rng([round, *client_id.encode()])
    return rng.standard_normal(SIZE, np.float32)


def latency_of(client_id: str, round: int) -> float:
    return 0.25 * (1 + ord(client_id[0]) % 5) + round / 64


def answer_of(client_id: str, round: int, release: Release, **changes: Any) -> Update:
    """A client's answer in the form in which its actor passes it to the coordinator."""
    fields: dict[str, Any] = {
        "client_id": client_id,
        "round": round,
        "attempt": 1,
        "vector": update_of(client_id, round),
        "timing": Timing(latency_of(client_id, round), train_s=0.125),
        "drawn_down_s": 0.0,
        "drawn_up_s": 0.0,
        "release": release,
        "loss": None,
        "statistics": {},
        "bytes_down": 100,
        "bytes_up": 50,
        "arrived_s": time.monotonic(),
        "host": HostReport(),
        "server_host": HostReport(),
        "is_resent": False,
        "still_before_s": 0.0,
    }
    return Update(**(fields | changes))


class FakePeer(Actor[Any]):
    """A client together with its actor. It answers jobs by itself unless `manual`, and keeps its own ledger."""

    def __init__(self, rig: "CoordinatorRig", client_id: str, *, manual: bool = False, released: int = 0) -> None:
        super().__init__(f"client {client_id}")
        self.client_id = client_id
        self.released = released
        self.jobs: asyncio.Queue[Dispatch] = asyncio.Queue()
        self.acknowledged: list[int] = []
        self.withdrawn: list[tuple[int, int]] = []
        self.dismissed: pb.Goodbye | None = None
        self.goodbye = asyncio.Event()
        self._rig = rig
        self._manual = manual

    async def receive(self, message: Any) -> None:
        match message:
            case Dispatch():
                self.jobs.put_nowait(message)
                self._rig.asked.put_nowait(self)
                if not self._manual:
                    await self.answer(message.round, attempt=message.attempt)
            case pb.Ack():
                self.acknowledged.append(message.round)
            case pb.Withdraw():
                self.withdrawn.append((message.round, message.attempt))
            case pb.Goodbye():
                self.dismissed = message
                self.goodbye.set()

    async def next_job(self) -> Dispatch:
        async with asyncio.timeout(20):
            return await self.jobs.get()

    def release(self) -> Release:
        """Charge the next release to the client's own ledger, and return it."""
        if self._rig.settings.privacy is None:
            return Release()
        self.released += 1
        return Release(self.released, BUDGET.epsilon(self.released), BUDGET.spent(self.released))

    async def answer(self, round: int, release: Release | None = None, **changes: Any) -> None:
        await self._rig.coordinator.tell(self.update(round, release or self.release(), **changes))

    async def play(self, round: int, release: Release | None = None, **changes: Any) -> None:
        """Wait for the next job and answer it."""
        await self.next_job()
        await self.answer(round, release, **changes)

    def update(self, round: int, release: Release, **changes: Any) -> Update:
        return answer_of(self.client_id, round, release, **changes)

    def hello(self) -> pb.Hello:
        hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            client_id=self.client_id,
            n_examples=EXAMPLES.get(self.client_id, 1),
            manifest=MANIFEST.to_message(),
        )
        if self._rig.settings.privacy is not None:
            spent = BUDGET.spent(self.released)
            hello.ledger.CopyFrom(pb.Ledger(schedule="agreed", released=self.released, epsilon_spent=spent))
        return hello


class CoordinatorRig:
    """A coordinator with its real store and log. It continues the run found in `folder`; no client is connected yet."""

    def __init__(
        self, folder: Path, policy: Policy | None = None, evaluate: EvaluateModel | None = None, **changes: Any
    ) -> None:
        self.settings = server_settings(SIZE, **{"privacy": PRIVATE, **changes})
        self.policy = policy or All(2)
        folder.mkdir(exist_ok=True)
        self.store = Store(folder / "run.db")
        self.checkpoint = Checkpoint(folder / "checkpoints")
        self._files = ExitStack()
        self._files.callback(self.checkpoint.close)
        self._files.callback(self.store.close)
        self.telemetry = Telemetry(self.settings)
        self.shown: list[ProgressEvent] = []
        self.on_shown: Callable[[ProgressEvent], None] = lambda _: None
        self._news = asyncio.Event()
        self.asked: asyncio.Queue[FakePeer] = asyncio.Queue()
        self.theta_0 = np.linspace(-1, 1, SIZE, dtype=np.float32)
        store_actor = StoreActor(self.store, self.checkpoint)
        observer = Observers(self.telemetry, ProgressReporter(self.settings, self._show))
        evaluator = EvaluatorActor(evaluate, store_actor, observer, waiting_max=1)
        self._actors: list[Actor[Any]] = [store_actor, evaluator]
        self.coordinator = Coordinator(self.settings, self.restored(), store_actor, evaluator, observer)
        self._group: asyncio.TaskGroup | None = None
        self._started: list[FakePeer] = []
        self._played: asyncio.Task[None] | None = None

    def restored(self) -> StartingPoint:
        """The state from which a starting server continues the run."""
        models = StoredModels(self.store, self.checkpoint, self.theta_0)
        return restore(self.settings, self.policy, models, self.telemetry.replayed, say=lambda _: None)

    def _show(self, event: ProgressEvent) -> None:
        self.shown.append(event)
        self.on_shown(event)
        self._news.set()

    @asynccontextmanager
    async def running(self, client_ids: str = "") -> AsyncIterator["CoordinatorRig"]:
        """Run the rig with these clients, one letter an id. The files are closed at the end of the block."""
        try:
            async with self._at_work(client_ids):
                yield self
        finally:
            self.close()

    @asynccontextmanager
    async def playing(self, client_ids: str = "") -> AsyncIterator["CoordinatorRig"]:
        """Run the rig as `running` does, and wait for the end of the run. The files stay open for later checks."""
        async with self._at_work(client_ids):
            yield self
            await self.played()

    @asynccontextmanager
    async def _at_work(self, client_ids: str) -> AsyncIterator[None]:
        self.peers: list[FakePeer] = []  # the registered ones
        async with asyncio.TaskGroup() as group:
            self._group = group
            for actor in self._actors:
                group.create_task(actor.run())
            self._played = asyncio.ensure_future(self.coordinator.run())
            try:
                await self.join_all(client_ids)
                yield
            finally:
                if not self._played.done():
                    self._played.cancel()
                await asyncio.gather(self._played, return_exceptions=True)
                for actor in (*self._started, *self._actors):
                    actor.stop()

    @asynccontextmanager
    async def played_by(self, client_ids: str) -> AsyncIterator["CoordinatorRig"]:
        """Yield the rig after these clients have played the run to its end."""
        async with self.running(client_ids):
            yield await self.played()

    def close(self) -> None:
        """Close the store and the checkpoint. Needed for a run that is not played."""
        self._files.close()

    def peer(self, client_id: str, **options: Any) -> FakePeer:
        """A client whose actor runs. It is not registered yet."""
        assert self._group is not None
        peer = FakePeer(self, client_id, **options)
        self._group.create_task(peer.run())
        self._started.append(peer)
        return peer

    async def join(self, client_id: str, **options: Any) -> FakePeer:
        peer = self.peer(client_id, **options)
        await self.register(peer)
        return peer

    async def join_all(self, client_ids: str, **options: Any) -> list[FakePeer]:
        """Register several clients, one letter an id."""
        return [await self.join(client_id, **options) for client_id in client_ids]

    async def join_and_work(self, client_id: str, **options: Any) -> FakePeer:
        """Register a client and wait for its first job, which the test has to answer."""
        peer = await self.join(client_id, manual=True, **options)
        await peer.next_job()
        return peer

    async def register(self, peer: FakePeer, **changes: Any) -> None:
        hello = peer.hello()
        for name, value in changes.items():
            if isinstance(value, (pb.Ledger, pb.Manifest)):
                getattr(hello, name).CopyFrom(value)
            else:
                setattr(hello, name, value)
        await self.coordinator.ask(Register(hello, peer))
        self.peers.append(peer)

    async def lose(self, peer: FakePeer, handed_over_s: float | None = None) -> None:
        peer.stop()
        await self.coordinator.tell(Lost(peer, "its connection broke", handed_over_s))

    async def played(self) -> "CoordinatorRig":
        """Wait for the end of the run and all goodbyes. Then check that the log replays to the same state."""
        assert self._played is not None
        async with asyncio.timeout(30):
            await self._played
            for peer in self.peers:
                if not peer.stopped:
                    await peer.goodbye.wait()
        self.assert_the_log_tells_all()
        return self

    async def written(self) -> None:
        """Wait until the store has written everything it has received."""
        await self._actors[0].ask(lambda _: None)

    def assert_the_log_tells_all(self) -> None:
        """Assert that replaying the log, with events after its last round, gives the state in which the run ended."""
        live, rounds = self.coordinator.state, self.store.rounds()
        fresh = RunState.start(self.policy, self.settings.seed, tau_min_s=self.settings.tau_min_s)
        replayed = replay(fresh, rounds, unfinished=self.store.log().failed_attempts())
        replayed.before_round(replayed.round + 1, self.store.late_events())
        for field in dataclasses.fields(live.table):
            mine, theirs = getattr(live.table, field.name), getattr(replayed.table, field.name)
            np.testing.assert_equal(mine, theirs, err_msg=field.name)
        for name in {field.name for field in dataclasses.fields(live)} - {"policy", "table", "broken_off_s"}:
            assert getattr(live, name) == getattr(replayed, name), name

    def shown_of(self, kind: type[Shown]) -> list[Shown]:
        """The shown events of this type."""
        return [event for event in self.shown if isinstance(event, kind)]

    async def until_called(self, round: int) -> list[int]:
        """Wait for a roll call of this round. Return the rounds of all roll calls until then."""
        async with asyncio.timeout(20):
            while round not in (calls := [event.round for event in self.shown_of(RollCall)]):
                self._news.clear()
                await self._news.wait()
        return calls

    async def until_noticed(self, text: str) -> None:
        """Wait until a notice contains this text."""
        async with asyncio.timeout(20):
            while not any(text in event.message for event in self.shown_of(Notice)):
                self._news.clear()
                await self._news.wait()

    def spent(self, client_id: str) -> tuple[int, float]:
        """A client's releases and spent ε as the server's table holds them."""
        table = self.coordinator.state.table
        row = table.row_of[client_id]
        return int(table.released[row]), float(table.epsilon_spent[row])

    def events(self) -> list[tuple[str, str]]:
        """Return (kind, client id) of all logged events except joins."""
        attempts = [attempt for record in self.store.rounds() for attempt in record.attempts]
        everything = [e for attempt in (*attempts, *self.store.log().failed_attempts()) for e in attempt.events]
        everything += self.store.late_events()
        return [(e.kind, e.client_id) for e in everything if e.kind != "joined"]

    def rejected(self) -> int:
        return self.telemetry.now.rejected


MakeRig = Callable[..., CoordinatorRig]


def averaged(theta: Vector, round: int, clients: str) -> Vector:
    """The average of eq. (2), computed in float64."""
    weights = np.array([EXAMPLES[c] for c in clients], np.float64)
    mean = sum(w * update_of(c, round).astype(np.float64) for w, c in zip(weights, clients, strict=True))
    return (theta + mean / weights.sum()).astype(np.float32)  # type: ignore[no-any-return]  # float32
