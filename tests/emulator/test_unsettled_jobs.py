"""Jobs that a client may have charged without saying so: the bound on its releases counts them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl.results.accounting import UnansweredJobs
from pausefl.results.tally import RunTally
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.clients import ClientTable
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.monitoring.progress import LINES, PER_S, LineLimit
from pausefl_server.records import EventKind, LogEvent, Miss, Ping, unsettled
from pausefl_server.rounds.messages import Lost, Refusal, RefusalKind, Shutdown, Update
from pausefl_server.rounds.pending_events import PendingEvents
from pausefl_server.selection.policies.baselines import All, Random
from pausefl_server.state import RunState, replay
from pausefl_server.storage.store import Store
from rigs.clock import Clock
from rigs.coordinator import BUDGET, CoordinatorRig, FakePeer, MakeRig
from rigs.log import observation, record, table_of


async def both_at_work(rig: CoordinatorRig, released: int = 10) -> tuple[FakePeer, FakePeer]:
    """Join a and b and hand them the job of round 1; b has made `released` releases before."""
    a, b = await rig.join("a", manual=True), await rig.join("b", manual=True, released=released)
    for peer in (a, b):
        await peer.next_job()
    return a, b


async def back_at_work(rig: CoordinatorRig, b: FakePeer) -> FakePeer:
    """Break b's stream, and join b again with the same job on a new stream."""
    await rig.lose(b)
    return await rig.join_and_work("b", released=10)


async def play_two_rounds(rig: CoordinatorRig, answer: RefusalKind | Literal["update"] | None) -> FakePeer:
    """b loses its stream in round 1, with or without an answer, and joins again in round 2 with the same ledger."""
    a, b = await both_at_work(rig, released=4)
    if answer == "update":
        await b.answer(1)
    elif answer is not None:
        await rig.coordinator.tell(Refusal("b", 1, 1, answer, "out of memory"))
    b.stop()
    await rig.coordinator.tell(Lost(b, "its connection broke", may_return=False))
    await a.answer(1)
    await a.next_job()
    back = await rig.join("b", manual=True, released=b.released)
    await a.answer(2)
    await rig.played()
    return back


def bounds(rig: CoordinatorRig) -> Mapping[str, int]:
    tally = RunTally(rig.store.log(), late_events=rig.store.late_events())
    return tally.unanswered.releases_at_most(rig.coordinator.state.table, BUDGET)


def most_releases(rig: CoordinatorRig) -> int:
    return max(bounds(rig).values())


@pytest.mark.parametrize(("answer", "released"), [(None, 4), ("update", 5), ("refused", 4), ("withdrawn", 4)])
async def test_a_client_that_returns_may_still_charge_a_job_unless_it_has_answered_it(
    rig: MakeRig, answer: RefusalKind | Literal["update"] | None, released: int
) -> None:
    """Its hello does not yet count the release that its thread is about to charge, and no answer will report it."""
    async with rig(All(1), rounds=2).running() as r:
        assert (await play_two_rounds(r, answer)).withdrawn == ([(1, 1)] if answer is None else [])
        assert (r.spent("b")[0], most_releases(r)) == (released, released + (answer is None))


async def test_without_privacy_no_job_is_charged(rig: MakeRig) -> None:
    async with rig(All(1), rounds=2, privacy=None).running() as r:
        await play_two_rounds(r, answer=None)
        assert ("unsettled", "b") not in r.events()


def test_a_kill_leaves_the_job_owed_that_was_out(rig: MakeRig) -> None:
    """After a failed attempt, the job that was out is that of the next attempt."""
    r = rig(All(1), rounds=2)
    failed = record(1, events=(LogEvent("joined", "b", n_examples=10),), chosen=("b",))
    r.store.save_late_events(1, failed.events)
    r.store.save_failed_attempt(failed)
    owed = [event.detail for event in r.restored().late_events if event.kind == "unsettled"]
    r.close()
    assert owed == ["may have released for attempt 2 at round 1"]


# --- a client's message on one job does not settle another


