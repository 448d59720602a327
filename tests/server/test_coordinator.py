"""The round loop with fake clients and a real log: what is committed, what is charged, and how a run ends."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl_process.events import RoundCommitted, WaitingForClients
from pausefl_proto.arrays import IntArray
from pausefl_proto.budget import Release
from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.records import Ping, Timing
from pausefl_server.rounds.messages import Lost, Refusal, Shutdown
from pausefl_server.selection.base import Context, Inspection, Policy, Selection
from pausefl_server.selection.policies.baselines import All, Random
from pausefl_server.selection.policies.pause import Pause
from rigs.command import query
from rigs.coordinator import BUDGET, SIZE, CoordinatorRig, MakeRig, averaged, latency_of, update_of


async def test_rounds_are_averaged_by_data_size_committed_and_acknowledged(rig: MakeRig) -> None:
    async with rig(rounds=4, minimum_clients=3).playing() as r:
        peers = await r.join_all("cab")
    theta = r.theta_0
    for record in r.store.rounds():
        theta = averaged(theta, record.round, "abc")
    np.testing.assert_allclose(r.coordinator.model.theta, theta, atol=1e-5)
    loaded = r.checkpoint.load(4, r.store.rounds()[-1].model_digest)
    np.testing.assert_array_equal(loaded, r.coordinator.model.theta, strict=True)
    assert [record.chosen for record in r.store.rounds()] == [("a", "b", "c")] * 4
    assert r.coordinator.stopped_because == "all rounds done"
    # A job acknowledges all answers before it. After the last round, an explicit message does.
    assert [p.acknowledged for p in peers] == [[4]] * 3
    assert [p.dismissed for p in peers] == [pb.Goodbye(reason="all rounds done", final=True)] * 3
    first, *others = (p.jobs.get_nowait().messages for p in peers)
    assert all(messages is first for messages in others), "every client gets the same bytes"


async def test_an_observation_says_what_was_measured_and_a_round_is_told_to_whoever_watches(rig: MakeRig) -> None:
    async with rig(rounds=1).playing() as r:
        await r.join("a", released=4)
        await r.join("b")
    (record,) = r.store.rounds()
    a, b = record.observations
    assert (a.client_id, a.participation, a.epsilon) == ("a", 5, BUDGET.epsilon(5))
    assert (b.client_id, b.participation, b.epsilon_spent) == ("b", 1, BUDGET.spent(1))
    assert (a.n_examples, a.bytes_down, a.bytes_up, a.timing.train_s) == (10, 100, 50, 0.125)
    assert record.round_latency_s == max(latency_of(c, 1) for c in "ab") == r.coordinator.state.total_latency_s
    assert [e.connected for e in r.shown_of(WaitingForClients)] == [0, 1, 2]
    (shown,) = r.shown_of(RoundCommitted)
    assert (shown.round, shown.rounds, shown.chosen, shown.connected) == (1, 1, ("a", "b"), 2)
    assert shown.max_epsilon_spent == BUDGET.spent(5)


@pytest.mark.parametrize(("signal", "latency_s"), [("round_trip", 0.125 + 3.5), ("communication", 3.5)])
async def test_the_policys_signal_is_latency_at_the_emulated_scale(rig: MakeRig, signal: str, latency_s: float) -> None:
    async with rig(rounds=1, minimum_clients=1, signal=signal, time_scale=0.25).playing() as r:
        await (await r.join("a", manual=True)).play(1, timing=Timing(1.0, train_s=0.125))
    assert r.store.rounds()[0].observations[0].latency_s == latency_s


@dataclass(frozen=True)
class Suspicious(All):
    """Records each update's first value, and admits only "a" and "c" to the model."""

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        admitted = np.array([table.ids[row] in "ac" for row in rows])
        return Inspection([{"first": float(update[0])} for update in updates], admitted)


async def test_a_policy_sees_the_updates_and_may_keep_one_out_of_the_model(rig: MakeRig) -> None:
    async with rig(Suspicious(2), rounds=1, minimum_clients=3).played_by("cba") as r:
        (record,) = r.store.rounds()
        np.testing.assert_allclose(r.coordinator.model.theta, averaged(r.theta_0, 1, "ac"), atol=1e-6)
        found = {o.client_id: o.statistics for o in record.observations}
        assert found == {c: {"first": float(update_of(c, 1)[0])} for c in "abc"}
        assert r.spent("b") == (1, BUDGET.spent(1))  # its release counts nevertheless


