"""Rounds that end once enough clients have answered, and updates that arrive after their round."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl_proto.budget import Release
from pausefl_proto.errors import WireError
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.records import EventKind, LogEvent, Ping
from pausefl_server.rounds.deadline import answers_needed
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.late_updates import LateUpdates
from pausefl_server.rounds.messages import Dispatch, Shutdown
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.selection.base import Selection
from pausefl_server.selection.policies.baselines import All
from pausefl_server.settings import PrivacySettings
from rigs.coordinator import BUDGET, EXAMPLES, CoordinatorRig, FakePeer, MakeRig, answer_of, averaged, update_of
from rigs.log import table_of
from rigs.policies import FirstTwice
from rigs.settings import server_settings

KEEPS: dict[str, Any] = {"quorum": 0.5, "keeps_late_updates": True}


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 20), st.floats(0.01, 1.0))
def test_a_round_needs_some_and_at_most_all_of_the_clients_it_asked(asked: int, m: int, spare: int, q: float) -> None:
    needed = answers_needed(asked, m, spare, q)
    assert 1 <= needed <= asked
    assert answers_needed(asked, m, 0, 1.0) == asked, "by default all are waited for"
    if asked == m + spare:
        assert needed == max(1, math.ceil(q * m - 1e-9))


def test_without_enough_clients_to_spare_all_are_waited_for_and_over_selection_asks_for_more_than_m() -> None:
    experiment = parse_experiment("[selection]\npolicy = 'random'\nm = 5\nover_selection = 0.3\n")
    assert selected_policy(experiment.selection).m == 7
    assert [answers_needed(asked, m=5, spare=2, quorum=1.0) for asked in (5, 6)] == [5, 5]
    assert answers_needed(asked=9, m=5, spare=2, quorum=1.0) == 7, "clients that a policy asks beyond m"
    assert answers_needed(asked=9, m=5, spare=2, quorum=1.0, beyond=4) == 9, "newcomers, and too few originals to spare"
    assert answers_needed(asked=10, m=10, spare=0, quorum=0.7) == 7
    assert answers_needed(asked=25, m=25, spare=0, quorum=0.28) == 7, "0.28 · 25 is 7.000000000000001"


async def ask(r: CoordinatorRig, ids: str) -> dict[str, FakePeer]:
    """Join clients that answer only when told to; returns them with the job of round 1."""
    peers = dict(zip(ids, await r.join_all(ids, manual=True), strict=True))
    for peer in peers.values():
        await peer.next_job()
    return peers


async def handled(r: CoordinatorRig) -> None:
    """Wait until all messages so far are handled and in the log."""
    await r.coordinator.ask(Ping("a", 0.1))
    await r.written()


async def end(r: CoordinatorRig, peers: dict[str, FakePeer], round: int) -> None:
    """Let all of these clients answer this round."""
    for peer in peers.values():
        while (await peer.next_job()).round < round:
            pass
    for peer in peers.values():
        await peer.answer(round)


async def test_a_round_ends_with_its_quorum_and_blames_no_client_that_it_did_not_wait_for(rig: MakeRig) -> None:
    async with rig(All(4), rounds=2, minimum_clients=4, quorum=0.5).running() as r:
        peers = await ask(r, "abcd")
        for client_id in "ab":
            await peers[client_id].answer(1)
        await end(r, {c: peers[c] for c in "cd"}, 2)
        await r.played()
        first, second = r.store.rounds()
        assert [(miss.client_id, miss.kind) for miss in first.misses] == [("c", "unneeded"), ("d", "unneeded")]
        assert first.missed == ()
        assert first.round_latency_s == max(o.latency_s for o in first.observations)
        assert not first.is_censored
        assert second.chosen == ("a", "b", "c", "d"), "none of them rests"
        table = r.coordinator.state.table
        assert (table.measured.tolist(), table.misses_in_a_row.tolist()) == ([2, 2, 2, 2], [0, 0, 0, 0])
        assert (1, 1) in peers["c"].withdrawn
        assert (r.coordinator.state.missed_jobs, r.telemetry.now.missed) == (0, {"unneeded": 4})


async def test_the_first_m_of_more_clients_are_waited_for(rig: MakeRig) -> None:
    async with rig(All(3), rounds=1, minimum_clients=3, spare=1).running() as r:
        peers = await ask(r, "abc")
        await peers["c"].answer(1)
        await peers["a"].answer(1)
        await r.played()
        (record,) = r.store.rounds()
        assert [o.client_id for o in record.observations] == ["a", "c"]


async def keep_b(r: CoordinatorRig) -> dict[str, FakePeer]:
    """Play rounds of a and b with a quorum of one until b's update of round 1 has arrived in round 2."""
    peers = await ask(r, "ab")
    await peers["a"].answer(1)
    await peers["a"].next_job()
    await peers["b"].answer(1)
    await handled(r)
    return peers


