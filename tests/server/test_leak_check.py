"""What a run leaves behind is told from what is only slow to close."""

import asyncio
import os

from pausefl_server.monitoring.leak_check import count_held, left_over


async def test_what_closes_late_is_not_left_over() -> None:
    before = count_held()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    task = asyncio.ensure_future(asyncio.sleep(0.05))
    asyncio.get_running_loop().call_later(0.1, os.close, descriptor)
    assert await left_over(before) == {"tasks": 0, "descriptors": 0}
    await task


async def test_what_stays_open_is_left_over() -> None:
    before = count_held()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    forever = asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.sleep(0)
    assert await left_over(before, patience_s=0.1) == {"tasks": 1, "descriptors": 1}
    os.close(descriptor)
    forever.cancel()
