"""The round loop with fake clients and a real log: what is committed, what is charged, and who is let in."""

import asyncio
import dataclasses
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.actor import Actor
from pausefl.budget import Budget
from pausefl.errors import PauseflError, WireError
from pausefl.honesty import HostReport
from pausefl.v1 import federation_pb2 as pb
from pausefl.wire import PROTOCOL_VERSION, Manifest, Tensor, Vector, digest
from pausefl_server.aggregation import Aggregation
from pausefl_server.checkpoint import Checkpoint
from pausefl_server.clients import ClientTable, IntArray
from pausefl_server.evaluation import EvaluatorActor
from pausefl_server.ledger import Release
from pausefl_server.messages import Acknowledge, Dismiss, Dispatch, Lost, Refusal, Register, Shutdown, Update
from pausefl_server.optimizers import ServerOptimizer
from pausefl_server.records import Event, RoundRecord, Timing
from pausefl_server.rounds import Coordinator
from pausefl_server.selection.base import Context, Inspection, Policy, Selection
from pausefl_server.selection.everyone import All
from pausefl_server.selection.pause import Pause
from pausefl_server.selection.uniform import Random
from pausefl_server.settings import Privacy, ServerSettings
from pausefl_server.state import RunState, replay
from pausefl_server.store import Store, StoreActor
from pausefl_server.telemetry import Telemetry

SIZE = 8
MANIFEST = Manifest((Tensor("w", (SIZE,)),))
BUDGET = Budget(epsilon_budget=10.0, eta=0.25)
PRIVATE = Privacy(BUDGET, "coordinate", "agreed")
EXAMPLES = {"a": 10, "b": 30, "c": 60, "d": 100}

SETTINGS = ServerSettings(
    run_id="test",
    seed=1,
    rounds=3,
    minimum_clients=2,
    manifest=MANIFEST,
    privacy=PRIVATE,
    signal="round_trip",
    time_scale=1.0,
    tau_min_s=0.05,
    connect_timeout_s=20.0,
    round_timeout_s=20.0,
    rejoin_timeout_s=20.0,
    evaluation_every=0,
)


def update_of(client_id: str, round: int) -> Vector:
    rng = np.random.default_rng([round, *client_id.encode()])
    return rng.standard_normal(SIZE, np.float32)


def latency_of(client_id: str, round: int) -> float:
    return 0.25 * (1 + ord(client_id[0]) % 5) + round / 64


class FakePeer(Actor[Any]):
    """A client and its actor in one: it answers jobs by itself unless `manual`, and keeps its own ledger."""

    def __init__(self, rig: "Rig", client_id: str, *, manual: bool = False, released: int = 0) -> None:
        super().__init__(f"client {client_id}")
        self.client_id = client_id
        self.released = released
        self.jobs: asyncio.Queue[Dispatch] = asyncio.Queue()
        self.acknowledged: list[int] = []
        self.dismissed: Dismiss | None = None
        self.goodbye = asyncio.Event()
        self._rig = rig
        self._manual = manual

    async def receive(self, message: Any) -> None:
        match message:
            case Dispatch():
                self.jobs.put_nowait(message)
                self._rig.asked.put_nowait(self)
                if not self._manual:
                    await self.answer(message.round)
            case Acknowledge():
                self.acknowledged.append(message.round)
            case Dismiss():
                self.dismissed = message
                self.goodbye.set()

    async def next_job(self) -> Dispatch:
        async with asyncio.timeout(20):
            return await self.jobs.get()

    def release(self) -> Release:
        """Charge the next release to its own ledger."""
        if self._rig.settings.privacy is None:
            return Release()
        self.released += 1
        return Release(self.released, BUDGET.epsilon(self.released), BUDGET.spent(self.released))

    async def answer(self, round: int, release: Release | None = None, **changes: Any) -> None:
        await self._rig.coordinator.tell(self.update(round, release or self.release(), **changes))

    def update(self, round: int, release: Release, **changes: Any) -> Update:
        fields: dict[str, Any] = {
            "client_id": self.client_id,
            "round": round,
            "attempt": 1,
            "vector": update_of(self.client_id, round),
            "timing": Timing(latency_of(self.client_id, round), train_s=0.125),
            "drawn_down_s": 0.0,
            "drawn_up_s": 0.0,
            "release": release,
            "loss": None,
            "statistics": {},
            "bytes_down": 100,
            "bytes_up": 50,
            "arrived_s": time.monotonic(),
            "host": HostReport(),
        }
        return Update(**(fields | changes))

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


