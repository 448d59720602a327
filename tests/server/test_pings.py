"""Idle round-trip probes: a bounded number, everybody in turn, never of a client at work, never shown to a policy."""

from pathlib import Path

import pytest

from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.pings import PingSchedule
from pausefl_server.rounds.messages import Pinged, SendPing
from rigs.client_actor import ClientActorRig
from rigs.command import played, query, sets


def begun(pings_per_s: float, client_ids: str) -> PingSchedule:
    """A schedule that these clients have joined, at time 0."""
    schedule = PingSchedule(pings_per_s)
    for client_id in client_ids:
        schedule.join(client_id)
    assert schedule.take_due(0.0, ()) == []
    return schedule


def test_everybody_is_pinged_in_turn_at_the_rate_asked_for() -> None:
    schedule = begun(4.0, "abc")
    assert schedule.take_due(0.5, ()) == ["a", "b"]
    assert schedule.take_due(0.6, ()) == []
    assert schedule.take_due(0.75, ()) == ["c"]
    assert sum(len(schedule.take_due(1.0 + 0.01 * i, ())) for i in range(1000)) == pytest.approx(40, abs=1)


def test_a_long_pause_earns_no_more_than_a_seconds_worth() -> None:
    schedule = begun(2.0, "abcdef")
    assert schedule.take_due(3600.0, ()) == ["a", "b"]


def test_the_busy_stay_first_in_line_and_the_gone_are_not_pinged() -> None:
    schedule = begun(1.0, "abc")
    assert schedule.take_due(1.0, {"a"}) == ["b"]
    schedule.leave("c")
    assert schedule.take_due(2.0, ()) == ["a"]
    assert schedule.take_due(3.0, {"a", "b"}) == []
    assert schedule.take_due(4.0, ()) == ["b"]


def test_a_rate_of_none_pings_nobody() -> None:
    assert begun(0.0, "a").take_due(1e6, ()) == []


async def test_a_ping_is_timed_and_one_that_a_job_overtook_is_not() -> None:
    rig = ClientActorRig(size=1)

    async def pinged() -> int:
        await rig.actor.tell(SendPing())
        return pb.ServerMessage.FromString(await rig.stream.heard_bytes()).ping.nonce

    async with rig.running():
        nonce = await pinged()
        rig.clock.advance(0.25)
        rig.say(pong=pb.Pong(nonce=nonce + 1))  # an answer to nothing that was asked
        rig.say(pong=pb.Pong(nonce=nonce))
        nonce = await pinged()
        await rig.dispatch()
        await rig.stream.heard_bytes()
        rig.say(pong=pb.Pong(nonce=nonce))
        await rig.actor.ask(SendPing())  # at work: not sent
    assert rig.stream.is_silent()
    assert await rig.told() == Pinged("client-1", 0.25)
    assert rig.coordinator.told.empty()


async def test_pongs_that_no_ping_asked_for_are_taken_in_silence() -> None:
    async with ClientActorRig().running() as rig:
        for nonce in (0, 1):
            rig.say(pong=pb.Pong(nonce=nonce))
    assert rig.coordinator.told.empty()


async def test_a_ping_is_answered_once() -> None:
    async with ClientActorRig().running() as rig:
        for round_ in (1, 2):
            await rig.actor.ask(SendPing())
            nonce = pb.ServerMessage.FromString(await rig.stream.heard_bytes()).ping.nonce
            for answered in (nonce + 1, nonce, nonce):
                rig.stream.give(pb.ClientMessage(pong=pb.Pong(nonce=answered)).SerializeToString(), after_s=0.25)
            assert await rig.told() == Pinged("client-1", 0.5)
            await rig.dispatch(round=round_)
            await rig.stream.heard_bytes()
            rig.answer(round_)
            await rig.updated()
    assert rig.coordinator.told.empty()


@pytest.mark.end_to_end
def test_clients_that_were_not_chosen_have_a_baseline(tmp_path: Path) -> None:
    keys = {"selection.m": 1, "experiment.rounds": 12, "latency.time_scale": 0.2, "server.pings_per_s": 50.0}
    words = sets("clients.count=4", "workload.model=synthetic", *(f"{key}={value}" for key, value in keys.items()))
    played("run", "demo", "--run-dir", tmp_path / "run", *words)
    baseline = query(tmp_path / "run", "SELECT client_id, pings, ping_min_s FROM ping_baseline")
    ((wall_clock_s,),) = query(tmp_path / "run", "SELECT max(wall_clock_s) FROM rounds")
    assert {client_id for client_id, *_ in baseline} == {f"client-{k:03}" for k in range(4)}
    assert sum(pings for _, pings, _ in baseline) <= 50 * (wall_clock_s + 1)
    assert all(0 < ping_s < 0.05 for *_, ping_s in baseline)
