"""A clock in the hands of a test, and a stream of messages whose far end is the test."""

import asyncio


class Clock:
    """Goes on by `step_s` at every look, and by what `advance` is told; else it stands still."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 100.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self.now_s += seconds


class FakeStream:
    """What the code under test reads and writes; the test gives it bytes and hears what it wrote."""

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
        """Let this be read, `after_s` later than what came before; None ends the stream, an error breaks it."""
        self._given.put_nowait((data, after_s))

    async def heard_bytes(self) -> bytes:
        """What was written next."""
        async with asyncio.timeout(20):
            return await self._written.get()

    def unread(self) -> int:
        """How much of what was given has not been read."""
        return self._given.qsize()

    def is_silent(self) -> bool:
        """Whether everything written has been heard."""
        return self._written.empty()
