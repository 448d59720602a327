"""Streams whose first message never ends: they measure the memory that a stranger can make a server use."""

import asyncio
import struct
from collections import Counter
from contextlib import suppress

from fuzz.http2 import DATA, SETTINGS, WINDOW, call, frame, opening

_WINDOW_BYTES = 65_535
_FRAME_BYTES = 16_384
_INITIAL_WINDOW = 4  # number of the setting in HTTP/2


class HalfMessages:
    """Connections of several streams each. Each stream sends as much of a message as the server's windows allow.

    A connection that the server ends is opened again.
    """

    def __init__(self, port: int, connections: int, streams: int, message_bytes: int) -> None:
        self.sent_bytes = 0
        self._port = port
        self._connections = connections
        self._streams = streams
        # A message's header and all its bytes except the last one, which is never sent.
        self._unfinished = memoryview(b"\0" + struct.pack(">I", message_bytes) + bytes(message_bytes - 1))
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "HalfMessages":
        self._tasks = [asyncio.create_task(self._attack()) for _ in range(self._connections)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _attack(self) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._connect()

    async def _connect(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            numbers = range(1, 2 * self._streams, 2)
            writer.write(opening() + b"".join(call(number) for number in numbers))
            left = dict.fromkeys(numbers, self._unfinished)
            initial = Counter({_INITIAL_WINDOW: _WINDOW_BYTES})
            windows = Counter(dict.fromkeys((0, *numbers), _WINDOW_BYTES))
            while True:
                for number in numbers:
                    self._send(writer, number, left, windows)
                await writer.drain()
                await self._listen(reader, writer, windows, initial, numbers)
        finally:
            writer.transport.abort()

    def _send(
        self, writer: asyncio.StreamWriter, number: int, left: dict[int, memoryview], windows: "Counter[int]"
    ) -> None:
        while size := min(len(left[number]), windows[0], windows[number], _FRAME_BYTES):
            if size < 0:
                return
            writer.write(frame(DATA, 0, number, bytes(left[number][:size])))
            left[number] = left[number][size:]
            windows[0] -= size
            windows[number] -= size
            self.sent_bytes += size

    async def _listen(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        windows: "Counter[int]",
        settings: "Counter[int]",
        numbers: range,
    ) -> None:
        """Read one frame from the server, and answer it."""
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind == WINDOW:
            windows[number] += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & 1:
            for start in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[start : start + 6])
                if name == _INITIAL_WINDOW:
                    for stream in numbers:
                        windows[stream] += value - settings[name]
                settings[name] = value
            writer.write(frame(SETTINGS, 1, 0))
        elif kind == 6 and not flags & 1:  # a ping, with which the server measures bandwidth
            writer.write(frame(kind, 1, 0, payload))
