"""Jobs that a client may have charged although it never says so: the bound on its releases counts them."""

import pytest

from pausefl.results.tally import RunTally
from pausefl_server.records import LogEvent
from pausefl_server.rounds.messages import JobDropped, Lost, Refusal, Update
from pausefl_server.rounds.pending_events import PendingEvents
from pausefl_server.selection.policies.everyone import All
from rigs.coordinator import BUDGET, CoordinatorRig, FakePeer, MakeRig


async def play_two_rounds(rig: CoordinatorRig, answer: type[Update | Refusal | JobDropped] | None) -> FakePeer:
    """b loses its stream in round 1, in which it answers or not, and comes back, unchanged, in round 2."""
    a = await rig.join("a", manual=True)
    b = await rig.join("b", manual=True, released=4)
    for peer in (a, b):
        await peer.next_job()
    if answer is Update:
        await b.answer(1)
    elif answer is Refusal:
        await rig.coordinator.tell(Refusal("b", 1, "out of memory", rejected=False, attempt=1))
    elif answer is JobDropped:
        await rig.coordinator.tell(JobDropped("b", 1, 1))
    b.stop()
    await rig.coordinator.tell(Lost(b, "its connection broke", may_return=False))
    await a.answer(1)
    await a.next_job()
    back = await rig.join("b", manual=True, released=b.released)
    await a.answer(2)
    await rig.played()
    return back


def most_releases(rig: CoordinatorRig) -> int:
    tally = RunTally.of(rig.store.log(), late_events=rig.store.late_events())
    return tally.unanswered.releases_at_most(rig.coordinator.state.table, BUDGET)


async def test_a_client_that_returns_may_still_charge_the_job_it_had(rig: MakeRig) -> None:
    """Its hello does not count the release that its thread is about to charge, and no answer will tell of it."""
    async with rig(All(1), rounds=2).running() as r:
        back = await play_two_rounds(r, answer=None)
        assert back.withdrawn == [(1, 1)]
        assert r.spent("b")[0] == 4
        assert most_releases(r) == 5


@pytest.mark.parametrize(("answer", "released"), [(Update, 5), (Refusal, 4), (JobDropped, 4)])
async def test_a_client_that_returns_owes_nothing_for_a_job_it_has_answered(
    rig: MakeRig, answer: type[Update | Refusal | JobDropped], released: int
) -> None:
    async with rig(All(1), rounds=2).running() as r:
        back = await play_two_rounds(r, answer)
        assert back.withdrawn == []
        assert r.spent("b")[0] == most_releases(r) == released


async def test_without_privacy_no_job_is_charged(rig: MakeRig) -> None:
    async with rig(All(1), rounds=2, privacy=None).running() as r:
        await play_two_rounds(r, answer=None)
        assert ("unsettled", "b") not in r.events()


def test_a_job_is_owed_once_however_often_its_client_returns() -> None:
    joined, owed = LogEvent("joined", "b"), LogEvent("unsettled", "b", "may have released for round 1")
    pending, other = PendingEvents(), LogEvent("reconciled", "b", released=4)
    for event in (joined, owed, other, joined, owed):
        pending.add(event)
    assert pending.waiting() == (joined, other, owed)
    pending.add(LogEvent("unsettled", "b", "may have released for round 2"))
    assert len(pending.waiting()) == 4
