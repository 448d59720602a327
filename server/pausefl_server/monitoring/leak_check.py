"""Checks that a run releases its tasks and file descriptors when it ends."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

_LOOK_EVERY_S = 0.02


def count_held() -> dict[str, int]:
    """The number of this event loop's tasks, and of the process's open descriptors (0 without /proc)."""
    listed = Path("/proc/self/fd")
    descriptors = sum(1 for _ in listed.iterdir()) if listed.exists() else 0
    return {"tasks": len(asyncio.all_tasks()), "descriptors": descriptors}


async def left_over(before: Mapping[str, int], patience_s: float) -> dict[str, int]:
    """The number of tasks and descriptors beyond `before`. Waits up to `patience_s` for them to close."""
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + patience_s
    while True:
        left = {what: max(0, count - before[what]) for what, count in count_held().items()}
        if not any(left.values()) or clock() > deadline_s:
            return left
        await asyncio.sleep(_LOOK_EVERY_S)
