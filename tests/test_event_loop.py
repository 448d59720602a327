"""The event loop of processes that talk gRPC: its turns, and that no event is lost."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial

import grpc
import pytest

from pausefl_process.event_loop import EventLoop


class Grpc:
    """gRPC's way of telling an event loop of its events: a byte for each, of which one is taken a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._events: list[int] = []
        self.handled: list[list[int]] = []
        self._turned = asyncio.Event()
        loop.add_reader(self._reader, partial(self._handle_events, loop))
        self._loop = loop

    def happen(self, *events: int) -> None:
        for event in events:
            self._events.append(event)
            self._writer.send(b"1")

    def _handle_events(self, loop: asyncio.AbstractEventLoop) -> None:
        assert loop is self._loop
        assert self._reader.recv(1) == b"1"
        self.handled.append(self._events)
        self._events = []
        self._turned.set()

    async def turns(self, many: int) -> None:
        while len(self.handled) < many:
            self._turned.clear()
            await self._turned.wait()

    def close(self) -> None:
        self._loop.remove_reader(self._reader)
        self._reader.close()
        self._writer.close()


@pytest.mark.parametrize(
    ("make_loop", "turns"), [(EventLoop, [[1, 2, 3], [4]]), (asyncio.SelectorEventLoop, [[1, 2, 3], [], [], [4]])]
)
def test_all_events_that_are_there_take_one_turn(
    make_loop: Callable[[], asyncio.AbstractEventLoop], turns: list[list[int]]
) -> None:
    async def play() -> list[list[int]]:
        with closing(Grpc(asyncio.get_running_loop())) as told:
            told.happen(1, 2, 3)
            await told.turns(len(turns) - 1)
            told.happen(4)
            await told.turns(len(turns))
            return told.handled

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(play()) == turns


def test_other_readers_are_left_as_they_are() -> None:
    async def play() -> bytes:
        reader, writer = socket.socketpair()
        with closing(reader), closing(writer):
            read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().add_reader(reader, lambda: read.set_result(reader.recv(10)))
            writer.send(b"all of it")
            try:
                return await read
            finally:
                asyncio.get_running_loop().remove_reader(reader)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(play()) == b"all of it"


def test_grpc_is_known_by_how_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """If grpcio comes to read its events in another way, this loop is of no use: look whether it can go."""
    spared: list[object] = []
    plain = asyncio.SelectorEventLoop.add_reader

    def noted(loop: asyncio.SelectorEventLoop, fd: socket.socket, callback: Callable[..., None], *args: object) -> None:
        spared.append(callback)
        plain(loop, fd, callback, *args)

    async def open_channel() -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1"):
            pass

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", noted)
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(open_channel())
    assert [getattr(callback, "__qualname__", "") for callback in spared] == ["_once_for_all.<locals>.handle"]
