"""The time before the hello: what an unknown peer may cost the server until it has said who it is."""

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


class Places:
    """Places for streams, of which a connection has at most as many as are left: few of them cannot take all."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    @contextmanager
    def held_by(self, connection: str) -> Iterator[None]:
        """Hold a place during the block; TryLaterError where none is left."""
        if self._held[connection] >= self._most - self._held.total():
            raise TryLaterError("too many clients say hello at once")
        self._held[connection] += 1
        try:
            yield
        finally:
            self._held[connection] -= 1
            if not self._held[connection]:
                del self._held[connection]


class Reception:
    """Lets so many streams at a time say hello, few of one connection; others wait, and too many are sent away."""

    def __init__(self, timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        self._turns_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._places = Places()

    @asynccontextmanager
    async def turn(self, connection: str) -> AsyncIterator[None]:
        """Hold a turn of the connection of this name while the block reads the hello.

        TryLaterError when the hello, or the turn, does not come in time (its length may have been damaged on the way),
        or when too many wait for that.
        """
        with self._places.held_by(connection):
            turns = self._turns_of.setdefault(connection, asyncio.Semaphore(HELLOS_AT_ONCE))
            try:
                async with asyncio.timeout(self._timeout_s), turns, self._turns:
                    yield
            except TimeoutError:
                raise TryLaterError(f"said no hello within {self._timeout_s:g} s") from None
