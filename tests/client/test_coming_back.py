"""How clients connect to a server again: how often, how long, and only a few of one process at a time."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pausefl_client.link import Link
from pausefl_client.privacy.release import Releaser
from pausefl_client.reconnection import Reconnection
from pausefl_client.session import ClientSession
from pausefl_client.session_settings import ClientSettings, HostResources
from pausefl_client.transport import connect, fetch_offer
from pausefl_process.host_monitor import HostWatch
from pausefl_proto.endpoint import HELLOS_AT_ONCE
from pausefl_proto.errors import ConfigError, DamageError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION
from rigs.clock import Clock
from rigs.session import FakeServer, FakeTrainer, SessionRig

BEGAN_S = SessionRig().clock()
LOST = "client-007: no connection to the server"


async def knock(port: int) -> None:
    """Connect again and again, as a session does without a server, but with a constant wait between the attempts."""
    while True:
        with suppress(OSError):
            async with connect(f"127.0.0.1:{port}") as stream:
                await stream.write(b"")
                await stream.read()
        await asyncio.sleep(1.0)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "connect" in message]


async def test_waits_grow_while_messages_are_damaged_and_begin_short_after_a_sound_stream() -> None:
    way = Reconnection("a", 60.0, retry_every_s=1e-9)
    for _ in range(3):
        way.connected()
        way.damaged(DamageError("sent a message that does not match its checksum"))
        await way.wait()
    assert way._retry_s == 8e-9
    way.connected()
    way.connected()
    assert way._retry_s == 1e-9


async def test_the_log_says_once_what_a_client_waits_for_before_it_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = SessionRig()
    rig.server.unreachable = True
    async with rig.running() as task:
        with pytest.raises(PauseflError, match="cannot be reached: nobody answers"):
            await asyncio.wait_for(task, 20)
    assert 60 < rig.clock() - BEGAN_S < 63
    assert said(caplog) == [f"{LOST} (nobody answers); trying for up to 60 s"]


async def test_the_log_says_that_a_client_lost_its_server_and_found_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = SessionRig()
    async with rig.running():
        (await rig.server.welcome()).give(OSError("reset"))
        (await rig.server.accept()).say(goodbye=pb.Goodbye(reason="is connected already"))  # another uses its id
        await (await rig.server.welcome()).ask(rig.model)
    lost = [f"{LOST} ({reason}); trying for up to 60 s" for reason in ("reset", "is connected already")]
    assert said(caplog) == [*lost, "client-007: connected"]


async def test_a_client_that_stays_outlasts_a_day_of_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = SessionRig(give_up_after_s=math.inf)
    rig.server.unreachable, rig.server.silence_s = True, 3600.0
    async with rig.running():
        while rig.clock() < BEGAN_S + 24 * 3600.0:  # noqa: ASYNC110  # the rig's clock sends no event
            await asyncio.sleep(0)
        rig.server.unreachable = False
        await (await rig.server.welcome()).ask(rig.model)
    assert said(caplog) == [f"{LOST} (nobody answers); trying until it is back", "client-007: connected"]


async def test_the_waits_of_a_client_that_stays_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s = list[float]()

    async def note(wait_s: float) -> None:
        waited_s.append(wait_s)

    monkeypatch.setattr("pausefl_client.reconnection.asyncio.sleep", note)
    reconnection = Reconnection("a", math.inf, clock=lambda: sum(waited_s))
    for _ in range(1000):
        reconnection.failed(OSError("nobody answers"))
        await reconnection.wait()
    assert max(waited_s) <= 7.5
    reconnection.connected()
    await reconnection.wait()
    assert waited_s[-1] <= 0.3
    await Reconnection("b", math.inf).wait()
    assert waited_s[-1] != waited_s[0], "or all clients would come back at once"


async def test_a_session_made_for_a_run_leaves_where_its_server_plays_another() -> None:
    rig = SessionRig(run_id="the first")
    async with rig.running() as task:
        stream = await rig.server.accept()
        assert (await stream.heard()).hello.run_id == "the first", "by which a server tells that it means no other"
        stream.say(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="the second"))
        assert await asyncio.wait_for(task, 20) == "the server plays another run"


UNUSABLE = 'tls.certificate = "me.pem", tls.key = "me.key": are no certificate and its key in PEM'


@pytest.mark.parametrize("was_welcome", [False, True])
async def test_a_client_whose_certificate_is_unusable_waits_for_another_once_it_was_welcome(was_welcome: bool) -> None:
    """It has expired, or is being replaced and its key still belongs to the old one."""
    rig = SessionRig(give_up_after_s=60.0 if was_welcome else math.inf)
    rig.server.unreachable, rig.server.failure = not was_welcome, ConfigError(UNUSABLE)
    async with rig.running() as task:
        if was_welcome:
            stream, rig.server.unreachable = await rig.server.welcome(), True
            stream.give(OSError("reset"))
        with pytest.raises(PauseflError, match=f"^{'the server cannot be reached: ' * was_welcome}{UNUSABLE}$"):
            await asyncio.wait_for(task, 20)
    assert (rig.clock() > BEGAN_S + 60.0) == was_welcome, "it tries as long as its settings say, or once"


async def test_the_log_says_once_that_a_client_waits_for_its_experiment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(PauseflError, match="cannot be reached"):
        await fetch_offer("127.0.0.1:1", None, "", Reconnection("a", 1.5))
    (line,) = said(caplog)
    assert line.startswith("a: no connection to the server (")


async def test_clients_of_one_process_do_not_wait_ever_longer_for_a_server_that_is_gone() -> None:
    """All clients of a process share one gRPC connection. gRPC by itself waits up to two minutes between attempts."""
    knocks = asyncio.Semaphore(0)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocks.release()
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    clients = [asyncio.ensure_future(knock(server.sockets[0].getsockname()[1])) for _ in range(2)]
    async with asyncio.timeout(12):  # gRPC's own waits would add up to more than half a minute
        for _ in range(8):
            await knocks.acquire()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    server.close()


def one_host(clock: Clock) -> tuple[FakeServer, Callable[..., ClientSession]]:
    """A fake server, and (client id, settings...) -> a session with it. All sessions belong to one process."""
    server, host = FakeServer(clock), HostResources(None, HostWatch(clock))

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
        while clock() < began_s + 2 * HELLOS_AT_ONCE:  # noqa: ASYNC110 - more attempts than there are turns
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