class Rig:
    """A coordinator with its real store and log, and nobody connected yet."""

    def __init__(self, folder: Path, policy: Policy | None = None, **changes: Any) -> None:
        self.settings = dataclasses.replace(SETTINGS, **changes)
        self.policy = policy or All(2)
        self.store = Store(folder / "run.db")
        self.checkpoint = Checkpoint(folder / "checkpoints")
        self.telemetry = Telemetry(self.settings)
        self.shown: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.asked: asyncio.Queue[FakePeer] = asyncio.Queue()
        self.theta_0 = np.linspace(-1, 1, SIZE, dtype=np.float32)
        store_actor = StoreActor(self.store, self.checkpoint)
        self._actors: list[Actor[Any]] = [
            store_actor,
            EvaluatorActor(None, store_actor, self.telemetry, self._show),
        ]
        self.coordinator = Coordinator(
            self.settings,
            RunState.start(self.policy, self.settings.seed),
            self.theta_0,
            store_actor,
            self._actors[1],  # type: ignore[arg-type]
            self.telemetry,
            self._show,
            late_events=[],
        )
        self._group: asyncio.TaskGroup | None = None
        self._started: list[FakePeer] = []
        self._played: asyncio.Task[None] | None = None

    def _show(self, event: Mapping[str, Any]) -> None:
        self.shown.append(dict(event))
        self._news.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        self.peers: list[FakePeer] = []  # the registered ones
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for actor in self._actors:
                    group.create_task(actor.run())
                self._played = asyncio.ensure_future(self.coordinator.run())
                try:
                    yield self
                finally:
                    if not self._played.done():
                        self._played.cancel()
                    await asyncio.gather(self._played, return_exceptions=True)
                    for actor in (*self._started, *self._actors):
                        actor.stop()
        finally:
            self.checkpoint.close()
            self.store.close()

    def peer(self, client_id: str, **options: Any) -> FakePeer:
        """A client with an actor that runs, not registered yet."""
        assert self._group is not None
        peer = FakePeer(self, client_id, **options)
        self._group.create_task(peer.run())
        self._started.append(peer)
        return peer

    async def join(self, client_id: str, **options: Any) -> FakePeer:
        peer = self.peer(client_id, **options)
        await self.register(peer)
        return peer

    async def register(self, peer: FakePeer, **changes: Any) -> pb.Welcome:
        hello = peer.hello()
        for name, value in changes.items():
            if isinstance(value, (pb.Ledger, pb.Manifest)):
                getattr(hello, name).CopyFrom(value)
            else:
                setattr(hello, name, value)
        welcome: pb.Welcome = await self.coordinator.ask(Register(hello, peer))  # type: ignore[arg-type]
        self.peers.append(peer)
        return welcome

    async def lose(self, peer: FakePeer, reason: str = "its connection broke") -> None:
        peer.stop()
        await self.coordinator.tell(Lost(peer, reason))  # type: ignore[arg-type]

    async def played(self) -> "Rig":
        """Wait until the run is over, and for the goodbyes."""
        assert self._played is not None
        async with asyncio.timeout(30):
            await self._played
            for peer in self.peers:
                if not peer.stopped:
                    await peer.goodbye.wait()
        self.assert_the_log_tells_all()
        return self

    def assert_the_log_tells_all(self) -> None:
        """Replaying the log, and what came after its last round, gives the state the run ended with."""
        live, replayed = self.coordinator.state, replay(self.policy, self.settings.seed, self.store.rounds())
        replayed.before_round(replayed.round + 1, self.store.late_events())
        for field in dataclasses.fields(live.table):
            mine, theirs = getattr(live.table, field.name), getattr(replayed.table, field.name)
            if isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
            else:
                assert mine == theirs, field.name
        for name in ("round", "total_latency_s", "wall_clock_s", "policy_state"):
            assert getattr(live, name) == getattr(replayed, name), name

    async def until_shown(self, kind: str, round: int) -> list[dict[str, Any]]:
        """All events of this kind, once there is one of this round."""
        async with asyncio.timeout(20):
            while not any(e["kind"] == kind and e["round"] == round for e in self.shown):
                self._news.clear()
                await self._news.wait()
        return [e for e in self.shown if e["kind"] == kind]

    def spent(self, client_id: str) -> tuple[int, float]:
        """Releases and ε of a client in the server's mirror."""
        table = self.coordinator.state.table
        row = table.row_of[client_id]
        return int(table.released[row]), float(table.epsilon_spent[row])

    def events(self) -> list[tuple[str, str]]:
        """(kind, client) of all that happened, the joins at the start left out."""
        everything = [e for r in self.store.rounds() for e in r.events] + self.store.late_events()
        return [(e.kind, e.client_id) for e in everything if e.kind != "joined"]

    def rejected(self) -> int:
        return self.telemetry.now.rejected


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
    return lambda policy=None, **changes: Rig(tmp_path, policy, **changes)


