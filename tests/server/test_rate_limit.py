"""A client that sends too much, or too much that is rejected, has to rest; longer each time."""

import asyncio
import itertools

import pytest

from pausefl_proto.errors import DamageError, TryLaterError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.connections.rate_limit import AbuseError, ClientRateLimit
from rigs.client_actor import ClientActorRig
from rigs.clock import Clock


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


def test_a_client_that_was_quiet_for_long_may_send_no_more_than_another() -> None:
    clock = Clock()
    rate_limit = ClientRateLimit(clock)
    clock.advance(1e6)
    for _ in range(64):
        rate_limit.count_unsolicited()
    with pytest.raises(AbuseError, match="rests for 1 s"):
        rate_limit.count_unsolicited()


def test_after_a_rest_all_is_counted_from_the_start() -> None:
    clock = Clock()
    rate_limit = ClientRateLimit(clock)
    for count, most in ((rate_limit.count_unsolicited, 64), (rate_limit.count_rejection, 8)):
        for _ in range(2):
            for _ in range(most):
                count("garbage")
            with pytest.raises(AbuseError):
                count("garbage")
            clock.advance(1.0)


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
