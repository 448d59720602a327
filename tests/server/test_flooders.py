"""Clients that were let in and then flood: what they cost a round, and how long each has to rest."""

import asyncio
import itertools
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from pausefl_proto.errors import DamageError, TryLaterError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.connections.rate_limit import AbuseError, ClientRateLimit
from pausefl_server.rounds.messages import Lost
from pausefl_server.selection.policies.everyone import All
from rigs.client_actor import ClientActorRig
from rigs.clock import Clock
from rigs.coordinator import MakeRig
from rigs.federation import answer_of, clients, federation, hello, log_of, raw_stream, take_a_job

PONG = pb.ClientMessage(pong=pb.Pong(nonce=9)).SerializeToString()


@pytest.mark.parametrize("breaks", [0, 4])
async def test_a_client_that_may_not_return_or_keeps_breaking_is_not_waited_for(rig: MakeRig, breaks: int) -> None:
    async with rig(rounds=1, round_timeout_s=60.0, rejoin_timeout_s=60.0).running("a") as r:
        b = await r.join("b", manual=True)
        for _ in range(breaks):
            await b.next_job()
            await r.lose(b)
            b = await r.join("b", manual=True)
        await b.next_job()
        b.stop()
        await r.coordinator.tell(Lost(b, "once too often", may_return=breaks > 0))
        await r.played()
        (miss,) = r.store.rounds()[0].misses
        assert (miss.client_id, miss.kind) == ("b", "lost")


@pytest.mark.parametrize("way", ["floods", "says goodbye"])
async def test_a_round_goes_on_without_a_client_that(way: str, tmp_path: Path) -> None:
    """Neither the round's timeout nor that for coming back is waited for."""
    patience = {"round_timeout_s": 60.0, "rejoin_timeout_s": 60.0, "connect_timeout_s": 20.0}
    async with federation(tmp_path / "run", All(2), minimum_clients=2, rounds=1, **patience) as run, clients() as some:
        some.start("a", await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            if way == "floods":
                with suppress(grpc.aio.AioRpcError):  # it may be cut off in the midst of it
                    for _ in range(75):
                        await call.write(PONG)
                    await call.read()
            else:
                await call.write(pb.ClientMessage(goodbye=pb.Goodbye(reason="enough")).SerializeToString())
                await call.read()
        await run.finished()
    (record,) = log_of(tmp_path / "run")
    assert [miss.client_id for miss in record.misses] == ["raw"]


async def test_a_fresh_stream_brings_no_fresh_allowance() -> None:
    rig = ClientActorRig()
    rate_limit = ClientRateLimit(rig.clock)
    with pytest.raises(AbuseError, match="sent more messages than it was asked for"):
        for _ in range(100):
            for message in (PONG, PONG, None):
                rig.stream.give(message)
            await rig.actor_of(rate_limit).listen()


async def test_a_client_may_come_back_every_second_for_ever() -> None:
    rig = ClientActorRig()
    rate_limit = ClientRateLimit(rig.clock)
    for _ in range(1000):
        rate_limit.count_unsolicited("came and went")
        rig.clock.advance(1.0)


async def test_a_client_that_comes_and_goes_all_the_time_has_to_rest(tmp_path: Path) -> None:
    async with federation(tmp_path / "run", All(2), minimum_clients=2, connect_timeout_s=60.0) as run:
        visits = 1
        while "rests for" not in await _visit(await run.port):
            visits += 1
    assert 30 < visits < 300


async def _visit(port: int) -> str:
    """Say hello and leave; the reason of a goodbye, empty for a welcome."""
    async with raw_stream(port) as call:
        await call.write(hello())
        return (await answer_of(call)).goodbye.reason


async def test_a_client_whose_streams_always_end_in_garbage_has_to_rest() -> None:
    rig = ClientActorRig()
    rate_limit = ClientRateLimit(rig.clock)
    for _ in range(9):
        rig.stream.give(b"\xff\xff\xff")
        with pytest.raises((DamageError, AbuseError)) as caught:
            await rig.actor_of(rate_limit).listen()
    assert caught.type is AbuseError


async def test_a_client_that_sends_too_much_that_is_rejected_rests_longer_each_time() -> None:
    rig = ClientActorRig()
    running = asyncio.ensure_future(rig.coordinator.run())
    rate_limit, rests_s = ClientRateLimit(rig.clock), []
    for _ in range(12):
        for _ in range(9):
            rig.answer()
        with pytest.raises(AbuseError, match="which it was not asked for now, once too often: rests for"):
            await rig.actor_of(rate_limit).listen()
        rests_s.append(rest_of(rate_limit, rig.clock))
    rig.coordinator.stop()
    await running
    assert rests_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def rest_of(rate_limit: ClientRateLimit, clock: Clock) -> int:
    """How many seconds pass until the client may come back."""
    for seconds in itertools.count():
        try:
            rate_limit.check_allowed()
        except TryLaterError:
            clock.advance(1.0)
        else:
            return seconds
    raise AssertionError


async def test_a_client_that_sends_more_than_it_was_asked_for_has_to_rest() -> None:
    rig = ClientActorRig()
    for _ in range(65):
        rig.say(pong=pb.Pong(nonce=9))
    with pytest.raises(AbuseError, match="sent more messages than it was asked for"):
        await rig.actor.listen()


@pytest.mark.parametrize(("what", "most"), [("unsolicited", 64), ("rejection", 8)])
def test_a_client_may_send_so_much_however_long_it_was_quiet_and_as_much_again_after_a_rest(
    what: str, most: int
) -> None:
    clock = Clock()
    rate_limit = ClientRateLimit(clock)
    count = getattr(rate_limit, f"count_{what}")
    for quiet_s, rest_s in ((1e6, 1), (1.0, 2)):
        clock.advance(quiet_s)
        for _ in range(most):
            count("garbage")
        with pytest.raises(AbuseError, match=f"rests for {rest_s} s"):
            count("garbage")


def test_a_rejection_is_forgiven_every_five_seconds() -> None:
    clock = Clock()
    rate_limit = ClientRateLimit(clock)
    for _ in range(1000):
        rate_limit.count_rejection("garbage")
        clock.advance(5.1)
    with pytest.raises(AbuseError):
        for _ in range(1000):
            rate_limit.count_rejection("garbage")
            clock.advance(4.9)