@dataclass(frozen=True)
class Careless(All):
    """Reports NaN, as a division by a norm of 0 does."""

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        return Inspection([{"cosine": math.nan} for _ in updates], np.ones(len(rows), np.bool_))


@dataclass(frozen=True)
class Unprepared(All):
    """Cannot load what it needs."""

    def warm_up(self) -> None:
        raise RuntimeError("no such search")


async def test_a_policy_that_cannot_warm_up_ends_the_run_at_once(rig: MakeRig) -> None:
    began_s = time.monotonic()
    async with rig(Unprepared(2), connect_timeout_s=60.0).running() as r:
        with pytest.raises(RuntimeError, match="no such search"):
            await r.played()
        assert time.monotonic() - began_s < 60, "the event loop was busy with a wait that nothing could end"


@dataclass(frozen=True)
class Wild(Policy):
    """Chooses a row that no client has."""

    def select(self, *_: Any) -> Selection:
        return Selection(np.array([0, 99]))


@pytest.mark.parametrize(
    ("policy", "said", "jobs"),
    [(Careless(2), r"its inspect returned statistics with", 1), (Wild(2), r"it chose row 99: must be one of", 0)],
)
async def test_a_policy_that_cannot_be_right_ends_the_run_in_one_line_before_it_is_written(
    rig: MakeRig, policy: Policy, said: str, jobs: int
) -> None:
    async with rig(policy, rounds=1).running() as r:
        peers = await r.join_all("ab")
        with pytest.raises(PauseflError, match=rf"^selection\.policy: in round 1 {said} [^\n]*$"):
            await r.played()
        assert [peer.jobs.qsize() for peer in peers] == [jobs] * 2
        assert r.store.rounds() == []


async def test_rule_and_optimizer_make_the_model_and_the_state_is_committed(rig: MakeRig) -> None:
    momentum = ServerOptimizer("fedavgm", learning_rate=0.5)
    changes = {"rounds": 3, "minimum_clients": 3, "aggregation": Aggregation("median"), "optimizer": momentum}
    async with rig(**changes).played_by("bca") as r:
        theta, m = r.theta_0.astype(np.float64), np.zeros(SIZE)
        for t in (1, 2, 3):
            m = 0.9 * m + np.median([update_of(c, t) for c in "abc"], axis=0)
            theta += 0.5 * m
        np.testing.assert_allclose(r.coordinator.model.theta, theta, atol=1e-5)
        state = r.store.optimizer_state(3)
        assert state is not None
        np.testing.assert_allclose(state, m, atol=1e-5)


async def test_whoever_answers_first_the_model_is_the_same(tmp_path: Path) -> None:
    digests = []
    for order in ("abc", "cba", "bca"):
        async with CoordinatorRig(tmp_path / order, rounds=1, minimum_clients=3).running() as r:
            peers = {c: await r.join(c, manual=True) for c in "abc"}
            for peer in peers.values():
                await peer.next_job()
            for c in order:
                await peers[c].answer(1)
            await r.played()
            digests += [record.model_digest for record in r.store.rounds()]
    assert len(set(digests)) == 1


async def test_the_same_seed_chooses_the_same_clients_whatever_order_they_came_in(tmp_path: Path) -> None:
    chosen = []
    for order in ("abcd", "dcab"):
        async with CoordinatorRig(tmp_path / order, Random(2), rounds=10, minimum_clients=4).played_by(order) as r:
            chosen.append([record.chosen for record in r.store.rounds()])
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) > 1


@dataclass(frozen=True)
class Twice(Policy):
    """Chooses the first client twice and the second once, with weights of its own."""

    def select(self, state: Any, context: Context) -> Selection:
        return Selection(np.array([0, 0, 1]), np.full(3, 1 / 3), {"energy": 2.5}, cluster_penalty_s=0.375)


