"""The event loop of processes that talk gRPC: its turns, and that no event is lost."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import grpc
import pytest

from pausefl.runtime.processes.event_loop import EventLoop

T = TypeVar("T")


class Grpc:
    """gRPC's way of telling an event loop of its events: a byte for each, then all that are there at the first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._events: list[int] = []
        self.turns: list[list[int]] = []
        """The events of each turn of the loop in which it was told of some."""
        self.on_event: Callable[[int], None] = lambda _: None
        self._is_new_turn = True
        self._turned = asyncio.Event()
        loop.add_reader(self.reader, partial(self._handle_events, loop))
        self._loop = loop

    def happen(self, *events: int) -> None:
        for event in events:
            self._events.append(event)
            self._writer.send(b"1")

    async def told(self, turns: int) -> None:
        while len(self.turns) < turns:
            self._turned.clear()
            await self._turned.wait()

    def take_all(self) -> None:
        self.reader.recv(10)

    def close(self) -> None:
        self._loop.remove_reader(self.reader)
        self.reader.close()
        self._writer.close()

    def _handle_events(self, loop: asyncio.AbstractEventLoop) -> None:
        assert loop is self._loop
        assert self.reader.recv(1) == b"1"
        if self._is_new_turn:
            self._is_new_turn = False
            self.turns.append([])
            loop.call_soon(self._end_turn)
        while self._events:
            self.turns[-1].append(event := self._events.pop(0))
            self.on_event(event)

    def _end_turn(self) -> None:
        self._is_new_turn = True
        self._turned.set()


def run(main: Coroutine[Any, Any, T], make_loop: Callable[[], asyncio.AbstractEventLoop] = EventLoop) -> T:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main)


@pytest.mark.parametrize(
    ("make_loop", "turns"), [(EventLoop, [[1, 2, 3], [4]]), (asyncio.SelectorEventLoop, [[1, 2, 3], [], [], [4]])]
)
def test_ready_events_take_one_turn(make_loop: Callable[[], asyncio.AbstractEventLoop], turns: list[list[int]]) -> None:
    async def play() -> list[list[int]]:
        with closing(Grpc(asyncio.get_running_loop())) as grpcs:
            grpcs.happen(1, 2, 3)
            await grpcs.told(len(turns) - 1)
            grpcs.happen(4)
            await grpcs.told(len(turns))
            return grpcs.turns

    assert run(play(), make_loop) == turns


def fail_at(event: int, happened: int) -> None:
    if happened == event:
        raise RuntimeError(f"event {event}")


def test_events_after_one_that_fails_are_handled_in_the_next_turn() -> None:
    async def play() -> list[list[int]]:
        loop, failed = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: failed.append(str(context["exception"])))
        with closing(Grpc(loop)) as grpcs:
            grpcs.on_event = partial(fail_at, 2)
            grpcs.happen(1, 2, 3)
            await grpcs.told(2)
            assert failed == ["event 2"]
            return grpcs.turns

    assert run(play()) == [[1, 2], [3]]


def test_bytes_that_another_loop_has_taken_are_no_error() -> None:
    async def play() -> list[list[int]]:
        loop, failed = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        with closing(Grpc(loop)) as grpcs:
            grpcs.on_event = lambda event: None if event != 1 else grpcs.take_all()
            grpcs.happen(1, 2, 3)
            await grpcs.told(1)
            grpcs.happen(4)
            await grpcs.told(2)
            assert failed == []
            return grpcs.turns

    assert run(play()) == [[1, 2, 3], [4]]


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

    assert run(play()) == b"all of it"


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
    run(open_channel())
    assert [getattr(callback, "__qualname__", "") for callback in spared] == ["_once_for_all.<locals>.handle"]
