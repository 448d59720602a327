"""Holding a message back: never let go early, and hardly late."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_client.link import hold_until
from rigs.clock import Clock


def hold(due_s: float, clock: Clock) -> float:
    """When the hold ended, on the clock."""
    asyncio.run(hold_until(due_s, clock))
    return clock.now_s


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 0.01), st.floats(1e-5, 1e-2))
def test_a_hold_never_ends_early(wait_s: float, step_s: float) -> None:
    clock = Clock(step_s)
    due_s = clock.now_s + wait_s
    assert due_s - 1e-9 <= hold(due_s, clock) < due_s + 2 * step_s + 1e-9


@pytest.mark.parametrize("due_s", [100.0, 50.0, -1.0, 0.0])
def test_what_is_due_already_is_let_go_at_once(due_s: float) -> None:
    clock = Clock(1e-3)
    hold(due_s, clock)
    assert clock.now_s == pytest.approx(100.002)  # two looks


async def test_others_run_while_a_message_is_held() -> None:
    clock, turns = Clock(1e-5), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await hold_until(clock.now_s + 1e-3, clock)
    task.cancel()
    assert turns > 10


async def test_a_hold_can_be_cancelled() -> None:
    held = asyncio.ensure_future(hold_until(time.monotonic() + 1000))
    await asyncio.sleep(0)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held


@pytest.mark.realtime
async def test_a_hold_is_hardly_late() -> None:
    """The best of twenty is within a millisecond on any machine, and none is early."""
    late_s = []
    for _ in range(20):
        due_s = time.monotonic() + 0.01
        await hold_until(due_s)
        late_s.append(time.monotonic() - due_s)
    assert 0 <= min(late_s) < 1e-3