async def test_a_client_drawn_twice_trains_once_and_counts_twice(rig: MakeRig) -> None:
    async with rig(Twice(3), rounds=1).playing() as r:
        a, b = await r.join("a"), await r.join("b")
    assert (a.jobs.qsize(), b.jobs.qsize()) == (1, 1)
    (record,) = r.store.rounds()
    assert (record.chosen, len(record.observations)) == (("a", "a", "b"), 2)
    assert (record.details, record.cluster_penalty_s) == ({"energy": 2.5}, 0.375)
    expected = r.theta_0 + (2 * update_of("a", 1) + update_of("b", 1)) / 3
    np.testing.assert_allclose(r.coordinator.model.theta, expected, atol=1e-6)
    assert r.coordinator.state.table.chosen.tolist() == [2, 1]


async def test_without_privacy_nothing_is_spent(rig: MakeRig) -> None:
    async with rig(Pause(2), privacy=None).played_by("ab") as r:
        assert all(o.participation == 0 == o.epsilon_spent for t in r.store.rounds() for o in t.observations)
        assert r.spent("a") == (0, 0.0)


async def test_a_client_that_has_spent_its_budget_retires(rig: MakeRig) -> None:
    async with rig(All(1), rounds=3).playing("a") as r:
        await r.join_and_work("b")
        await r.coordinator.tell(Refusal("b", 1, 1, "exhausted", "the budget is spent"))
    assert [t.chosen for t in r.store.rounds()] == [("a", "b"), ("a",), ("a",)]
    assert r.events() == [("retired", "b")]


async def test_a_round_is_reported_before_the_run_waits_for_clients(rig: MakeRig) -> None:
    async with rig(All(1), rounds=2, minimum_clients=1).playing() as r, asyncio.timeout(20):
        reported = asyncio.Event()
        r.on_shown = lambda event: reported.set() if isinstance(event, RoundCommitted) else None
        a = await r.join_and_work("a")
        r.coordinator.offer(a.update(1, a.release()))
        r.coordinator.offer(Lost(a, "its connection broke"))
        r.peers.remove(a)  # it receives no goodbye
        await reported.wait()
        await r.join("b")


async def test_a_run_ends_when_nobody_has_budget_left(rig: MakeRig) -> None:
    """A round whose clients turn out to have no budget left is not a failure."""
    async with rig(All(1), rounds=100, connect_timeout_s=0.05, rounds_without_update_max=1).playing() as r:
        await r.join_all("ab", manual=True)
        for p in r.peers:
            await p.next_job()
            await r.coordinator.tell(Refusal(p.client_id, 1, 1, "exhausted", "spent"))
    assert "budget" in r.coordinator.stopped_because
    assert r.coordinator.outcome == "budgets_spent"
    assert r.coordinator.state.table.retired.all()


@pytest.mark.parametrize(("comes", "clients"), [(True, 3), (False, 3), (False, 2)])
async def test_used_up_budgets_end_a_run_once_no_more_clients_can_come(rig: MakeRig, comes: bool, clients: int) -> None:
    wait_s = 0.05 if clients == 3 and not comes else 60.0
    settings = {"minimum_clients": 2, "clients": clients, "connect_timeout_s": wait_s}
    async with rig(All(2), rounds=2, **settings).playing() as r, asyncio.timeout(20):
        waits = asyncio.Event()
        r.on_shown = lambda event: waits.set() if "1 more may come" in str(event) else None
        a, b = await r.join_all("ab", manual=True)
        await b.next_job()
        await r.coordinator.tell(Refusal("b", 1, 1, "exhausted", "spent"))
        await a.play(1)
        if comes:
            await waits.wait()
            await r.join("c")
            await a.play(2)
    too_few = "privacy budgets: 1 of 2 clients may still release, and 2 are needed"
    assert r.coordinator.stopped_because == ("all rounds done" if comes else too_few)


@pytest.mark.usefixtures("short_drain")
async def test_a_shutdown_gives_the_round_up_and_keeps_what_it_cost(rig: MakeRig) -> None:
    async with rig(rounds=10).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        for p in (a, b):
            await p.play(1)
        for p in (a, b):
            await p.next_job()
        await a.answer(2)
        await r.coordinator.ask(Shutdown("stopped by SIGINT"))
    assert [t.round for t in r.store.rounds()] == [1]
    assert r.coordinator.stopped_because == "stopped by SIGINT"
    assert (r.spent("a"), r.spent("b")) == ((2, BUDGET.spent(2)), (1, BUDGET.spent(1))), "one of a was not used"
    late = r.store.late_events()
    assert [(e.kind, e.client_id, e.released) for e in late] == [("reconciled", "a", 2), ("unsettled", "b", 0)]
    assert b.dismissed == pb.Goodbye(reason="stopped by SIGINT", final=True)


