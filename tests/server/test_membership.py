"""The round loop with fake clients and a real log: which clients are admitted, and which are lost, late or wrong."""

import asyncio
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pausefl_process.events import Notice, WaitingForClients
from pausefl_proto.budget import Release
from pausefl_proto.errors import PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, Manifest, TensorSpec, digest
from pausefl_server.rounds.messages import Refusal
from pausefl_server.selection.policies.baselines import All, Random
from rigs.coordinator import BUDGET, SIZE, FakePeer, MakeRig, averaged

# -- admission

ANOTHER = Manifest((TensorSpec("v", (SIZE,)),)).to_message()
ANOTHER_REST = Manifest((TensorSpec("w", (SIZE,)),), constants="c0ffee").to_message()
ANOTHER_TYPE = pb.Manifest(tensors=[pb.Tensor(name="w", shape=[SIZE], dtype="float64")])
WRONG_HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "another protocol": ({"protocol_version": PROTOCOL_VERSION + 1}, "protocol version"),
    "the name of somebody connected": ({"client_id": "a"}, "'a' is connected already"),
    "no data": ({"n_examples": 0}, "has 0 examples, must be 1 to"),
    "more data than can be": ({"n_examples": 10**9 + 1}, "has 1000000001 examples, must be 1 to 1000000000"),
    "another model": ({"manifest": ANOTHER}, "tensors differ in name, shape or order"),
    "another rest of the model": ({"manifest": ANOTHER_REST}, "frozen parameters or buffers differ"),
    # Refused for good: such a client need not try again.
    "another model, under the name of somebody connected": ({"client_id": "a", "manifest": ANOTHER}, "tensors differ"),
    "another dtype": ({"manifest": ANOTHER_TYPE}, "only float32"),
    "another schedule": ({"ledger": pb.Ledger(schedule="cheaper")}, "privacy differs"),
    "no ledger": ({"ledger": pb.Ledger()}, "privacy differs"),
    "more spent than the budget": ({"ledger": pb.Ledger(schedule="agreed", released=1, epsilon_spent=11.0)}, "ledger"),
    "spent no number": ({"ledger": pb.Ledger(schedule="agreed", released=1, epsilon_spent=math.nan)}, "ledger"),
    "less than nothing spent": ({"ledger": pb.Ledger(schedule="agreed", released=1, epsilon_spent=-1.0)}, "ledger"),
}


@pytest.mark.parametrize("what", WRONG_HELLOS)
async def test_who_does_not_fit_is_refused_with_a_reason_and_the_run_goes_on(rig: MakeRig, what: str) -> None:
    changes, reason = WRONG_HELLOS[what]
    async with rig(rounds=2).playing("a") as r:
        with pytest.raises(WireError, match=reason):
            await r.register(r.peer("z"), **changes)
        assert r.rejected() == 1
        await r.join("b")
    assert r.coordinator.state.table.ids == ["a", "b"]


async def test_a_ledger_older_than_the_servers_mirror_is_refused(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=2).playing() as r:
        a, b = await r.join("a"), await r.join("b", manual=True)
        await b.play(1)
        await b.next_job()  # round 1 is in the log
        await r.lose(a)
        with pytest.raises(WireError, match="counts 0 releases, the server knows of 1"):
            await r.join("a", released=0)
        await r.join("a", released=a.released)
        await b.answer(2)


async def test_what_is_waited_for_is_what_the_next_round_waits_for(rig: MakeRig) -> None:
    expected = {1: frozenset("a"), 2: frozenset("ab")}.__getitem__
    settings: dict[str, Any] = {"minimum_clients": 2, "expected": expected, "privacy": None}
    async with rig(rounds=1, **settings).running("a") as r:
        await r.played()
    assert [(e.connected, e.minimum) for e in r.shown_of(WaitingForClients)] == [(0, 1), (1, 1)]
    async with rig(rounds=2, **settings).playing("ab") as r:  # goes on
        assert [e.missing for e in r.shown_of(WaitingForClients)] == [("a", "b")]


async def test_a_client_that_leaves_before_round_1_is_missing_again(rig: MakeRig) -> None:
    async with rig(rounds=1, minimum_clients=2, expected=lambda _: frozenset("ab")).playing() as r:
        await r.lose(await r.join("b"))
        await r.join("a")
        await r.join("b")
    assert [e.missing for e in r.shown_of(WaitingForClients)] == [("a", "b"), ("a",), ("b",), ()]


async def test_a_run_without_enough_clients_says_so(rig: MakeRig) -> None:
    async with rig(minimum_clients=2, connect_timeout_s=0.05).running() as r:
        a = await r.join("a")
        with pytest.raises(PauseflError, match=r"^only 1 of clients\.minimum = 2 clients connected within ") as told:
            await r.played()
        await asyncio.wait_for(a.goodbye.wait(), 20)
    assert a.dismissed == pb.Goodbye(reason=str(told.value), final=True), "it does not wait for a run that is over"