async def test_a_late_update_settles_its_own_job_alone(rig: MakeRig) -> None:
    """The late update arrives while the next job is out, which its client charges as well."""
    async with rig(All(2), rounds=3, quorum=0.5).running() as r:
        a, b = await both_at_work(r)
        await a.answer(1)
        for t in (2, 3):
            for peer in (a, b):
                await peer.next_job()
            await b.answer(t - 1)
            await a.answer(t)
        b.release()
        await r.played()
        assert r.spent("b")[0] == 12
        assert most_releases(r) == b.released == 13


async def test_a_hello_within_a_round_does_not_settle_the_rounds_job(rig: MakeRig) -> None:
    async with rig(All(2), rounds=1, round_timeout_s=0.5).running() as r:
        a, b = await both_at_work(r)
        back = await back_at_work(r, b)
        back.release()
        await a.answer(1)
        await r.played()
        assert most_releases(r) == back.released == 11


async def test_a_dropped_job_settles_no_other(rig: MakeRig) -> None:
    """It waited for b's thread, which still works on a job of a server that was killed."""
    steps = Asynchronous(concurrency=3, buffer=1)
    async with rig(Random(3), minimum_clients=3, is_asynchronous=True, asynchronous=steps, rounds=2).running() as r:
        await r.register(b := r.peer("b", manual=True), ledger=pb.Ledger(schedule="agreed", at_work=pb.Work(round=7)))
        await r.join_all("ac")
        await b.next_job()
        await r.coordinator.tell(Refusal("b", 1, 1, "withdrawn", "dropped its job"))
        await r.played()
        assert bounds(r)["b"] == 1


async def test_a_later_hello_settles_what_was_owed_before_it(rig: MakeRig) -> None:
    async with rig(All(2), rounds=2, round_timeout_s=0.5).running() as r:
        a, b = await both_at_work(r)
        back = await back_at_work(r, b)
        await a.answer(1)
        await a.next_job()
        await back.answer(1)
        await back.next_job()
        await r.lose(back)
        again = await r.join("b", manual=True, released=11)
        await again.play(2)
        await a.answer(2)
        await r.played()
        assert r.spent("b")[0] == most_releases(r) == again.released == 12


async def test_a_client_given_up_before_the_run_is_stopped_may_have_charged(rig: MakeRig) -> None:
    async with rig(All(2), rounds=5, rejoin_timeout_s=0.0, round_timeout_s=30.0).running() as r:
        a, b = await both_at_work(r)
        b.release()
        b.stop()
        for message in (Lost(b, "it broke", may_return=False), Ping("a", 0.1), Shutdown("stopped by SIGTERM")):
            await r.coordinator.ask(message)
        await a.answer(1)
        await r.played()
        assert most_releases(r) == b.released == 11


@pytest.mark.parametrize("answer_first", [True, False])
async def test_a_client_that_is_not_waited_for_at_the_stop_may_have_charged(rig: MakeRig, answer_first: bool) -> None:
    async with rig(All(2), rounds=5, quorum=0.5).running() as r:
        a, b = await both_at_work(r)
        b.release()
        messages: list[Update | Shutdown] = [a.update(1, a.release()), Shutdown("stopped by SIGTERM")]
        for message in messages if answer_first else reversed(messages):
            r.coordinator.offer(message)
        await r.played()
        assert most_releases(r) == b.released == 11


KINDS = st.sampled_from(["joined", "left", "reconciled", "unsettled", "withdrawn"])


def folded(events: Sequence[LogEvent]) -> ClientTable:
    table = table_of(*"ab")
    table.apply_events(events, 2)
    return table


@given(st.lists(st.tuples(KINDS, st.sampled_from("ab"), st.integers(0, 2)), max_size=20), st.integers(0, 3))
def test_merged_events_settle_what_they_would_one_by_one(kinds: list[tuple[EventKind, str, int]], missed: int) -> None:
    released = Counter[str]()
    events = []
    for number, (kind, client_id, more) in enumerate(kinds):
        released[client_id] += more
        events.append(LogEvent(kind, client_id, f"event {number}", released=released[client_id]))
    table = folded(events)

    def bound(told: Sequence[LogEvent]) -> int:
        jobs = UnansweredJobs()
        jobs.settle([LogEvent("unsettled", "b")] * missed)
        jobs.settle(told)
        return max(jobs.releases_at_most(table, BUDGET).values())

    assert bound(PendingEvents(events).waiting()) == bound(events)