async def test_a_client_that_answers_soon_after_a_shutdown_owes_nothing(rig: MakeRig) -> None:
    async with rig(rounds=10).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        await b.next_job()
        await a.answer(1)
        await r.coordinator.ask(Shutdown("stopped by SIGINT"))
        await r.coordinator.ask(Ping("a", 0.25))  # the answer comes once the round is given up
        await b.answer(1)
    assert [r.spent(client_id) for client_id in "ab"] == [(1, BUDGET.spent(1))] * 2
    assert not any(kind == "unsettled" for kind, _ in r.events())


async def test_a_ping_is_of_the_round_that_is_played(rig: MakeRig, tmp_path: Path) -> None:
    async with rig(rounds=2).playing() as r:
        peers = await r.join_all("ab", manual=True)
        for number in (1, 2):
            for peer in peers:
                await peer.next_job()
            if number == 2:
                await r.coordinator.ask(Ping("a", 0.25))
            for peer in peers:
                await peer.answer(number)
    assert query(tmp_path, "SELECT round, client_id, ping_s FROM pings") == [(2, "a", 0.25)]


async def test_a_shutdown_before_the_first_round_keeps_who_had_joined(rig: MakeRig) -> None:
    async with rig(minimum_clients=2).playing("a") as r:
        await r.coordinator.ask(Shutdown("stopped by SIGTERM"))
    assert r.store.rounds() == []
    assert [(e.kind, e.client_id) for e in r.store.late_events()] == [("joined", "a")]


async def test_after_the_end_nobody_is_left_waiting(rig: MakeRig) -> None:
    async with rig(rounds=1).played_by("ab") as r:
        with pytest.raises(PauseflError):
            await r.join("c")


async def test_a_round_is_told_also_where_no_client_is_left_for_the_next(rig: MakeRig) -> None:
    """Reports must not wait for the next job, since the server may wait long for clients before it."""
    told = asyncio.Event()
    async with rig(All(1), rounds=2, minimum_clients=1, connect_timeout_s=3600.0).running() as r:
        r.on_shown = lambda event: told.set() if isinstance(event, RoundCommitted) else None
        a = await r.join_and_work("a")
        r.coordinator.offer(a.update(1, a.release()))
        r.coordinator.offer(Lost(a, "it said goodbye", may_return=False))
        async with asyncio.timeout(20):
            await told.wait()
        assert r.telemetry.now.round == 1


async def test_a_refusal_of_an_earlier_round_ends_no_wait(rig: MakeRig) -> None:
    async with rig(rounds=2, round_timeout_s=0.5).playing("a") as r:
        b = await r.join_and_work("b")
        await b.next_job()  # the job of round 2; round 1 ended without b
        r.coordinator.offer(Refusal("b", 1, 1, "refused", "out of memory"))
        r.coordinator.offer(b.update(2, b.release()))
    assert [o.client_id for o in r.store.rounds()[1].observations] == ["a", "b"]


async def test_a_release_that_no_schedule_has_is_not_believed_of_an_answer_that_is_rejected(rig: MakeRig) -> None:
    async with rig(rounds=1).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        await a.next_job()
        r.coordinator.offer(Refusal("b", 1, 1, "rejected", "not finite", Release(50, 1.0, 9.0)))
        await a.answer(1)
        await b.next_job()
    assert r.spent("b") == (0, 0.0)
    assert [(miss.client_id, miss.kind) for miss in r.store.rounds()[0].misses] == [("b", "rejected")]


async def test_who_leaves_a_round_that_is_given_up_has_left_and_who_answered_it_spent_nothing(rig: MakeRig) -> None:
    async with rig(rounds=1, privacy=None).playing() as r:
        a = await r.join("a", manual=True)
        b = await r.join_and_work("b")
        await a.answer(1)
        await r.lose(b)
        await r.coordinator.tell(Shutdown("enough"))
    told = [(event.kind, event.client_id) for event in r.store.late_events()]
    assert told == [("joined", "a"), ("joined", "b"), ("left", "b")]
