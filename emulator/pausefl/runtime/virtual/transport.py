"""The transport between clients and server in one process: each stream is two queues, and takes no time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from pausefl_server.connections.stream_handler import ClientStreamHandler, PeerIdentity

_Messages = asyncio.Queue[bytes | None]
"""The messages of one direction of a stream; None: that direction is closed."""


class _End:
    """One end of a stream, a `wire.MessageStream`."""

    def __init__(self, incoming: _Messages, outgoing: _Messages) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    async def read(self) -> bytes | None:
        """The next message; None once the other end is closed and every message was read."""
        message = await self._incoming.get()
        if message is None:
            self._incoming.put_nowait(None)  # for later calls
        return message

    async def write(self, message: bytes) -> None:
        """Hand over a message; OSError when this end is closed."""
        if self._closed:
            raise OSError("the stream is closed")
        self._outgoing.put_nowait(message)

    def close(self) -> None:
        self._closed = True
        self._outgoing.put_nowait(None)


class InProcessTransport:
    """`pausefl_server.service.Transport` for clients on the server's own event loop."""

    def __init__(self) -> None:
        self._handler: ClientStreamHandler
        self._streams: set[asyncio.Task[None]] = set()
        self.is_open = False
        """Whether clients may connect."""

    def carrying(self, handler: ClientStreamHandler, *_: object) -> "InProcessTransport":
        """This transport, which serves its streams by `handler` from now on (`Platform.transport`)."""
        self._handler = handler
        return self

    async def start(self, host: str, port: int) -> int:
        """Let clients connect from now on."""
        self.is_open = True
        return 0

    async def stop(self, grace_s: float) -> None:
        """Give clients `grace_s` to close their streams, then cut them off."""
        self.is_open = False
        if self._streams:
            await asyncio.wait(self._streams, timeout=grace_s)
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[_End]:
        """Open a stream (`session_settings.Connect`) for the block; OSError while the server does not listen."""
        if not self.is_open:
            raise OSError("the server does not listen")
        down, up = _Messages(), _Messages()
        here, there = _End(down, up), _End(up, down)
        serving = asyncio.ensure_future(self._serve(there, PeerIdentity(client_id)))
        self._streams.add(serving)
        serving.add_done_callback(self._streams.discard)
        try:
            yield here
        finally:
            here.close()
            serving.cancel()
            await asyncio.wait({serving})

    async def _serve(self, stream: _End, peer: PeerIdentity) -> None:
        with closing(stream):
            await self._handler.handle(stream, peer)