async def test_a_run_without_rounds_left_waits_for_nobody(rig: MakeRig) -> None:
    async with rig(rounds=0, connect_timeout_s=0.05).running() as r:
        await r.played()
        assert r.coordinator.stopped_because == "all rounds done"


async def test_a_run_that_everybody_left_ends(rig: MakeRig) -> None:
    async with rig(rounds=100, minimum_clients=1, connect_timeout_s=0.05, rejoin_timeout_s=0.0).playing() as r:
        await r.lose(await r.join_and_work("a"))
    assert (r.coordinator.outcome, r.coordinator.stopped_because) == ("failed", "no client is connected")
    assert r.events() == [("left", "a"), ("missed", "a")]
    (failed,) = r.store.log().failed_attempts()
    assert (r.store.rounds(), failed.observations, failed.model_digest) == ([], (), digest(r.theta_0))


async def test_a_newcomer_takes_part_in_the_next_round(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=1).playing() as r:
        a = await r.join_and_work("a")
        b = await r.join("b")
        assert b.jobs.empty()
        await a.answer(1)
        await a.play(2)
    assert [t.chosen for t in r.store.rounds()] == [("a",), ("a", "b")]
    assert r.coordinator.state.table.joined_round.tolist() == [1, 2]


async def test_a_round_begins_when_those_expected_have_come_and_gone(rig: MakeRig) -> None:
    there = {1: "ab", 2: "abc", 3: "bc"}
    async with rig(rounds=3, expected=lambda t: frozenset(there[t])).playing() as r:
        a, _ = await r.join("a"), await r.join("b")
        calls = await r.until_called(2)
        assert len(r.store.rounds()) == 1
        await r.join("c")
        calls += await r.until_called(3)
        assert len(r.store.rounds()) == 2
        await r.lose(a)
    assert [t.chosen for t in r.store.rounds()] == [tuple(there[t]) for t in (1, 2, 3)]
    left = [(e.client_id, e.detail) for t in r.store.rounds() for e in t.events if e.kind == "left"]
    assert left == [("a", "it is away now, as its availability says")]
    assert (r.coordinator.state.table.joined_round.tolist(), max(calls)) == ([1, 1, 2], 3)


async def test_who_comes_between_rounds_is_in_the_log_before_its_first_job(rig: MakeRig) -> None:
    """The client may charge that job. If the server is killed then, its log must know the client."""
    there = {1: "ab", 2: "abc"}
    async with rig(rounds=2, expected=lambda t: frozenset(there[t])).playing("ab") as r:
        await r.until_called(2)
        c = await r.join_and_work("c")
        assert ("joined", "c") in [(event.kind, event.client_id) for event in r.store.late_events()]
        await c.answer(2)


async def test_who_does_not_come_as_expected_is_waited_for_once(rig: MakeRig) -> None:
    settings = {"rounds": 3, "connect_timeout_s": 0.2, "expected": lambda t: frozenset("abz" if t > 1 else "ab")}
    async with rig(**settings).played_by("ab") as r:
        assert [t.chosen for t in r.store.rounds()] == [("a", "b")] * 3
        (said,) = [e.message for e in r.shown_of(Notice) if "as expected" in e.message]
        assert said == "round 2 begins although z did not come or go as expected"


# -- lost, late and wrong clients


async def test_who_gives_no_answer_is_missed_and_its_late_update_only_charged(rig: MakeRig) -> None:
    async with rig(rounds=2, round_timeout_s=0.05).playing("a") as r:
        b = await r.join_and_work("b")
        await b.next_job()  # the job of round 2; round 1 ended without b
        await b.answer(1, b.release())
        await b.answer(2)
    first, second = r.store.rounds()
    assert [o.client_id for o in first.observations] == ["a"]
    assert [o.client_id for o in second.observations] == ["a", "b"]
    np.testing.assert_allclose(r.coordinator.model.theta, averaged(averaged(r.theta_0, 1, "a"), 2, "ab"), atol=1e-6)
    assert [e for e in r.events() if e[1] == "b"] == [("missed", "b"), ("late", "b"), ("reconciled", "b")]
    assert [e.job_round for e in (*second.events, *r.store.late_events()) if e.kind == "late"] == [1]
    assert (r.spent("b"), r.rejected()) == ((2, BUDGET.spent(2)), 0)


async def test_who_comes_back_within_the_round_gets_the_same_job_timed_from_the_first_hand_over(rig: MakeRig) -> None:
    async with rig(rounds=1).playing("a") as r:
        b = await r.join("b", manual=True)
        job = await b.next_job()
        await r.lose(b, handed_over_s=job.ready_s + 0.25)
        again = await r.join("b", manual=True)
        sent_again = await again.next_job()
        assert sent_again.messages is job.messages
        await again.answer(1)
    assert (job.handed_over_s, sent_again.handed_over_s, sent_again.ready_s) == (None, job.ready_s + 0.25, job.ready_s)
    assert [o.client_id for o in r.store.rounds()[0].observations] == ["a", "b"]
    assert r.events() == [("left", "b")]


