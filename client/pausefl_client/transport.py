"""The client's only door to gRPC: bytes in, bytes out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pausefl.wire import MAX_MESSAGE_BYTES, SERVICE

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class GrpcStream:
    """`session.Stream` over one gRPC call."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self._call = call

    async def read(self) -> bytes | None:
        """The next message, None at the end; OSError when the connection breaks."""
        try:
            data: Any = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise OSError(error.details() or str(error.code())) from error
        return None if data is grpc.aio.EOF else data

    async def write(self, message: bytes) -> None:
        """Send one message; OSError when the connection breaks."""
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise OSError(error.details() or str(error.code())) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            # The call had ended before: gRPC has a third way to say so.
            raise OSError(str(error)) from error


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[GrpcStream]:
    """Open a stream to the server at HOST:PORT; closed with the block."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/Join")()
        try:
            yield GrpcStream(call)
        finally:
            call.cancel()
