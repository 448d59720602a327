"""How the clients of one process come to a server: a few at a time, so that it sends none of them away."""

import asyncio

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


async def test_the_next_client_opens_its_stream_once_an_earlier_one_is_welcome() -> None:
    clock = Clock()
    server, host = FakeServer(clock), HostResources(None, clock)
    async with asyncio.TaskGroup() as group:
        for i in range(HELLOS_AT_ONCE + 1):
            settings = ClientSettings(f"client-{i}", "")
            session = ClientSession(settings, FakeTrainer(clock), Releaser(None), Link(), server.connect, host)
            group.create_task(session.run())
        streams = [await server.accept() for _ in range(HELLOS_AT_ONCE)]
        assert [(await stream.heard()).WhichOneof("kind") for stream in streams] == ["hello"] * HELLOS_AT_ONCE
        assert server.opened == HELLOS_AT_ONCE
        for stream in streams:
            stream.say(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run"))
        streams.append(await server.welcome())
        for stream in streams:
            stream.say(goodbye=pb.Goodbye(reason="enough", final=True))


async def test_a_client_without_a_server_gives_its_turn_back() -> None:
    clock = Clock()
    server, host = FakeServer(clock), HostResources(None, clock)
    server.unreachable, began_s = True, clock()
    settings = ClientSettings("client-0", "", retry_every_s=0.0)
    session = ClientSession(settings, FakeTrainer(clock), Releaser(None), Link(), server.connect, host)
    async with asyncio.TaskGroup() as group:
        group.create_task(session.run())
        while clock() < began_s + 2 * HELLOS_AT_ONCE:  # noqa: ASYNC110 - tries more than there are turns
            await asyncio.sleep(0)
        server.unreachable = False
        (await server.welcome()).say(goodbye=pb.Goodbye(reason="enough", final=True))


async def test_a_stream_on_which_no_welcome_comes_is_opened_anew() -> None:
    clock = Clock()
    server, host = FakeServer(clock), HostResources(None, clock)
    settings = ClientSettings("client-0", "", retry_every_s=0.0, welcome_within_s=0.05)
    session = ClientSession(settings, FakeTrainer(clock), Releaser(None), Link(), server.connect, host)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(session.run())
        assert (await (await server.accept()).heard()).WhichOneof("kind") == "hello"
        welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run")
        server.says_at_once = ({"welcome": welcome}, {"goodbye": pb.Goodbye(reason="enough", final=True)})
    assert task.result() == "enough"
    assert server.opened == server.closed > 1


async def test_a_client_gives_up_when_no_welcome_comes_for_long_enough() -> None:
    clock = Clock(step_s=10.0)
    server, host = FakeServer(clock), HostResources(None, clock)
    settings = ClientSettings("client-0", "", retry_every_s=0.0, welcome_within_s=0.01)
    session = ClientSession(settings, FakeTrainer(clock), Releaser(None), Link(), server.connect, host)
    with pytest.raises(PauseflError, match="the server cannot be reached: it gives no welcome"):
        await session.run()
