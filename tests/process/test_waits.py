"""What a process says of its tasks when it gets SIGUSR1."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

import pytest

from pausefl.runtime.processes.waits import run_telling_waits, waits
from pausefl_process.ending import signals_to


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
    done: list[int] = []

    async def work() -> int:
        return 5

    thread = threading.Thread(target=lambda: done.append(run_telling_waits(work())))
    thread.start()
    thread.join()
    assert done == [5]