async def test_who_answered_and_then_left_is_used_and_gets_no_second_job(rig: MakeRig) -> None:
    async with rig(rounds=1).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        await a.next_job()
        await b.play(1)
        await r.lose(b)
        again = await r.join("b", manual=True, released=1)
        await a.answer(1)
    assert [o.client_id for o in r.store.rounds()[0].observations] == ["a", "b"]
    assert (again.jobs.empty(), again.acknowledged) == (True, [1])


async def test_who_does_not_come_back_in_time_is_missed(rig: MakeRig) -> None:
    async with rig(rounds=3, rejoin_timeout_s=0.02).playing("a") as r:
        await r.lose(await r.join_and_work("b"))
    assert [t.chosen for t in r.store.rounds()] == [("a", "b"), ("a",), ("a",)]
    assert r.events() == [("left", "b"), ("missed", "b")]


async def test_the_end_of_an_old_stream_does_not_end_the_new_one(rig: MakeRig) -> None:
    async with rig(rounds=2).playing("a") as r:
        old = await r.join_and_work("b")
        await r.lose(old)
        new = await r.join("b", manual=True)
        await r.lose(old)
        for t in (1, 2):
            await new.play(t)
    assert r.events() == [("left", "b")]


@pytest.mark.parametrize(
    ("kind", "settings"), [("refused", {}), ("exhausted", {"privacy": None})], ids=["cannot", "spent without privacy"]
)
async def test_a_client_that_cannot_misses_and_stays(rig: MakeRig, kind: Any, settings: dict[str, Any]) -> None:
    async with rig(rounds=2, **settings).playing("a") as r:
        b = await r.join_and_work("b")
        await r.coordinator.tell(Refusal("b", 1, 1, kind, "out of memory"))
        await b.play(2)
    assert (r.events(), r.rejected(), r.coordinator.outcome) == ([("missed", "b")], 0, "completed")


WRONG_RELEASES: dict[str, tuple[Release, bool]] = {
    "the wrong epsilon": (Release(1, BUDGET.epsilon(2), BUDGET.spent(1)), True),
    "the wrong sum": (Release(1, BUDGET.epsilon(1), BUDGET.spent(3)), False),
    "an epsilon that is no number": (Release(1, math.nan, math.nan), False),
    "any in a run without privacy": (Release(1, 1.0, 1.0), False),
}


@pytest.mark.parametrize("what", WRONG_RELEASES)
async def test_an_update_whose_release_does_not_fit_is_not_used(rig: MakeRig, what: str) -> None:
    release, is_believed = WRONG_RELEASES[what]
    async with rig(rounds=1, **({"privacy": None} if "without" in what else {})).playing("a") as r:
        await (await r.join("b", manual=True)).play(1, release)
    assert [o.client_id for o in r.store.rounds()[0].observations] == ["a"]
    assert (r.rejected(), r.spent("b")) == (1, (1, BUDGET.spent(1)) if is_believed else (0, 0.0))


async def test_what_a_rejected_update_cost_is_believed_upwards_only(rig: MakeRig) -> None:
    async with rig(rounds=2).playing("a") as r:
        b = await r.join("b", manual=True, released=5)
        for t, participation in ((1, 7), (2, 3)):
            await b.next_job()
            release = Release(participation, BUDGET.epsilon(participation), BUDGET.spent(participation))
            await r.coordinator.tell(Refusal("b", t, 1, "rejected", "checksum does not match", release))
    assert r.spent("b") == (7, BUDGET.spent(7))


async def test_nobody_answers_for_somebody_who_was_not_asked(rig: MakeRig) -> None:
    async with rig(Random(1), rounds=1).playing() as r:
        peers = {c: await r.join(c, manual=True) for c in "ab"}
        asked = await asyncio.wait_for(r.asked.get(), 20)
        (other,) = [p for p in peers.values() if p is not asked]
        await other.answer(1)
        await asked.answer(1)
    assert [o.client_id for o in r.store.rounds()[0].observations] == [asked.client_id]
    assert (r.rejected(), r.spent(other.client_id)) == (1, (1, BUDGET.spent(1)))


async def test_a_client_whose_stream_takes_nothing_holds_nobody_up(rig: MakeRig) -> None:
    """Its mailbox fills up round by round; the rounds must not wait for room in it."""
    async with rig(rounds=70, round_timeout_s=0.05, rest_rounds_max=0).playing("a") as r:
        frozen = FakePeer(r, "b")  # its actor never runs
        await r.register(frozen)
        r.peers.remove(frozen)  # it receives no goodbye
    assert Counter(r.events())["missed", "b"] == 70
    assert len(r.store.rounds()) == 70


async def test_a_late_answer_does_not_keep_the_next_job_from_being_withdrawn(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, quorum=0.5).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        await b.next_job()
        await a.play(1)
        await b.next_job()
        await b.answer(1)
        await a.play(2)
    assert b.withdrawn == [(1, 1), (2, 1)]
