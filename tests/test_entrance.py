"""The entrance where a stream breaks in the midst of a message."""

import asyncio

import grpc
import pytest

from pausefl_server.connections.entrance import Entrance, Visitor
from pausefl_server.connections.transport import GrpcStreamToClient
from pausefl_server.model.norm_bound import UpdateLimits
from rigs.federation import SIZE, hello
from rigs.one_job import OneJob


class BreakingContext:
    """A gRPC context whose core refuses a read or a write, as it does where a stream ends at that moment."""

    def __init__(self, given: bytes, breaks_at: str) -> None:
        self._given, self._breaks_at = given, breaks_at

    async def read(self) -> bytes:
        self._break("read")
        return self._given

    async def write(self, message: bytes) -> None:  # noqa: ARG002 - nothing gets through
        self._break("write")

    def _break(self, what: str) -> None:
        if what == self._breaks_at:
            raise grpc.aio.InternalError('Failed "execute_batch": (SendMessageOperation,)')


@pytest.mark.parametrize(
    ("given", "breaks_at"), [(b"", "read"), (b"\xff", "write"), (hello("client"), "write")], ids=str
)
async def test_a_stream_that_breaks_ends_its_coroutine_in_silence(given: bytes, breaks_at: str) -> None:
    coordinator = OneJob(SIZE)
    running = asyncio.ensure_future(coordinator.run())
    entrance = Entrance(coordinator, UpdateLimits(SIZE))  # type: ignore[arg-type]
    stream = GrpcStreamToClient(BreakingContext(given, breaks_at))  # type: ignore[arg-type]
    await entrance.join(stream, Visitor("peer"))
    coordinator.stop()
    await running
