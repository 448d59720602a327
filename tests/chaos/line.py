"""A TCP line between clients and their server, on which faults can be put in either direction."""

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from chaos.schedule import Fault, Side

_CHUNK_BYTES = 1 << 16
_SLOW_BYTES_PER_S = 1000
_SLOW_PIECE_BYTES = 100
_LATENCY_MAX_S = 0.5
_FIRST_CHUNKS = 12
_EARLY_EVERY = 8

Damage = Callable[[bytes, float], list[bytes]]
"""(bytes to relay, size of the fault) -> the bytes relayed instead, in order."""


def _dropped(data: bytes, size: float) -> list[bytes]:
    start = int(size * len(data))
    return [data[:start], data[start + 1 + len(data) // 10 :]]


def _reordered(data: bytes, size: float) -> list[bytes]:
    cut = 1 + int(size * (len(data) - 1))
    return [data[cut:], data[:cut]]


def _flipped(data: bytes, size: float) -> list[bytes]:
    damaged = bytearray(data)
    place = size * len(data)
    damaged[int(place)] ^= 1 << int(8 * (place % 1))
    return [bytes(damaged)]


DAMAGES: dict[str, Damage] = {
    "drop bytes": _dropped,
    "duplicate bytes": lambda data, size: [data, data[int(size * len(data)) :]],
    "reorder bytes": _reordered,
    "flip a bit": _flipped,
}
CUTS = ("reset mid-frame", "close", "half-open")
HINDRANCES = {"latency": 1.0, "1 kB/s": 2.0, "refuse": 1.0}
"""Faults that last for a while -> their length in seconds."""
KINDS = (*DAMAGES, *CUTS, *HINDRANCES)


class Line:
    """Listens for a client process and relays to the server's present port. Counts the faults that took effect."""

    def __init__(self, bit: "Counter[str]") -> None:
        """`bit` counts, by kind, the faults that changed relayed bytes."""
        self.port = 0
        self.upstream: int | None = None
        """The server's port; None if there is no server."""
        self.connected = 0
        """The number of connections so far."""
        self._bit = bit
        self._armed: dict[Side, deque[Fault]] = {"up": deque(), "down": deque()}
        self._hindrances: dict[str, _Hindrance] = {}
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._relaying: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and cut every connection."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._relaying)

    def strike(self, fault: Fault) -> None:
        """Put a fault on the line. It counts once it has changed relayed bytes, which may never happen."""
        if fault.kind in HINDRANCES:
            self._hindrances[fault.kind] = _Hindrance(_now_s() + HINDRANCES[fault.kind], fault.size)
        elif fault.kind == "half-open":
            for connection in [c for c in self._connections if not c.is_muted]:
                connection.is_muted = True
                self._bit[fault.kind] += 1
        elif not self._armed[fault.side]:  # otherwise an earlier fault still waits for bytes
            self._armed[fault.side].append(fault)

    def heal(self) -> None:
        """Remove every fault that waits or lasts; half-open connections stay."""
        for armed in self._armed.values():
            armed.clear()
        self._hindrances.clear()

    def cut(self) -> None:
        """Reset every connection."""
        for connection in list(self._connections):
            connection.reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._relaying.add(task)
        task.add_done_callback(self._relaying.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.upstream is None or self._hindered_by("refuse"):
            _reset(writer)
            return
        try:
            ends = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            _reset(writer)
            return
        connection = _Connection(writer, ends[1])
        self._connections.add(connection)
        self.connected += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection, "up", reader, ends[1]))
                group.create_task(self._pump(connection, "down", ends[0], writer))
        finally:
            self._connections.discard(connection)
            connection.reset()

    async def _pump(
        self, connection: "_Connection", side: Side, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Relay one direction until it ends. That ends the other direction, too, unless the connection is half-open."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                for part in self._changed(connection, side, data):
                    await self._send(connection, part, writer)
        if not connection.is_muted:
            connection.reset()

    def _changed(self, connection: "_Connection", side: Side, data: bytes) -> Iterator[bytes]:
        """The bytes relayed instead of `data`, after the next fault on this side."""
        connection.chunks += 1
        if not self._armed[side] or connection.is_muted or not _may_strike(self._armed[side][0], connection):
            yield data
            return
        fault = self._armed[side].popleft()
        self._bit[fault.kind] += 1
        if fault.kind in DAMAGES:
            yield from DAMAGES[fault.kind](data, fault.size)
            return
        yield data[: int(fault.size * len(data))]
        if fault.kind == "close":
            connection.close()
        else:
            connection.reset()

    async def _send(self, connection: "_Connection", data: bytes, writer: asyncio.StreamWriter) -> None:
        if late := self._hindered_by("latency"):
            await asyncio.sleep(late.size * _LATENCY_MAX_S)
        while data and self._hindered_by("1 kB/s") and not (connection.is_muted or writer.is_closing()):
            piece, data = data[:_SLOW_PIECE_BYTES], data[_SLOW_PIECE_BYTES:]
            writer.write(piece)
            await asyncio.sleep(len(piece) / _SLOW_BYTES_PER_S)
        if not (connection.is_muted or writer.is_closing()):
            writer.write(data)
            await writer.drain()

    def _hindered_by(self, kind: str) -> "_Hindrance | None":
        """The active hindrance of this kind, if any. Its first use counts it."""
        found = self._hindrances.get(kind)
        if found is None or _now_s() > found.until_s:
            return None
        self._bit[kind] += not found.has_bitten
        found.has_bitten = True
        return found


@dataclass
class _Hindrance:
    """A fault that lasts for a while."""

    until_s: float
    size: float
    has_bitten: bool = False


class _Connection:
    """The two ends of one relayed connection."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self.is_muted = False
        """Half-open: neither end receives anything more, not even the other's end."""
        self.chunks = 0
        """The number of chunks from both ends."""
        self._ends = ends

    def reset(self) -> None:
        """End both ends with RST."""
        for end in self._ends:
            _reset(end)

    def close(self) -> None:
        """End both ends with FIN, after all written bytes."""
        for end in self._ends:
            end.close()


def _may_strike(fault: Fault, connection: _Connection) -> bool:
    """Whether a fault may strike now. Most spare a connection's first chunks, or no client could say hello."""
    return fault.number % _EARLY_EVERY == 0 or connection.chunks > _FIRST_CHUNKS


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN, as a router does that has lost its state."""
    found = writer.get_extra_info("socket")
    if found is not None and not writer.transport.is_closing():
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
