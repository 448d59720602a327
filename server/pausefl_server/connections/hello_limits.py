"""Limits on unauthenticated peers: the resources that a peer may use before its hello identifies it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
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
            self._held[connection] -= 1
            if not self._held[connection]:
                del self._held[connection]


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
