"""What a process says of its tasks when it gets SIGUSR1."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from pausefl_process.waits import waits, waits_told_on_sigusr1


async def outer(event: asyncio.Event) -> None:
    await inner(event)


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_wait_is_told_from_the_outermost_call_to_the_innermost() -> None:
    task = asyncio.create_task(outer(asyncio.Event()), name="client-007")
    await asyncio.sleep(0)
    (line,) = (line for line in waits() if line.startswith("client-007: "))
    places = [place.split()[-1] for place in line.removeprefix("client-007: ").split(" > ")]
    assert places[:3] == ["outer", "inner", "wait"]
    assert f"{Path(__file__).name}:" in line
    task.cancel()


async def test_sigusr1_is_answered_within_the_block_and_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    former = signal.getsignal(signal.SIGUSR1)
    with waits_told_on_sigusr1():
        os.kill(os.getpid(), signal.SIGUSR1)
        said = ""
        while not said:
            await asyncio.sleep(0)
            said = capfd.readouterr().err
    assert "test_sigusr1_is_answered_within_the_block_and_ends_nothing" in said
    assert signal.getsignal(signal.SIGUSR1) == former
