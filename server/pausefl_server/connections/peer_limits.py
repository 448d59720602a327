"""Limits on peers: the resources that one may use before its hello, and what the client of one id may send."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn
from weakref import WeakValueDictionary

from pausefl_proto.endpoint import HELLOS_AT_ONCE
from pausefl_proto.errors import TryLaterError

HELLO_TIMEOUT_S = 10.0
MAX_HELLO_BYTES = 256 << 10
# How many hellos are read at once. gRPC accepts each up to the size of a frame, and buffers it while it arrives.
_MOST_AT_ONCE = 64
MOST_WAITING = 128
"""How many streams may wait for their hello; one connection may have half of them. gRPC buffers about a megabyte of
each, whether it is read or not."""
MOST_ENDING = 32
"""How many ended streams may wait until the peer reads their last message; one connection may have half of them. Each
ends only with its connection, which is not idle meanwhile: at most half of the spare connections are held so."""

# How many unsolicited messages, hellos included, a client may send at once, and how many more each second.
_UNSOLICITED_BURST, _UNSOLICITED_PER_S = 64.0, 4.0
_MOST_REJECTIONS = 8
_REJECTION_EXPIRES_S = 5.0
_SHORTEST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0
# A client's backoff is the shortest again if this many times its last one have passed without another.
_BACKOFF_RESET_AFTER = 10.0
# How many ended streams a client may leave unread: gRPC keeps each until it is read, or its connection ends.
_MOST_DRAINING = 4


class StreamQuota:
    """Limits a number of streams. A connection may hold no more than are still free, so that few cannot take all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    @contextmanager
    def reserved(self, connection: str) -> Iterator[None]:
        """Count a stream of this connection during the block; TryLaterError if the quota is used up."""
        if self._held[connection] >= self._most - self._held.total():
            raise TryLaterError("too many clients say hello at once")
        self._held[connection] += 1
        try:
            yield
        finally:
            self._held -= Counter((connection,))


class HelloLimiter:
    """Limits how many hellos are read at once, in all and per connection. Others wait; if too many do, they fail."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._slots_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting = StreamQuota(MOST_WAITING)

    @asynccontextmanager
    async def slot(self, connection: str) -> AsyncIterator[None]:
        """Hold one of this connection's slots while the block reads the hello.

        TryLaterError if the slot or the hello does not come in time (the hello's length may have been damaged on the
        way), or if too many streams wait.
        """
        with self._waiting.reserved(connection):
            slots = self._slots_of.setdefault(connection, asyncio.Semaphore(HELLOS_AT_ONCE))
            try:
                async with asyncio.timeout(self._timeout_s), slots, self._slots:
                    yield
            except TimeoutError:
                raise TryLaterError(f"said no hello within {self._timeout_s:g} s") from None


class AbuseError(TryLaterError):
    """The client has sent too many messages, or too many that were rejected; it may come back after its backoff."""


class ClientRateLimit:
    """The rate limit of one client id: too many unsolicited or rejected messages cause a backoff.

    The counts are kept across the client's streams. All times are read on `clock`, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rejections = 0.0
        self._counted_s = self._blocked_until_s = clock()
        self._backoff_s = 0.0
        self._tokens, self._refilled_s = _UNSOLICITED_BURST, self._counted_s
        self._draining = 0

    def check_allowed(self) -> None:
        """Raise TryLaterError during the client's backoff, or while too many of its ended streams are unread."""
        if self._draining >= _MOST_DRAINING:
            raise TryLaterError("it left streams from which it takes nothing")
        if (left_s := self._blocked_until_s - self._clock()) > 0:
            raise TryLaterError(f"too much of what it sent was rejected: come back in {left_s:.0f} s")

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Count, during the block, a stream that has ended except for messages that the client has not read."""
        self._draining += 1
        try:
            yield
        finally:
            self._draining -= 1

    def count_unsolicited(self, reason: str = "sent more messages than it was asked for") -> None:
        """Count a message that was not asked for. AbuseError if there are too many."""
        now_s = self._clock()
        gained = (now_s - self._refilled_s) * _UNSOLICITED_PER_S
        self._tokens, self._refilled_s = min(_UNSOLICITED_BURST, self._tokens + gained) - 1, now_s
        if self._tokens < 0:
            self._tokens = _UNSOLICITED_BURST
            self._back_off(reason)

    def count_rejection(self, reason: str) -> None:
        """Count a rejected message; every few seconds one expires. AbuseError if there are too many."""
        now_s = self._clock()
        self._rejections = max(0.0, self._rejections - (now_s - self._counted_s) / _REJECTION_EXPIRES_S) + 1
        self._counted_s = now_s
        if self._rejections > _MOST_REJECTIONS:
            self._rejections = 0.0
            self._back_off(reason)

    def _back_off(self, reason: str) -> NoReturn:
        """Raise AbuseError; the client may come back after a time that grows with each backoff."""
        now_s = self._clock()
        is_again = now_s - self._blocked_until_s < _BACKOFF_RESET_AFTER * self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S) if is_again else _SHORTEST_BACKOFF_S
        self._blocked_until_s = now_s + self._backoff_s
        raise AbuseError(f"{reason}, once too often: rests for {self._backoff_s:g} s")