async def play_with_late_b(r: CoordinatorRig) -> None:
    """Play two rounds; b answers the first one too late and the second one not at all."""
    await (await keep_b(r))["a"].answer(2)
    await r.played()


async def test_a_dropped_late_update_is_paid_for_and_counted(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, quorum=0.5).running() as r:
        await play_with_late_b(r)
        assert ("late", "b") in r.events()
        assert r.telemetry.now.events["late"] == 1, "also where no later round tells of it"
        assert (r.rejected(), r.spent("b")) == (0, (1, BUDGET.spent(1)))
        assert r.coordinator.state.table.used.tolist() == [2, 0]


async def test_a_late_update_costs_nothing_without_privacy(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, quorum=0.5, privacy=None).running() as r:
        await play_with_late_b(r)
        assert r.events() == [("late", "b")]


async def test_a_kept_late_update_is_damped_in_the_next_model(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, **KEEPS).running() as r:
        await play_with_late_b(r)
        weights = np.array([EXAMPLES["a"], EXAMPLES["b"]])
        second = (weights[0] * update_of("a", 2) + weights[1] * update_of("b", 1) / math.sqrt(2)) / weights.sum()
        np.testing.assert_allclose(r.coordinator.model.theta, r.theta_0 + update_of("a", 1) + second, rtol=1e-5)
        assert ("merged", "b") in r.events()
        assert (r.spent("b"), r.coordinator.state.table.used.tolist()) == ((1, BUDGET.spent(1)), [2, 1])


@pytest.mark.parametrize("keeps", [True, False])
async def test_an_update_of_a_client_given_up_is_late_while_its_round_is_open(rig: MakeRig, keeps: bool) -> None:
    changes = {"rejoin_timeout_s": 0.0, "round_timeout_s": 60.0, "keeps_late_updates": keeps}
    async with rig(All(2), rounds=1, **changes).running() as r:
        peers = await ask(r, "ab")
        await r.lose(peers["b"])
        await handled(r)  # b is given up
        await peers["b"].answer(1)
        await peers["a"].answer(1)
        await r.played()
        np.testing.assert_allclose(r.coordinator.model.theta, averaged(r.theta_0, 1, "ab" if keeps else "a"), rtol=1e-5)
        assert (("merged", "b") in r.events()) == keeps
        assert ("late", "b") in r.events()
        assert (r.rejected(), r.spent("b")) == (0, (1, BUDGET.spent(1)))


async def test_a_kept_late_update_of_a_client_drawn_twice_counts_twice(rig: MakeRig) -> None:
    async with rig(FirstTwice(2), rounds=2, **KEEPS).running() as r:
        peers = await ask(r, "ab")
        await peers["b"].answer(1)
        await peers["b"].next_job()  # round 2
        before = r.coordinator.model.theta
        await peers["a"].answer(1)  # too late
        await peers["b"].answer(2)
        await r.played()
        mean = (2 * update_of("a", 1) / math.sqrt(2) + update_of("b", 2)) / (2 + 1)
        np.testing.assert_allclose(r.coordinator.model.theta - before, mean, atol=1e-6)