MakeRig = Callable[..., Rig]


def averaged(theta: Vector, round: int, clients: str) -> Vector:
    """Eq. (2) in float64."""
    weights = np.array([EXAMPLES[c] for c in clients], np.float64)
    mean = sum(w * update_of(c, round).astype(np.float64) for w, c in zip(weights, clients, strict=True))
    return (theta + mean / weights.sum()).astype(np.float32)  # type: ignore[no-any-return]


def digests_of_models(records: list[RoundRecord]) -> list[str]:
    return [r.model_digest for r in records]


# -- whole rounds


async def test_rounds_are_averaged_by_data_size_committed_and_acknowledged(rig: MakeRig) -> None:
    async with rig(rounds=4, minimum_clients=3).running() as r:
        peers = [await r.join(c) for c in "cab"]
        await r.played()
        theta = r.theta_0
        for record in r.store.rounds():
            theta = averaged(theta, record.round, "abc")
        np.testing.assert_allclose(r.coordinator.theta, theta, atol=1e-5)
        loaded = r.checkpoint.load(4, r.store.rounds()[-1].model_digest)
        assert loaded is not None
        assert loaded.tobytes() == r.coordinator.theta.tobytes()
        assert [record.chosen for record in r.store.rounds()] == [("a", "b", "c")] * 4
        assert r.coordinator.stopped_because == "all rounds done"
        # A job acknowledges all before it; after the last round it is said.
        assert [p.acknowledged for p in peers] == [[4]] * 3
        assert [p.dismissed for p in peers] == [Dismiss("all rounds done", final=True)] * 3


