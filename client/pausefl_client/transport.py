"""The client's connection to the server over gRPC; messages are bytes. The client's only module that imports gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pausefl_client.reconnection import Reconnection
from pausefl_proto.endpoint import DEAD_AFTER_S, failure, open_channel
from pausefl_proto.errors import ConfigError, DamageError
from pausefl_proto.foreign_text import shown
from pausefl_proto.tls import Tls
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import SERVICE, decode

_ANSWER_WITHIN_S = 10.0

# The clients of a process share gRPC's connection. By default gRPC waits up to two minutes between two tries to
# connect. Those waits would come on top of the sessions' own.
_QUICKLY = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 500))


class GrpcStreamToServer:
    """`wire.MessageStream` over one gRPC call."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]", address: str, tls: Tls | None) -> None:
        self._call = call
        self._address = address
        self._tls = tls

    async def read(self) -> bytes | None:
        """As in `MessageStream`. ConfigError if there can be no connection, because one side distrusts the other."""
        try:
            data: Any = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise failure(error, self._address, self._tls) from error
        return None if data is grpc.aio.EOF else data

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise failure(error, self._address, self._tls) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            # The call had already ended. gRPC has a third way to report that.
            raise OSError(str(error)) from error


async def fetch_offer(address: str, tls: Tls | None, token: str, reconnection: Reconnection) -> pb.ExperimentOffer:
    """The offer of the server at HOST:PORT, which the client must not trust: its experiment as JSON, and its run id.

    ConfigError if the server refuses or does not implement the call. PauseflError if `reconnection` gives up.
    """
    while True:
        try:
            offer = await _ask_for_offer(address, tls, token)
        except OSError as error:
            reconnection.failed(error)
        else:
            reconnection.connected()
            return offer
        await reconnection.wait()


async def _ask_for_offer(address: str, tls: Tls | None, token: str) -> pb.ExperimentOffer:
    options = (*_QUICKLY, ("grpc.max_receive_message_length", 16 << 20))  # it may have a table for each client
    async with open_channel(address, tls, options=options) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Offer")
        try:
            data: Any = await call(b"", timeout=_ANSWER_WITHIN_S, metadata=_metadata(token))
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED):
                because = shown(error.details() or "")
                raise ConfigError(f"--server {address}: gives no experiment ({because})") from error
            raise failure(error, address, tls) from error
    try:
        offer, _ = decode(pb.ExperimentOffer, data)
    except DamageError as damage:
        raise OSError(f"it {damage}") from damage
    return offer


def _metadata(token: str) -> tuple[tuple[str, str], ...] | None:
    """The call's metadata with the client's token, or None without a token."""
    return (("authorization", f"Bearer {token}"),) if token else None


@asynccontextmanager
async def connect(
    address: str, tls: Tls | None = None, dead_after_s: float = DEAD_AFTER_S, token: str = ""
) -> AsyncIterator[GrpcStreamToServer]:
    """Open a stream to the server at HOST:PORT, and close it at the end of the block.

    ConfigError if a TLS file is wrong. Reading and writing raise OSError after `dead_after_s` without any message or
    ping from the server. A non-empty `token` proves to the server that the client owns its id.
    """
    async with open_channel(address, tls, dead_after_s, _QUICKLY) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/Join")(
            metadata=_metadata(token)
        )
        try:
            yield GrpcStreamToServer(call, address, tls)
        finally:
            call.cancel()
