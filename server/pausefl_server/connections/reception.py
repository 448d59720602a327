"""The time before the hello: what an unknown peer may cost the server until it has said who it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pausefl_proto.endpoint import DEAD_AFTER_S
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
_MOST_PER_CONNECTION = 4
MOST_WAITING = 128
"""Streams whose hello has not come, half of them of one connection. gRPC buffers about a megabyte of each, whether or
not it is read."""


class _Connection:
    """The turns of one connection's streams, and how many of them there are."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(_MOST_PER_CONNECTION)
        self.streams = 0


class Reception:
    """Lets so many streams at a time say hello, few of one connection; others wait, and too many are sent away."""

    def __init__(self, timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        self._connections: dict[str, _Connection] = {}
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Hold a turn of the connection of this name while the block reads the hello.

        TryLaterError when the hello, or the turn, does not come in time (its length may have been damaged on the way),
        or when too many wait for that.
        """
        connection = self._connections.get(name) or _Connection()
        # A connection has at most as many streams as there are places left: few of them cannot take all.
        if connection.streams >= MOST_WAITING - self._waiting:
            raise TryLaterError("too many clients say hello at once")
        self._connections[name] = connection
        self._waiting += 1
        connection.streams += 1
        try:
            async with asyncio.timeout(self._timeout_s), connection.turns, self._turns:
                yield
        except TimeoutError:
            raise TryLaterError(f"said no hello within {self._timeout_s:g} s") from None
        finally:
            self._waiting -= 1
            connection.streams -= 1
            if not connection.streams:
                del self._connections[name]
