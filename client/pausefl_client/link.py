"""The client's access link: it holds messages back by the delays drawn for them and by the bandwidth it has."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# The event loop wakes up about a millisecond late; the last stretch of a wait is spent yielding to it instead.
SPIN_S = 0.0015
"""The last stretch of a wait, which is spent yielding."""
_RESOLUTION_S = 1e-9
# Clients that share a bucket take turns after so much of its time.
_TURN_S = 0.02

Clock = Callable[[], float]
Mode = Literal["additive", "total"]
"""additive: drawn time comes on top of real time; total: an exchange takes the drawn time where it can."""


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


class TokenBucket:
    """`rate` tokens a second, at most `burst_bytes` saved up; a payload byte costs one. First come, first served.

    Kept as the one time at which all that was let through so far would have passed at the bare rate.
    """

    def __init__(self, rate_bytes_per_s: float, burst_bytes: int) -> None:
        self._rate_bytes_per_s = rate_bytes_per_s
        self._burst_s = burst_bytes / rate_bytes_per_s
        self.turn_bytes = max(burst_bytes, math.ceil(_TURN_S * rate_bytes_per_s))
        """How much one payload may take before another's turn."""
        self._passed_s = -math.inf

    def reserve(self, at_s: float, size_bytes: int) -> float:
        """Let a payload in at `at_s`; returns when its last byte is through."""
        self._passed_s = max(self._passed_s, at_s - self._burst_s) + size_bytes / self._rate_bytes_per_s
        return max(at_s, self._passed_s)


@dataclass(frozen=True, slots=True)
class Link:
    """Where one client's messages wait. The last bucket may be shared with other links on the same event loop."""

    draw: DrawDelays = no_delays
    mode: Mode = "additive"
    down: tuple[TokenBucket, ...] = ()
    up: tuple[TokenBucket, ...] = ()
    spin_s: float = SPIN_S
    """0 where the event loop is never late."""

    def lets_pass(self, delays: Delays) -> bool:
        """Whether a model is not held back at all."""
        return not self.down and delays.down_s <= 0

    async def hold_model(
        self, delays: Delays, first_s: float, last_s: float, size_bytes: int, clock: Clock = time.monotonic
    ) -> float:
        """Hold back a model that came from `first_s` to `last_s`; returns the seconds drawn for its way.

        additive: its bytes pass the buckets, whose time counts as drawn, then the delay. total: it is not held, the
        update makes up for it.
        """
        if self.mode == "total":
            return delays.down_s
        through_s = max(last_s, await _pass(self.down, first_s, size_bytes, clock))
        asked_s = through_s - last_s + delays.down_s
        await hold_until(last_s + asked_s, clock, self.spin_s)
        return asked_s

    async def hold_update(
        self, delays: Delays, first_s: float, done_s: float, size_bytes: int, clock: Clock = time.monotonic
    ) -> float:
        """Hold back an update that was ready at `done_s`; returns the seconds drawn for its way.

        total: until the drawn time has passed since `first_s`; at once if the work took longer, an overrun.
        """
        if self.mode == "total":
            await hold_until(first_s + delays.down_s + delays.up_s, clock, self.spin_s)
            return delays.up_s
        asked_s = await _pass(self.up, done_s, size_bytes, clock) - done_s + delays.up_s
        await hold_until(done_s + asked_s, clock, self.spin_s)
        return asked_s


async def _pass(buckets: tuple[TokenBucket, ...], at_s: float, size_bytes: int, clock: Clock) -> float:
    """Put a payload through all the buckets, turn by turn; returns when its last byte is through.

    A turn begins when the one before was due, not when the event loop woke up: lateness costs no bandwidth. The last
    bucket, which clients may share, says how long a turn is: the same for all of them, whatever buckets are their own.
    """
    turn_bytes = buckets[-1].turn_bytes if buckets else 0
    while buckets and size_bytes > 0:
        await asyncio.sleep(max(0.0, at_s - clock()))
        part_bytes = min(size_bytes, turn_bytes)
        at_s = max(bucket.reserve(at_s, part_bytes) for bucket in buckets)
        size_bytes -= part_bytes
    return at_s


async def hold_until(due_s: float, clock: Clock = time.monotonic, spin_s: float = SPIN_S) -> None:
    """Return as soon after `due_s` (on `clock`) as the machine allows; at once if it has passed.

    A nanosecond, the resolution of clocks, counts as nothing.
    """
    left_s = due_s - clock()
    if left_s > spin_s:
        await asyncio.sleep(left_s - spin_s)
    while due_s - clock() > _RESOLUTION_S:  # noqa: ASYNC110 - there is no event to wait for but time
        await asyncio.sleep(0)
