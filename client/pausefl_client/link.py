"""The client's access link: it holds messages back by the delays drawn for them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

# The event loop wakes up about a millisecond late; the last stretch of a wait is spent yielding to it instead.
_SPIN_S = 0.0015


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds to hold one exchange's messages back, on the way down and on the way up."""

    down_s: float = 0.0
    up_s: float = 0.0


DrawDelays = Callable[[int], Delays]
"""round -> delays, a function of (seed, client, round) only."""


def no_delays(_: int) -> Delays:
    """A link that holds nothing back."""
    return Delays()


async def hold_until(due_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Return as soon after `due_s` (on `clock`) as the machine allows; at once if it has passed."""
    left_s = due_s - clock()
    if left_s > _SPIN_S:
        await asyncio.sleep(left_s - _SPIN_S)
    while clock() < due_s:  # noqa: ASYNC110 - there is no event to wait for but time
        await asyncio.sleep(0)