async def test_an_observation_says_what_was_measured(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        await r.join("a", released=4)
        await r.join("b")
        await r.played()
        (record,) = r.store.rounds()
        a, b = record.observations
        assert (a.client_id, a.participation, a.epsilon) == ("a", 5, BUDGET.epsilon(5))
        assert (b.client_id, b.participation, b.epsilon_spent) == ("b", 1, BUDGET.spent(1))
        assert (a.n_examples, a.bytes_down, a.bytes_up, a.timing.train_s) == (10, 100, 50, 0.125)
        assert record.round_latency_s == max(latency_of(c, 1) for c in "ab") == r.coordinator.state.total_latency_s


@pytest.mark.parametrize(("signal", "latency_s"), [("round_trip", 0.125 + 3.5), ("communication", 3.5)])
async def test_the_policys_signal_is_latency_at_the_emulated_scale(rig: MakeRig, signal: str, latency_s: float) -> None:
    async with rig(rounds=1, minimum_clients=1, signal=signal, time_scale=0.25).running() as r:
        peer = await r.join("a", manual=True)
        await peer.next_job()
        await peer.answer(1, timing=Timing(1.0, train_s=0.125))
        await r.played()
        assert r.store.rounds()[0].observations[0].latency_s == latency_s


@dataclass(frozen=True)
class Suspicious(All):
    """Writes down each update's first value and lets nobody but "a" and "c" into the model."""

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        admitted = np.array([table.ids[row] in "ac" for row in rows])
        return Inspection([{"first": float(update[0])} for update in updates], admitted)


async def test_a_policy_sees_the_updates_and_may_keep_one_out_of_the_model(rig: MakeRig) -> None:
    async with rig(Suspicious(2), rounds=1, minimum_clients=3).running() as r:
        for c in "cba":
            await r.join(c)
        await r.played()
        (record,) = r.store.rounds()
        np.testing.assert_allclose(r.coordinator.theta, averaged(r.theta_0, 1, "ac"), atol=1e-6)
        found = {o.client_id: o.statistics for o in record.observations}
        assert found == {c: {"first": float(update_of(c, 1)[0])} for c in "abc"}
        assert r.spent("b") == (1, BUDGET.spent(1))  # it was released all the same


async def test_rule_and_optimizer_make_the_model_and_the_state_is_committed(rig: MakeRig) -> None:
    momentum = ServerOptimizer("fedavgm", learning_rate=0.5)
    changes = {"rounds": 3, "minimum_clients": 3, "aggregation": Aggregation("median"), "optimizer": momentum}
    async with rig(**changes).running() as r:
        for c in "bca":
            await r.join(c)
        await r.played()
        theta, m = r.theta_0.astype(np.float64), np.zeros(SIZE)
        for t in (1, 2, 3):
            m = 0.9 * m + np.median([update_of(c, t) for c in "abc"], axis=0)
            theta += 0.5 * m
        np.testing.assert_allclose(r.coordinator.theta, theta, atol=1e-5)
        state = r.store.optimizer_state(3)
        assert state is not None
        np.testing.assert_allclose(state, m, atol=1e-5)


async def test_whoever_answers_first_the_model_is_the_same(tmp_path: Path) -> None:
    digests = []
    for order in ("abc", "cba", "bca"):
        folder = tmp_path / order
        folder.mkdir()
        async with Rig(folder, rounds=1, minimum_clients=3).running() as r:
            peers = {c: await r.join(c, manual=True) for c in "abc"}
            for peer in peers.values():
                await peer.next_job()
            for c in order:
                await peers[c].answer(1)
            await r.played()
            digests += digests_of_models(r.store.rounds())
    assert len(set(digests)) == 1


async def test_the_same_seed_chooses_the_same_clients_whatever_order_they_came_in(tmp_path: Path) -> None:
    chosen = []
    for order in ("abcd", "dcab"):
        folder = tmp_path / order
        folder.mkdir()
        async with Rig(folder, Random(2), rounds=10, minimum_clients=4).running() as r:
            for c in order:
                await r.join(c)
            await r.played()
            chosen.append([record.chosen for record in r.store.rounds()])
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) > 1


@dataclass(frozen=True)
class Twice(Policy):
    """The first client twice and the second once, weighed by hand."""

    def select(self, state: Any, context: Context) -> Selection:  # noqa: ARG002
        return Selection(np.array([0, 0, 1]), np.full(3, 1 / 3), {"energy": 2.5}, cluster_penalty_s=0.375)


async def test_a_client_drawn_twice_trains_once_and_counts_twice(rig: MakeRig) -> None:
    async with rig(Twice(3), rounds=1).running() as r:
        a, b = await r.join("a"), await r.join("b")
        await r.played()
        assert (a.jobs.qsize(), b.jobs.qsize()) == (1, 1)
        (record,) = r.store.rounds()
        assert (record.chosen, len(record.observations)) == (("a", "a", "b"), 2)
        assert (record.details, record.cluster_penalty_s) == ({"energy": 2.5}, 0.375)
        expected = r.theta_0 + (2 * update_of("a", 1) + update_of("b", 1)) / 3
        np.testing.assert_allclose(r.coordinator.theta, expected, atol=1e-6)
        assert r.coordinator.state.table.chosen.tolist() == [2, 1]


