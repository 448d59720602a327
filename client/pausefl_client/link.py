"""The client's emulated access link: it holds messages back for their drawn delays and by its bandwidth."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

SPIN_S = 0.0015
"""The last part of a wait, spent yielding to the event loop: `asyncio.sleep` returns about a millisecond late."""
_RESOLUTION_S = 1e-9  # of clocks: a remaining wait of up to 1 ns counts as zero
# How much of a bucket's time one client's turn takes, when several clients share the bucket.
_TURN_S = 0.02

Clock = Callable[[], float]
Mode = Literal["additive", "total"]
"""additive: drawn time is added to real time. total: an exchange takes the drawn time, unless its work takes longer."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds to hold one exchange's messages back: down to the client, and up to the server."""

    down_s: float = 0.0
    up_s: float = 0.0


DrawDelays = Callable[[int], Delays]
"""round -> delays. They depend on (seed, client, round) only."""


class TokenBucket:
    """A token bucket: it gains `rate_bytes_per_s` tokens a second and holds at most `burst_bytes` of them.

    A payload byte costs one token. First come, first served. The state is one number: the time at which everything let
    through so far would have passed at the bare rate.
    """

    def __init__(self, rate_bytes_per_s: float, burst_bytes: int) -> None:
        self._rate_bytes_per_s = rate_bytes_per_s
        self._burst_s = burst_bytes / rate_bytes_per_s
        self.turn_bytes = max(burst_bytes, math.ceil(_TURN_S * rate_bytes_per_s))
        """How many bytes of one payload pass before it is another payload's turn."""
        self._passed_s = -math.inf

    def reserve(self, at_s: float, size_bytes: int) -> float:
        """Let a payload in at `at_s`, and return the time at which its last byte is through."""
        self._passed_s = max(self._passed_s, at_s - self._burst_s) + size_bytes / self._rate_bytes_per_s
        return max(at_s, self._passed_s)


@dataclass(frozen=True, slots=True)
class Link:
    """One client's link, where its messages wait. The last bucket may be shared with links on the same event loop."""

    draw: DrawDelays = lambda _: Delays()
    mode: Mode = "additive"
    down: tuple[TokenBucket, ...] = ()
    up: tuple[TokenBucket, ...] = ()
    spin_s: float = SPIN_S
    """See `SPIN_S`. 0 if the event loop is never late."""

    def lets_pass(self, delays: Delays) -> bool:
        """Whether a model passes at once, without being held back."""
        return not self.down and delays.down_s <= 0

    async def hold_model(
        self, delays: Delays, first_s: float, last_s: float, size_bytes: int, clock: Clock = time.monotonic
    ) -> float:
        """Hold back a model received from `first_s` to `last_s`, and return the seconds drawn for its way."""
        if self.mode == "total":
            return delays.down_s  # `hold_update` waits for both delays
        through_s = max(last_s, await _pass(self.down, first_s, size_bytes, clock))
        asked_s = through_s - last_s + delays.down_s
        await hold_until(last_s + asked_s, clock, self.spin_s)
        return asked_s

    async def hold_update(
        self, delays: Delays, first_s: float, done_s: float, size_bytes: int, clock: Clock = time.monotonic
    ) -> float:
        """Hold back an update that was ready at `done_s`, and return the seconds drawn for its way."""
        if self.mode == "total":
            await hold_until(first_s + delays.down_s + delays.up_s, clock, self.spin_s)
            return delays.up_s
        asked_s = await _pass(self.up, done_s, size_bytes, clock) - done_s + delays.up_s
        await hold_until(done_s + asked_s, clock, self.spin_s)
        return asked_s


async def _pass(buckets: tuple[TokenBucket, ...], at_s: float, size_bytes: int, clock: Clock) -> float:
    """Put a payload through all the buckets, turn by turn, and return the time at which its last byte is through.

    A turn begins when the previous one was due, not when the event loop woke up, so lateness costs no bandwidth. The
    last bucket sets the length of a turn. Clients may share that bucket, so their turns are equally long.
    """
    turn_bytes = buckets[-1].turn_bytes if buckets else 0
    while buckets and size_bytes > 0:
        await asyncio.sleep(max(0.0, at_s - clock()))
        part_bytes = min(size_bytes, turn_bytes)
        at_s = max(bucket.reserve(at_s, part_bytes) for bucket in buckets)
        size_bytes -= part_bytes
    return at_s


async def hold_until(due_s: float, clock: Clock = time.monotonic, spin_s: float = SPIN_S) -> None:
    """Return as soon after `due_s` (on `clock`) as the machine allows, or at once if that time has passed."""
    left_s = due_s - clock()
    if left_s > spin_s:
        await asyncio.sleep(left_s - spin_s)
    while due_s - clock() > _RESOLUTION_S:  # noqa: ASYNC110 - there is no event to wait for but time
        await asyncio.sleep(0)
