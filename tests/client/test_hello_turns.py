"""How the clients of one process come to a server: a few at a time, so that it sends none of them away."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pausefl_client.link import Link
from pausefl_client.privacy.release import Releaser
from pausefl_client.session import ClientSession
from pausefl_client.session_settings import ClientSettings, HostResources
from pausefl_proto.endpoint import HELLOS_AT_ONCE
from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION
from rigs.clock import Clock
from rigs.session import FakeServer, FakeTrainer


def one_host(clock: Clock) -> tuple[FakeServer, Callable[..., ClientSession]]:
    """A server, and (client id, settings...) -> a session with it of a client of one process."""
    server, host = FakeServer(clock), HostResources(None, clock)

    def session(client_id: str, **changes: Any) -> ClientSession:
        settings = ClientSettings(client_id, "", **changes)
        return ClientSession(settings, FakeTrainer(clock), Releaser(None), Link(), server.connect, host)

    return server, session


async def test_the_next_client_opens_its_stream_once_an_earlier_one_is_welcome() -> None:
    server, session = one_host(Clock())
    async with asyncio.TaskGroup() as group:
        for i in range(HELLOS_AT_ONCE + 1):
            group.create_task(session(f"client-{i}").run())
        streams = [await server.accept() for _ in range(HELLOS_AT_ONCE)]
        assert [(await stream.heard()).WhichOneof("kind") for stream in streams] == ["hello"] * HELLOS_AT_ONCE
        assert server.opened == HELLOS_AT_ONCE
        for stream in streams:
            stream.say(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run"))
        streams.append(await server.welcome())
        for stream in streams:
            stream.say(goodbye=pb.Goodbye(reason="enough", final=True))


async def test_a_client_without_a_server_gives_its_turn_back() -> None:
    server, session = one_host(clock := Clock())
    server.unreachable, began_s = True, clock()
    async with asyncio.TaskGroup() as group:
        group.create_task(session("client-0", retry_every_s=0.0).run())
        while clock() < began_s + 2 * HELLOS_AT_ONCE:  # noqa: ASYNC110 - tries more than there are turns
            await asyncio.sleep(0)
        server.unreachable = False
        (await server.welcome()).say(goodbye=pb.Goodbye(reason="enough", final=True))


async def test_a_stream_on_which_no_welcome_comes_is_opened_anew() -> None:
    server, session = one_host(Clock())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(session("client-0", retry_every_s=0.0, welcome_within_s=0.05).run())
        assert (await (await server.accept()).heard()).WhichOneof("kind") == "hello"
        welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run")
        server.says_at_once = ({"welcome": welcome}, {"goodbye": pb.Goodbye(reason="enough", final=True)})
    assert task.result() == "enough"
    assert server.opened == server.closed > 1


async def test_a_client_gives_up_when_no_welcome_comes_for_long_enough() -> None:
    _, session = one_host(Clock(step_s=10.0))
    with pytest.raises(PauseflError, match="the server cannot be reached: it gives no welcome"):
        await session("client-0", retry_every_s=0.0, welcome_within_s=0.01).run()