async def test_without_privacy_nothing_is_spent(rig: MakeRig) -> None:
    async with rig(Pause(2), privacy=None).running() as r:
        for c in "ab":
            await r.join(c)
        await r.played()
        assert all(o.participation == 0 == o.epsilon_spent for t in r.store.rounds() for o in t.observations)
        assert r.spent("a") == (0, 0.0)


async def test_every_client_gets_the_same_bytes(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        peers = [await r.join(c) for c in "ab"]
        await r.played()
        one, other = [await p.next_job() for p in peers]
        assert one.messages is other.messages


# -- who is let in

WRONG_HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "another protocol": ({"protocol_version": PROTOCOL_VERSION + 1}, "protocol version"),
    "no name": ({"client_id": ""}, "client id is empty"),
    "the name of somebody connected": ({"client_id": "a"}, "'a' is connected already"),
    "no data": ({"n_examples": 0}, "has 0 examples, must be 1 to"),
    "more data than can be": ({"n_examples": 2**64 - 1}, "examples, must be 1 to"),
    "another model": (
        {"manifest": Manifest((Tensor("v", (SIZE,)),)).to_message()},
        "tensors differ in name, shape or order",
    ),
    "another dtype": (
        {"manifest": pb.Manifest(tensors=[pb.Tensor(name="w", shape=[SIZE], dtype="float64")])},
        "only float32",
    ),
    "another schedule": ({"ledger": pb.Ledger(schedule="cheaper")}, "privacy differs"),
    "no ledger": ({"ledger": pb.Ledger()}, "privacy differs"),
    "more spent than the budget": ({"ledger": pb.Ledger(schedule="agreed", released=1, epsilon_spent=11.0)}, "ledger"),
    "an epsilon that is no number": (
        {"ledger": pb.Ledger(schedule="agreed", released=1, epsilon_spent=math.nan)},
        "ledger",
    ),
    "less than nothing spent": ({"ledger": pb.Ledger(schedule="agreed", released=1, epsilon_spent=-1.0)}, "ledger"),
}


@pytest.mark.parametrize("what", WRONG_HELLOS)
async def test_who_does_not_fit_is_refused_with_a_reason_and_the_run_goes_on(rig: MakeRig, what: str) -> None:
    changes, reason = WRONG_HELLOS[what]
    async with rig(rounds=2).running() as r:
        await r.join("a")
        with pytest.raises(WireError, match=reason):
            await r.register(r.peer("z"), **changes)
        assert r.rejected() == 1
        await r.join("b")
        await r.played()
        assert r.coordinator.state.table.ids == ["a", "b"]


async def test_a_ledger_older_than_the_servers_mirror_is_refused(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=2).running() as r:
        a, b = await r.join("a"), await r.join("b", manual=True)
        await b.next_job()
        await b.answer(1)
        await b.next_job()  # round 1 is in the log
        await r.lose(a)
        with pytest.raises(WireError, match="counts 0 releases, the server knows of 1"):
            await r.join("a", released=0)
        await r.join("a", released=a.released)
        await b.answer(2)
        await r.played()


async def test_a_run_without_enough_clients_says_so(rig: MakeRig) -> None:
    async with rig(minimum_clients=2, connect_timeout_s=0.05).running() as r:
        await r.join("a")
        with pytest.raises(PauseflError, match=r"only 1 of clients\.minimum = 2 clients connected within 0\.05 s"):
            await r.played()


async def test_a_run_without_rounds_left_waits_for_nobody(rig: MakeRig) -> None:
    async with rig(rounds=0, connect_timeout_s=0.05).running() as r:
        await r.played()
        assert r.coordinator.stopped_because == "all rounds done"