@pytest.mark.parametrize("rounds", [(1, 2), (2, 1)])
async def test_one_release_does_not_enter_a_model_twice(rig: MakeRig, rounds: tuple[int, int]) -> None:
    """An answer with the same release as a late update is not used, and a late update not after such an answer."""
    changes = {"minimum_clients": 3, "quorum": 0.6, "keeps_late_updates": True}
    async with rig(All(3), rounds=2, **changes).running() as r:
        peers = await ask(r, "abc")
        await peers["a"].answer(1)
        await peers["c"].answer(1)
        for peer in peers.values():
            await peer.next_job()  # round 2; b is late with round 1
        release = peers["b"].release()
        for number in rounds:
            r.coordinator.offer(peers["b"].update(number, release))
        await peers["a"].answer(2)
        await peers["c"].answer(2)
        await r.played()
        assert (r.rejected(), r.spent("b")) == (1, (1, BUDGET.spent(1)))
        entered = [event for event in r.events() if event == ("merged", "b")]
        entered += [("answered", o.client_id) for o in r.store.rounds()[1].observations if o.client_id == "b"]
        assert len(entered) == 1


def test_an_update_is_taken_64_rounds_after_its_own_at_most() -> None:
    late, table = LateUpdates(keeps=False), table_of("a")
    for t in range(1, 66):
        opened = OpenStep(t, needed=1, settings=server_settings(1), elapsed=Elapsed(0.0, 0.0))
        opened.give(Dispatch(t, 1, (), 0.0, 0.0), Selection(np.array([0])), ("a",), sent_s=0.0, timeout_s=1.0)
        late.expect(opened, opened.miss_overdue(1.0), table)
    with pytest.raises(WireError, match="round 1 is over"):
        late.take(answer_of("a", 1, Release()))
    assert [event.kind for event in late.take(answer_of("a", 2, Release()))] == ["late"]
    with pytest.raises(WireError, match="round 2 is over"):
        late.take(answer_of("a", 2, Release()))


async def test_budgets_end_a_run_only_when_fewer_than_m_can_release(rig: MakeRig) -> None:
    """The spare clients asked for a round are not needed to play it."""
    budget = replace(BUDGET, epsilon_floor=BUDGET.epsilon(1))  # one release each
    privacy = PrivacySettings(budget, "coordinate", "agreed")
    async with rig(All(3), rounds=1, minimum_clients=3, spare=1, privacy=privacy).running() as r:
        for client_id, released in (("a", 0), ("b", 0), ("c", 1)):
            await r.join(client_id, released=released)
        await r.played()
        assert len(r.store.rounds()) == 1
        assert [client_id for kind, client_id in r.events() if kind == "retired"] == ["c", "a", "b"]


async def test_a_kept_late_update_that_is_an_outlier_is_logged_as_dropped(rig: MakeRig) -> None:
    rule = Aggregation(norm_limit=3.0)
    async with rig(All(3), rounds=2, minimum_clients=3, aggregation=rule, **KEEPS).running() as r:
        peers = await ask(r, "abc")
        await peers["a"].answer(1)
        await peers["b"].answer(1)
        for peer in peers.values():
            await peer.next_job()  # round 2; c is late with round 1
        model = r.coordinator.model.theta
        await peers["c"].answer(1, vector=1000 * update_of("c", 1))  # too late
        r.coordinator.offer(peers["c"].update(2, peers["c"].release()))
        r.coordinator.offer(peers["a"].update(2, peers["a"].release()))
        await r.played()
        np.testing.assert_allclose(r.coordinator.model.theta, averaged(model, 2, "ac"), atol=1e-5)
        judged = [event for event in r.events() if event[0] in ("rejected", "merged", "dropped")]
        assert judged == [("rejected", "c"), ("dropped", "c")]
        assert r.spent("c") == (2, BUDGET.spent(2))
        assert r.coordinator.state.table.used[r.coordinator.state.table.row_of["c"]] == 2


async def test_a_kept_update_that_a_kill_loses_is_logged_as_dropped_and_stays_paid_for(rig: MakeRig) -> None:
    """Kept updates are in memory only. Their cost is logged at once, whether or not the client comes back."""
    async with rig(All(2), rounds=2, **KEEPS).running() as r:
        await keep_b(r)  # the server is killed here, within round 2
        model = r.coordinator.model.theta
    async with rig(All(2), rounds=2, **KEEPS, minimum_clients=1).running() as r:
        np.testing.assert_array_equal(r.coordinator.model.theta, model)
        await (await r.join("a", manual=True, released=1)).play(2)
        await r.played()
        np.testing.assert_allclose(r.coordinator.model.theta, model + update_of("a", 2), rtol=1e-5)
        assert r.spent("b") == (1, BUDGET.spent(1))
        kinds = [kind for kind, client_id in r.events() if client_id == "b"]
        assert kinds == ["late", "reconciled", "left", "unsettled", "dropped"]  # b had the job of round 2, too


