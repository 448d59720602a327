"""A process's event loop, memory, garbage collection and cores, and the report of its tasks on SIGUSR1."""

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest

from pausefl.runtime.processes.resources import refuse_few_files
from pausefl.runtime.processes.waits import EventLoop, run_telling_waits, waits
from pausefl.runtime.server.process import sparing_clients
from pausefl_process.ending import signals_to
from pausefl_process.events import Notice, ProgressEvent
from pausefl_process.machine import available_cores
from pausefl_proto.errors import ConfigError
from rigs.command import python
from rigs.telemetry import round_event


class Grpc:
    """Imitates how gRPC notifies an event loop: one byte for each event. At the first byte, all events are handled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._events: list[int] = []
        self.turns: list[list[int]] = []
        """The events of each turn of the loop that handled any."""
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


def run(main: Coroutine[Any, Any, Any], make_loop: Callable[[], asyncio.AbstractEventLoop] = EventLoop) -> Any:
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


@pytest.mark.parametrize(("is_failing", "turns"), [(True, [[1, 2], [3], [4]]), (False, [[1, 2, 3], [4]])])
def test_events_after_one_that_fails_or_whose_bytes_another_loop_has_taken(is_failing: bool, turns: list[Any]) -> None:
    async def play() -> list[list[int]]:
        loop, failed = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: failed.append(str(context["exception"])))
        with closing(Grpc(loop)) as grpcs:
            taking = {1: grpcs.take_all}
            grpcs.on_event = partial(fail_at, 2) if is_failing else lambda event: taking.get(event, lambda: None)()
            grpcs.happen(1, 2, 3)
            await grpcs.told(len(turns) - 1)
            grpcs.happen(4)
            await grpcs.told(len(turns))
            assert failed == ["event 2"] * is_failing
            return grpcs.turns

    assert run(play()) == turns


def test_grpc_is_known_by_how_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, grpcio reads its events in another way. This event loop is then useless: check if it can go."""
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
    assert [getattr(callback, "__qualname__", "") for callback in spared] == ["_take_all"]


PLAYED = """
import resource, sys
import numpy as np
from pausefl.runtime.processes.resources import keep_freed_memory

def play():
    updates = [np.empty(2_500_000, np.float32) for _ in range(10)]
    for update in updates:
        update.fill(1.0)

if sys.argv[1]:
    keep_freed_memory(int(sys.argv[1]))
play()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
play()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_a_round_of_great_updates_finds_the_memory_of_the_last_one() -> None:
    kept, plain = (int(python("-c", PLAYED, most_bytes)) for most_bytes in (str(1 << 30), ""))
    assert kept < 40 < plain  # in pages of 2 MiB, if the kernel has them


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(700, *thresholds[1:])  # Python's default; servers of earlier tests may have changed it
    gc.unfreeze()
    yield
    gc.set_threshold(*thresholds)


def test_a_process_that_may_not_open_enough_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, 100))
    refuse_few_files(clients=60, ledgers=20)
    for many, needed in (({"clients": 61}, 101), ({"ledgers": 21}, 103)):
        with pytest.raises(ConfigError, match=rf"^at most 100 files may be open .*: about {needed} are needed$"):
            refuse_few_files(**many)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, resource.RLIM_INFINITY))
    refuse_few_files(clients=10**6)


def test_clients_are_spared_once_a_round_was_played_and_again_when_more_are_there() -> None:
    reported: list[ProgressEvent] = []
    report = sparing_clients(reported.append)
    spared = []
    events: list[ProgressEvent] = [Notice("no round yet"), *(round_event(1, connected=n) for n in (3, 3, 2, 4))]
    for event in events:
        lasting: Any = [[] for _ in range(1000)]  # objects that a client keeps
        report(event)
        spared.append(gc.get_freeze_count())
        del lasting
    assert spared[0] == 0
    assert spared[1] > 1000
    assert spared[1] >= spared[2] >= spared[3]
    assert spared[4] > spared[3]
    assert len(reported) == 5


GIVEN = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "bounds", "cores"),
    [
        ("0::/job/step", {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}, 1),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "6400000 100000"}, GIVEN),
        ("4:memory:/m\n1:cpu,cpuacct:/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000"}, 1),
        ("1:cpu:/job", {"cpu/job/cpu.cfs_quota_us": "-1"}, GIVEN),
        ("", {}, GIVEN),
    ],
)
def test_a_quota_bounds_cores_as_affinity_does(groups: str, bounds: dict[str, str], cores: int, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in bounds.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        file.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert available_cores(tmp_path, tmp_path / "tree") == cores


async def outer(event: asyncio.Event) -> None:
    async for _ in generated(event):
        pass


async def generated(event: asyncio.Event) -> AsyncIterator[None]:
    await inner(event)
    yield


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_wait_is_told_from_the_outermost_call_to_the_innermost_through_generators() -> None:
    task = asyncio.create_task(outer(asyncio.Event()), name="client-007")
    await asyncio.sleep(0)
    (line,) = (line for line in waits() if line.startswith("client-007: "))
    places = [place.split()[-1] for place in line.removeprefix("client-007: ").split(" > ")]
    assert places[:4] == ["outer", "generated", "inner", "wait"]
    assert f"{Path(__file__).name}:" in line
    task.cancel()


def test_sigusr1_is_answered_and_ends_nothing_and_the_old_handler_is_back(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[int] = []

    def hear(number: int, _: FrameType | None) -> None:
        heard.append(number)

    async def asked() -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        said = ""
        while not said:
            await asyncio.sleep(0)
            said = capfd.readouterr().err
        return said

    with signals_to(hear, signal.SIGUSR1):
        said = run_telling_waits(asked())
        assert not heard
        signal.raise_signal(signal.SIGUSR1)
    assert "asked" in said
    assert heard == [signal.SIGUSR1]


def test_work_in_another_thread_is_done_without_signals() -> None:
    async def work() -> int:
        return 5

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run_telling_waits, work()).result(20) == 5