async def test_a_run_that_everybody_left_ends(rig: MakeRig) -> None:
    async with rig(rounds=100, minimum_clients=1, connect_timeout_s=0.05, rejoin_timeout_s=0.0).running() as r:
        peer = await r.join("a", manual=True)
        await peer.next_job()
        await r.lose(peer)
        await r.played()
        assert r.coordinator.stopped_because == "no client is connected"
        assert r.events() == [("left", "a"), ("missed", "a")]
        (record,) = r.store.rounds()
        assert (record.observations, record.model_digest) == ((), digest(r.theta_0))


async def test_a_newcomer_takes_part_in_the_next_round(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=1).running() as r:
        a = await r.join("a", manual=True)
        await a.next_job()
        b = await r.join("b")
        assert b.jobs.empty()
        await a.answer(1)
        await a.next_job()
        await a.answer(2)
        await r.played()
        assert [t.chosen for t in r.store.rounds()] == [("a",), ("a", "b")]
        assert r.coordinator.state.table.joined_round.tolist() == [1, 2]


async def test_a_round_begins_when_those_expected_have_come_and_gone(rig: MakeRig) -> None:
    there = {1: "ab", 2: "abc", 3: "bc"}
    async with rig(rounds=3, expected=lambda t: frozenset(there[t])).running() as r:
        a, _ = await r.join("a"), await r.join("b")
        calls = [event["round"] for event in await r.until_shown("roll-call", 2)]
        assert len(r.store.rounds()) == 1
        await r.join("c")
        calls += [event["round"] for event in await r.until_shown("roll-call", 3)]
        assert len(r.store.rounds()) == 2
        await r.lose(a)
        await r.played()
        assert [t.chosen for t in r.store.rounds()] == [tuple(there[t]) for t in (1, 2, 3)]
        assert r.coordinator.state.table.joined_round.tolist() == [1, 1, 2]
        assert max(calls) == 3


async def test_who_does_not_come_as_expected_is_waited_for_once(rig: MakeRig) -> None:
    settings = {"rounds": 3, "connect_timeout_s": 0.2, "expected": lambda t: frozenset("abz" if t > 1 else "ab")}
    async with rig(**settings).running() as r:
        await r.join("a")
        await r.join("b")
        await r.played()
        assert [t.chosen for t in r.store.rounds()] == [("a", "b")] * 3
        (said,) = [e["message"] for e in r.shown if "as expected" in e.get("message", "")]
        assert said == "round 2 begins although z did not come or go as expected"


# -- who is lost, late or wrong


async def test_who_gives_no_answer_is_missed_and_its_late_update_only_charged(rig: MakeRig) -> None:
    async with rig(rounds=2, round_timeout_s=0.05).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        await b.next_job()
        await b.next_job()  # round 2: round 1 went without it
        late = b.release()
        await b.answer(1, late)
        await b.answer(2)
        await r.played()
        first, second = r.store.rounds()
        assert [o.client_id for o in first.observations] == ["a"]
        assert [o.client_id for o in second.observations] == ["a", "b"]
        np.testing.assert_allclose(r.coordinator.theta, averaged(averaged(r.theta_0, 1, "a"), 2, "ab"), atol=1e-6)
        assert [e for e in r.events() if e[1] == "b"] == [("missed", "b"), ("rejected", "b"), ("reconciled", "b")]
        assert r.spent("b") == (2, BUDGET.spent(2))
        assert r.coordinator.rejected_updates == r.rejected() == 1


