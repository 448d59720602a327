"""Limits on unauthenticated peers: what one may cost the server until its hello has said who it is."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from pausefl_proto.endpoint import DEAD_AFTER_S, HELLOS_AT_ONCE
from pausefl_proto.errors import TryLaterError

HELLO_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ConnectionBounds:
    """How many connections and streams there may be, and how long a silent one lasts."""

    most_clients: int = 1000
    dead_after_s: float = DEAD_AFTER_S
    hello_timeout_s: float = HELLO_TIMEOUT_S


MAX_HELLO_BYTES = 256 << 10
# A first message may have the size of a frame before gRPC refuses it, and so much of it is buffered while it arrives.
_MOST_AT_ONCE = 64
MOST_WAITING = 128
"""Streams whose hello has not come, half of them of one connection. gRPC buffers about a megabyte of each, whether or
not it is read."""
MOST_ENDING = 32
"""Streams whose last message is not taken, half of them of one connection. Nothing ends such a stream but its
connection, which is then not idle: they may hold half of the connections that are spare at most."""


class StreamQuota:
    """Bounds a number of streams; a connection has at most as many as are left, so that a few cannot take all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    @contextmanager
    def reserved(self, connection: str) -> Iterator[None]:
        """Count a stream of this connection during the block; TryLaterError where the quota is used up."""
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
    """Bounds the hellos that are read at a time, in all and of one connection; others wait, too many are rejected."""

    def __init__(self, timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._slots_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting = StreamQuota(MOST_WAITING)

    @asynccontextmanager
    async def slot(self, connection: str) -> AsyncIterator[None]:
        """Hold a slot of the connection of this name while the block reads the hello.

        TryLaterError when the hello, or the slot, does not come in time (its length may have been damaged on the way),
        or when too many wait for that.
        """
        with self._waiting.reserved(connection):
            slots = self._slots_of.setdefault(connection, asyncio.Semaphore(HELLOS_AT_ONCE))
            try:
                async with asyncio.timeout(self._timeout_s), slots, self._slots:
                    yield
            except TimeoutError:
                raise TryLaterError(f"said no hello within {self._timeout_s:g} s") from None
