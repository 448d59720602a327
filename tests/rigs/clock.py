"""A clock that the test controls, and a stream whose other end the test plays."""

import asyncio


class Clock:
    """Advances by `step_s` at every reading and by calls of `advance`; otherwise it stands still."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 100.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class FakeStream:
    """The stream that the code under test reads and writes. The test supplies the input and reads the output."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given: asyncio.Queue[tuple[bytes | OSError | None, float]] = asyncio.Queue()
        self._written: asyncio.Queue[bytes] = asyncio.Queue()
        self.write_s = 0.0
        """How long each write takes on the clock."""
        self.writes_until_break = 1_000_000

    async def read(self) -> bytes | None:
        data, after_s = await self._given.get()
        self._clock.advance(after_s)
        if isinstance(data, OSError):
            raise data
        return data

    async def write(self, message: bytes) -> None:
        if not self.writes_until_break:
            raise OSError("the line is dead")
        self.writes_until_break -= 1
        self._clock.advance(self.write_s)
        self._written.put_nowait(message)

    def give(self, data: bytes | OSError | None, after_s: float = 0.0) -> None:
        """Queue `data` to be read `after_s` after the previous item. None ends the stream, an error breaks it."""
        self._given.put_nowait((data, after_s))

    async def heard_bytes(self) -> bytes:
        """The next message that was written."""
        async with asyncio.timeout(20):
            return await self._written.get()

    def unread(self) -> int:
        """How many of the given items have not been read."""
        return self._given.qsize()

    def is_silent(self) -> bool:
        """Whether the test has heard everything that was written."""
        return self._written.empty()
