"""HTTP/2 by hand: streams whose first message never ends."""

import asyncio
import struct
from contextlib import suppress

from pausefl_proto.wire import MAX_FRAME_BYTES, SERVICE

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK, _END_HEADERS, _INITIAL_WINDOW_SIZE = 1, 4, 4
_FRAME_BYTES = 16_384


async def bytes_taken_of_unfinished_messages(port: int, streams: int, for_s: float) -> int:
    """How many bytes the server takes within `for_s` of messages of a frame's size that lack their last byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sender = _Sender(writer, streams)
    with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(for_s):
            while True:
                await sender.send()
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                sender.hear(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
    writer.close()
    return sender.sent


class _Sender:
    """Sends as much as the server's flow control allows."""

    def __init__(self, writer: asyncio.StreamWriter, streams: int) -> None:
        self.sent = 0
        self._writer = writer
        self._initial = self._window = 65_535
        self._windows = dict.fromkeys(range(1, 2 * streams, 2), self._initial)
        message = b"\0" + struct.pack(">I", MAX_FRAME_BYTES) + bytes(MAX_FRAME_BYTES - 1)
        self._left = dict.fromkeys(self._windows, message)
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        fields = (b":path", f"/{SERVICE}/Join".encode()), (b":authority", b"x"), (b"content-type", b"application/grpc")
        headers = b"\x83\x86" + b"".join(map(_literal, *zip(*fields, (b"te", b"trailers"), strict=True)))
        for stream in self._windows:
            writer.write(_frame(_HEADERS, _END_HEADERS, stream, headers))

    async def send(self) -> None:
        for stream in self._left:
            while count := min(_FRAME_BYTES, len(self._left[stream]), self._windows[stream], self._window):
                self._writer.write(_frame(_DATA, 0, stream, self._left[stream][:count]))
                self._left[stream] = self._left[stream][count:]
                self._windows[stream] -= count
                self._window -= count
                self.sent += count
        await self._writer.drain()

    def hear(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE and stream:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == _WINDOW_UPDATE:
            self._window += int.from_bytes(payload, "big")
        elif kind == _PING and not flags & _ACK:
            self._writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            given = dict(struct.iter_unpack(">HI", payload))
            initial = given.get(_INITIAL_WINDOW_SIZE, self._initial)
            self._windows = {s: window + initial - self._initial for s, window in self._windows.items()}
            self._initial = initial
            self._writer.write(_frame(_SETTINGS, _ACK, 0, b""))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing and without Huffman coding."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value