async def test_who_comes_back_within_the_round_gets_the_same_job(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        job = await b.next_job()
        await r.lose(b)
        again = await r.join("b", manual=True)
        assert (await again.next_job()).messages is job.messages
        await again.answer(1)
        await r.played()
        assert [o.client_id for o in r.store.rounds()[0].observations] == ["a", "b"]
        assert r.events() == [("left", "b")]


async def test_who_answered_and_then_left_is_used_and_gets_no_second_job(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        a, b = await r.join("a", manual=True), await r.join("b", manual=True)
        await a.next_job()
        await b.next_job()
        await b.answer(1)
        await r.lose(b)
        again = await r.join("b", manual=True, released=1)
        await a.answer(1)
        await r.played()
        assert [o.client_id for o in r.store.rounds()[0].observations] == ["a", "b"]
        assert again.jobs.empty()
        assert again.acknowledged == [1]


async def test_who_does_not_come_back_in_time_is_missed(rig: MakeRig) -> None:
    async with rig(rounds=3, rejoin_timeout_s=0.02).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        await b.next_job()
        await r.lose(b)
        await r.played()
        assert [t.chosen for t in r.store.rounds()] == [("a", "b"), ("a",), ("a",)]
        assert r.events() == [("left", "b"), ("missed", "b")]


async def test_the_end_of_an_old_stream_does_not_end_the_new_one(rig: MakeRig) -> None:
    async with rig(rounds=2).running() as r:
        await r.join("a")
        old = await r.join("b", manual=True)
        await old.next_job()
        await r.lose(old)
        new = await r.join("b", manual=True)
        await r.lose(old)
        for t in (1, 2):
            await new.next_job()
            await new.answer(t)
        await r.played()
        assert r.events() == [("left", "b")]


async def test_a_client_that_cannot_misses_the_round_and_stays(rig: MakeRig) -> None:
    async with rig(rounds=2).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        await b.next_job()
        await r.coordinator.tell(Refusal("b", 1, "out of memory", rejected=False))
        await b.next_job()
        await b.answer(2)
        await r.played()
        assert r.events() == [("missed", "b")]
        assert r.rejected() == 0


WRONG_RELEASES: dict[str, tuple[Release, bool]] = {
    "none at all": (Release(), False),
    "the wrong epsilon": (Release(1, BUDGET.epsilon(2), BUDGET.spent(1)), True),
    "the wrong sum": (Release(1, BUDGET.epsilon(1), BUDGET.spent(3)), False),
    "an epsilon that is no number": (Release(1, math.nan, math.nan), False),
    "an index that does not fit": (Release(2, BUDGET.epsilon(1), BUDGET.spent(1)), False),
}


@pytest.mark.parametrize("what", WRONG_RELEASES)
async def test_an_update_whose_release_does_not_fit_is_not_used(rig: MakeRig, what: str) -> None:
    release, is_believed = WRONG_RELEASES[what]
    async with rig(rounds=1).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        await b.next_job()
        await b.answer(1, release)
        await r.played()
        assert [o.client_id for o in r.store.rounds()[0].observations] == ["a"]
        assert r.spent("b") == ((1, BUDGET.spent(1)) if is_believed else (0, 0.0))
        assert r.rejected() == 1


async def test_a_release_in_a_run_without_privacy_is_not_used(rig: MakeRig) -> None:
    async with rig(rounds=1, privacy=None).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        await b.next_job()
        await b.answer(1, Release(1, 1.0, 1.0))
        await r.played()
        assert [o.client_id for o in r.store.rounds()[0].observations] == ["a"]
        assert r.spent("b") == (0, 0.0)


async def test_what_a_rejected_update_cost_is_believed_upwards_only(rig: MakeRig) -> None:
    async with rig(rounds=2).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True, released=5)
        for t, participation in ((1, 7), (2, 3)):
            await b.next_job()
            release = Release(participation, BUDGET.epsilon(participation), BUDGET.spent(participation))
            await r.coordinator.tell(Refusal("b", t, "checksum does not match", rejected=True, release=release))
        await r.played()
        assert r.spent("b") == (7, BUDGET.spent(7))


async def test_nobody_answers_for_somebody_who_was_not_asked(rig: MakeRig) -> None:
    async with rig(Random(1), rounds=1).running() as r:
        peers = {c: await r.join(c, manual=True) for c in "ab"}
        asked = await asyncio.wait_for(r.asked.get(), 20)
        (other,) = [p for p in peers.values() if p is not asked]
        await other.answer(1)
        await asked.answer(1)
        await r.played()
        assert [o.client_id for o in r.store.rounds()[0].observations] == [asked.client_id]
        assert r.rejected() == 1
        assert r.spent(other.client_id) == (1, BUDGET.spent(1))


async def test_a_client_whose_stream_takes_nothing_holds_nobody_up(rig: MakeRig) -> None:
    """Its mailbox fills up round by round; the rounds must not wait for room in it."""
    async with rig(rounds=100, round_timeout_s=0.002).running() as r:
        await r.join("a")
        frozen = FakePeer(r, "b")  # its actor never runs
        await r.register(frozen)
        r.peers.remove(frozen)  # nor takes its goodbye
        await r.played()
        missed = Counter(r.events())
        assert missed["missed", "b"] == 100
        assert len(r.store.rounds()) == 100


# -- budgets


async def test_a_client_that_has_spent_its_budget_retires(rig: MakeRig) -> None:
    async with rig(All(1), rounds=3).running() as r:
        await r.join("a")
        b = await r.join("b", manual=True)
        await b.next_job()
        await r.coordinator.tell(Refusal("b", 1, "the budget is spent", rejected=False, exhausted=True))
        await r.played()
        assert [t.chosen for t in r.store.rounds()] == [("a", "b"), ("a",), ("a",)]
        assert r.events() == [("retired", "b")]


async def test_a_run_ends_when_nobody_has_budget_left(rig: MakeRig) -> None:
    async with rig(All(1), rounds=100, connect_timeout_s=0.05).running() as r:
        for c in "ab":
            await r.join(c, manual=True)
        for p in r.peers:
            await p.next_job()
            await r.coordinator.tell(Refusal(p.client_id, 1, "spent", rejected=False, exhausted=True))
        await r.played()
        assert "budget" in r.coordinator.stopped_because
        assert r.coordinator.state.table.retired.all()


# -- the end


async def test_a_shutdown_gives_the_round_up_and_keeps_what_it_cost(rig: MakeRig) -> None:
    async with rig(rounds=10).running() as r:
        a, b = await r.join("a", manual=True), await r.join("b", manual=True)
        for p in (a, b):
            await p.next_job()
            await p.answer(1)
        for p in (a, b):
            await p.next_job()
        await a.answer(2)
        await r.coordinator.ask(Shutdown("stopped by SIGINT"))
        await r.played()
        assert [t.round for t in r.store.rounds()] == [1]
        assert r.coordinator.stopped_because == "stopped by SIGINT"
        assert r.spent("a") == (2, BUDGET.spent(2))  # of which one was not used
        assert r.spent("b") == (1, BUDGET.spent(1))
        late = r.store.late_events()
        assert [(e.kind, e.client_id, e.released) for e in late] == [("reconciled", "a", 2)]
        assert b.dismissed == Dismiss("stopped by SIGINT", final=True)


async def test_a_shutdown_before_the_first_round_keeps_who_had_joined(rig: MakeRig) -> None:
    async with rig(minimum_clients=2).running() as r:
        await r.join("a")
        await r.coordinator.ask(Shutdown("stopped by SIGTERM"))
        await r.played()
        assert r.store.rounds() == []
        assert [(e.kind, e.client_id) for e in r.store.late_events()] == [("joined", "a")]


async def test_after_the_end_nobody_is_left_waiting(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        for c in "ab":
            await r.join(c)
        await r.played()
        with pytest.raises(PauseflError):
            await r.join("c")
        assert all(isinstance(e, Event) for e in r.store.late_events())


async def test_a_round_is_told_to_whoever_watches(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        for c in "ab":
            await r.join(c)
        await r.played()
    waiting = [e["connected"] for e in r.shown if e["kind"] == "waiting"]
    assert waiting == [0, 1, 2]
    (shown,) = [e for e in r.shown if e["kind"] == "round"]
    assert (shown["round"], shown["rounds"], shown["chosen"], shown["connected"]) == (1, 1, ["a", "b"], 2)
    assert shown["max_epsilon_spent"] == BUDGET.spent(1)