def test_a_job_is_owed_once_and_settled_once_and_by_a_message_of_several_releases_as_many() -> None:
    table, jobs = ClientTable(), UnansweredJobs()
    table.apply_events([LogEvent("joined", "b", n_examples=1)], 1)
    jobs.settle([LogEvent("withdrawn", "b"), LogEvent("unsettled", "b")])
    assert jobs.releases_at_most(table, BUDGET) == {"b": 1}
    jobs.settle([unsettled("a", t, 1) for t in (1, 2, 3)])
    jobs.settle([LogEvent("reconciled", "a", released=2, epsilon_spent=BUDGET.spent(2))])
    assert jobs.releases_at_most(table, BUDGET) == {"a": 3, "b": 1}
    late, miss = LogEvent("reconciled", "c", released=6, epsilon_spent=BUDGET.spent(6)), Miss("c", "timeout", 1.0, 1.0)
    for attempt in (record(1, observation("c", participation=5)), *(record(t, misses=(miss,)) for t in (2, 3))):
        jobs.add(attempt)
    jobs.settle([late])
    assert jobs.releases_at_most(table, BUDGET)["c"] == 7
    assert jobs.releases_at_most(table, replace(BUDGET, epsilon_floor=BUDGET.epsilon(6)))["c"] == 6, "it pays no more"
    jobs.add(record(4, observation("c", participation=7)))
    assert jobs.releases_at_most(table, BUDGET)["c"] == 7, "its answer settles all jobs before"
    job, missed = unsettled("a", 1, 1), LogEvent("missed", "a")
    assert PendingEvents([job, missed, job]).take() == (missed, job)
    assert PendingEvents([job, missed, unsettled("a", 2, 1)]).take() == (job, missed, unsettled("a", 2, 1))


# --- servers that are killed, or go back


@pytest.mark.parametrize("said", [None, 11, 12], ids=["away", "back and at work", "back"])
async def test_a_client_may_have_charged_its_job_when_the_server_was_killed(tmp_path: Path, said: int | None) -> None:
    async with CoordinatorRig(tmp_path, rounds=3).running() as killed:
        a, b = await killed.join("a", manual=True), await killed.join("b", manual=True, released=10)
        for peer in (a, b):
            await peer.play(1)
        for peer in (a, b):
            await peer.next_job()
        b.release()
    for _ in range(2):  # restarting the run again adds nothing
        async with CoordinatorRig(tmp_path, All(1), rounds=2, minimum_clients=1).running() as r:
            if r.coordinator.state.round < 2:
                again = await r.join_and_work("a", released=a.released)
                if said:
                    ledger = pb.Ledger(schedule="agreed", released=said, epsilon_spent=BUDGET.spent(said))
                    ledger.at_work.round = 2 if said < b.released else 0
                    await r.register(r.peer("b"), ledger=ledger)
                await again.answer(2)
            await r.played()
            assert r.spent("b")[0] == (said or 11)
            assert most_releases(r) == b.released == 12


@pytest.mark.usefixtures("short_drain")
@pytest.mark.parametrize("mode", ["stopped", "missed", "back late", "rounds"])
@pytest.mark.parametrize(("work", "most"), [(0, 1), (1, 1), (7, 2)], ids=["away", "on it", "on an earlier one"])
async def test_a_job_that_is_asked_for_again_counts_once(tmp_path: Path, mode: str, work: int, most: int) -> None:
    """b had it from a server that was killed, and gives no answer. What b still works on then counts besides."""
    settings: dict[str, Any] = {"is_asynchronous": mode != "rounds", "asynchronous": Asynchronous(2, 2), "rounds": 1}
    async with CoordinatorRig(tmp_path, Random(2), **settings).running() as killed:
        await both_at_work(killed, released=0)
    at_once = 1 if mode == "back late" or not work else 2
    settings |= {"round_timeout_s": 0.5, "rejoin_timeout_s": 0.2, "minimum_clients": at_once}
    async with CoordinatorRig(tmp_path, Random(2), **settings).running() as r:
        a, b = r.peer("a", manual=True), r.peer("b", manual=True)
        for peer in [a, b] if mode == "back late" else [b, a]:
            if work or peer is a:
                await r.register(peer, ledger=pb.Ledger(schedule="agreed", at_work=pb.Work(round=work, attempt=1)))
        await a.next_job()
        await (r.coordinator.tell(Shutdown("stopped")) if mode == "stopped" else a.answer(1))
        await r.played()
        assert bounds(r)["b"] == most