@pytest.mark.parametrize(("fate", "is_lost"), [(None, True), ("merged", False), ("dropped", False)])
def test_a_kill_loses_a_kept_update_without_a_logged_fate(rig: MakeRig, fate: EventKind | None, is_lost: bool) -> None:
    r = rig(All(2), rounds=2, keeps_late_updates=True)
    told = [LogEvent("joined", "b", n_examples=10), LogEvent("late", "b", "its update of round 1 was kept")]
    r.store.save_late_events(1, [*told, *([LogEvent(fate, "b")] if fate else [])])
    lost = [event for event in r.restored().late_events if "which the server lost" in event.detail]
    r.close()
    assert [event.kind for event in lost] == ["dropped"] * is_lost


async def test_a_kill_loses_the_last_kept_update_of_a_client_and_the_older_one_was_dropped_before(rig: MakeRig) -> None:
    async with rig(All(2), rounds=3, **KEEPS).running() as r:
        peers = await ask(r, "ab")
        for number in (1, 2):
            await peers["a"].answer(number)
            await peers["a"].next_job()
        await peers["b"].answer(1)
        await peers["b"].answer(2)
        await handled(r)
    async with rig(All(2), rounds=3, **KEEPS, minimum_clients=1).running() as r:
        await (await r.join("a", manual=True, released=2)).play(3)
        await r.played()
        assert [event.detail for event in r.store.rounds()[-1].events if event.kind == "dropped"] == [
            "its update of round 1 enters no model: a later one came",
            "its update of round 2 was kept for the next model, which the server lost when it was ended",
        ]


async def test_a_kill_with_a_late_update_does_not_hide_who_came_for_the_round(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, **KEEPS).running() as r:
        peers = await ask(r, "ab")
        c = await r.join("c", manual=True)
        await peers["a"].answer(1)
        await c.next_job()  # the job of round 2, which c may charge
        await peers["b"].answer(1)
        await handled(r)
    r = rig(All(2), rounds=2, **KEEPS)
    joined = [event.client_id for event in r.restored().late_events if event.kind == "joined"]
    r.close()
    assert joined == ["c"]


async def test_a_kill_after_a_commit_does_not_hide_whose_update_the_model_took(rig: MakeRig) -> None:
    async with rig(All(2), rounds=3, **KEEPS).running() as r:
        peers = await keep_b(r)
        await peers["a"].answer(2)
        await peers["a"].next_job()  # the job of round 3; the server is killed within it
    async with rig(All(2), rounds=3, **KEEPS, minimum_clients=1).running() as r:
        await (await r.join("a", manual=True, released=2)).play(3)
        await r.played()
        assert ("merged", "b") in r.events()
        assert ("dropped", "b") not in r.events()
        assert (r.spent("b"), r.coordinator.state.table.used.tolist()) == ((1, BUDGET.spent(1)), [3, 1])


async def test_what_is_kept_when_the_run_ends_is_logged_as_dropped(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, **KEEPS).running() as r:
        await keep_b(r)
        await r.coordinator.tell(Shutdown("enough"))
        await r.played()
        assert ("dropped", "b") in r.events()


async def test_late_updates_of_an_attempt_that_failed_count_in_full(rig: MakeRig) -> None:
    async with rig(All(1), rounds=1, minimum_clients=1, round_timeout_s=0.25, keeps_late_updates=True).running() as r:
        a = await r.join_and_work("a")
        assert (await a.next_job()).attempt == 2, "nothing came in the first attempt"
        await a.answer(1, attempt=1)
        await a.answer(1, attempt=2)
        await asyncio.wait_for(r.played(), 20)
        np.testing.assert_allclose(r.coordinator.model.theta, r.theta_0 + update_of("a", 1), rtol=1e-5)
        assert ("merged", "a") in r.events()