async def test_a_client_that_returned_may_have_charged_its_job_when_the_server_was_killed(tmp_path: Path) -> None:
    """It had left before the last commit. So its return must be logged before it gets a job."""
    async with CoordinatorRig(tmp_path, rounds=3, rejoin_timeout_s=0.0).running() as killed:
        a, b = await both_at_work(killed)
        await b.answer(1)
        await killed.lose(b)
        await a.answer(1)
        await a.next_job()
        await killed.lose(a)
        await killed.until_noticed("in attempt 1 at round 2")
        back = await killed.join_and_work("b", released=b.released)
        back.release()
    async with CoordinatorRig(tmp_path, All(1), rounds=2, minimum_clients=1).played_by("c") as r:
        assert most_releases(r) == back.released == 12


async def test_a_client_that_came_later_may_have_charged_when_a_killed_server_goes_back(tmp_path: Path) -> None:
    async with CoordinatorRig(tmp_path, rounds=9, minimum_clients=1).running() as killed:
        a = await killed.join_and_work("a")
        b = await killed.join("b", manual=True, released=10)
        await a.answer(1)
        for peer in (a, b):
            await peer.play(2)
        await b.next_job()
        b.release()
    with closing(Store(tmp_path / "run.db")) as store:
        store.go_back_to(1)
    async with CoordinatorRig(tmp_path, All(1), rounds=2, minimum_clients=1).running() as r:
        await r.join("a", released=a.released)
        await r.played()
        assert most_releases(r) == b.released == 12


async def test_only_who_is_new_is_logged_before_the_job(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging takes a disk write, for which a round waits."""
    saved, save = list[tuple[int, bool]](), Store.save_late_events

    def counted(store: Store, round: int, events: Sequence[LogEvent], *, is_end: bool = False) -> None:
        saved.append((round, is_end))
        save(store, round, events, is_end=is_end)

    monkeypatch.setattr(Store, "save_late_events", counted)
    async with rig(All(2), rounds=2).running() as r:
        a, b = await both_at_work(r, released=0)
        await r.lose(b)
        back = await r.join_and_work("b")
        for peer in (a, back):
            await peer.answer(1)
        for peer in (a, back):
            await peer.play(2)
        await r.played()
    assert saved == [(1, False), (3, True)]


async def test_a_run_begun_again_after_its_end_owes_nothing_also_if_it_fails_before_a_job(tmp_path: Path) -> None:
    for client_ids in ("ab", ""):
        async with CoordinatorRig(tmp_path, rounds=2).played_by(client_ids) as r:
            assert most_releases(r) == 2
    async with CoordinatorRig(tmp_path, rounds=3).running():
        pass
    async with CoordinatorRig(tmp_path, All(1), rounds=3, minimum_clients=1).running() as r:
        await r.join("a", released=2)
        await r.played()
        assert bounds(r) == {"a": 3, "b": 2}


def test_rounds_taken_back_keep_what_their_misses_may_have_cost(store: Store) -> None:
    joined = LogEvent("joined", "a", n_examples=10), LogEvent("joined", "b", n_examples=10, released=10)
    for t in (1, 2, 3):
        answer = observation("a", participation=t, epsilon=BUDGET.epsilon(t), epsilon_spent=BUDGET.spent(t))
        changes = {"chosen": ("a", "b"), "events": joined if t == 1 else ()}
        store.commit_round(record(t, answer, misses=(Miss("b", "timeout", 1.0, 1.0),), **changes))

    def most() -> int:
        state = replay(RunState.start(All(2), 1), store.rounds())
        state.before_round(state.round + 1, store.late_events())
        tally = RunTally(store.log(), late_events=store.late_events())
        return max(tally.unanswered.releases_at_most(state.table, BUDGET).values())

    assert most() == 13
    for back_to in (2, 1):
        store.go_back_to(back_to)
        assert most() == 13


# --- repeated events are merged without changing the result of a fold


EVENTS = st.builds(
    LogEvent,
    st.sampled_from(["joined", "left", "missed", "rejected", "reconciled", "retired"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["x", "y"]),
)


@given(st.lists(EVENTS, max_size=30))
def test_merged_events_mean_the_same_and_are_few(kinds: list[LogEvent]) -> None:
    events = [replace(e, n_examples=i, epsilon_spent=float(i), released=i) for i, e in enumerate(kinds, 1)]
    pending = PendingEvents(events)
    kept = pending.take()
    # Each retirement is kept; of all other events, a few per client.
    assert len(kept) <= 2 * 6 + sum(event.kind == "retired" for event in events)
    plain, merged = folded(events), folded(kept)
    assert plain.ids == merged.ids
    for name in ("connected", "stated_examples", "retired", "released", "proven", "epsilon_spent"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(merged, name), err_msg=name)
    assert pending.take() == ()


def test_a_flood_of_rejections_is_one_event_that_counts_them() -> None:
    pending = PendingEvents()
    for k in range(733):
        pending.add(LogEvent("rejected", "a", f"reason {k} (999999999 times)"))
    (event,) = pending.take()
    assert (event.detail, event.count) == ("reason 0 (999999999 times)", 733), "a client's own words count nothing"
    pending.put_back([event, LogEvent("rejected", "a", "another")])
    (event,) = pending.waiting()
    assert event.count == 734
    pending.put_back([LogEvent("rejected", "a", "one before")])
    assert [(each.detail, each.count) for each in pending.take()] == [("one before", 735)]
    assert RunTally([], late_events=[event, LogEvent("rejected", "b", "one")]).events["rejected"] == 735


def test_merged_corrections_keep_the_greatest_and_settle_no_job_that_came_after_them() -> None:
    told = [LogEvent("reconciled", "a", released=n, epsilon_spent=float(n)) for n in (2, 5, 3)]
    (event,) = PendingEvents(told).waiting()
    assert (event.released, event.epsilon_spent, event.count) == (5, 5.0, 3)
    told[1] = unsettled("a", 1, 1)
    assert PendingEvents(told).waiting() == tuple(told)


def test_events_put_back_come_before_later_ones_and_a_hello_is_logged_where_the_last_commit_wrote_that_of_all() -> None:
    pending = PendingEvents([LogEvent("joined", "a"), LogEvent("retired", "b")])
    taken = pending.take()
    pending.add(LogEvent("left", "a"))
    pending.put_back(taken)
    assert pending.retired() == {"b"}
    assert [event.kind for event in pending.take()] == ["joined", "retired", "left"]
    pending = PendingEvents([LogEvent("joined", "a")])
    assert not pending.has_logged(pending.waiting())
    pending.to_log()
    assert pending.has_logged(pending.waiting())
    pending.add(LogEvent("joined", "b"))
    assert not pending.has_logged(pending.take())
    assert pending.has_logged([LogEvent("left", "a")])


def test_what_a_stranger_has_spent_waits_until_it_joins() -> None:
    spent = [LogEvent("reconciled", client_id, released=1, epsilon_spent=1.0) for client_id in "abc"]
    pending = PendingEvents([*spent, LogEvent("joined", "b"), LogEvent("missed", "c")])
    known = [(e.kind, e.client_id) for e in pending.take_known({"a": 0})]
    assert known == [("reconciled", "a"), ("reconciled", "b"), ("joined", "b"), ("missed", "c")]
    pending.add(LogEvent("joined", "c"))
    assert {e.kind for e in pending.take_known({"a": 0, "b": 1})} == {"reconciled", "joined"}


def test_of_many_lines_of_a_kind_the_first_are_shown_and_the_rest_counted() -> None:
    clock = Clock()
    limit = LineLimit(clock)
    shown = [line for k in range(100) if (line := limit.admit("rejected", f"line {k}")) is not None]
    assert shown == [f"line {k}" for k in range(LINES)]
    assert limit.admit("left", "another kind") == "another kind"
    clock.advance(PER_S)
    assert limit.admit("rejected", "line 100") == f"line 100 (and {100 - LINES} more like it before)"
    assert limit.admit("rejected", "line 101") == "line 101"
