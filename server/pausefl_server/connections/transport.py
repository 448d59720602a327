"""The server's only module that imports gRPC: bytes in, bytes out, one stream a client."""

from typing import Any

import grpc

from pausefl_proto.endpoint import listen, make_server
from pausefl_proto.errors import TryLaterError, WireError
from pausefl_proto.wire import SERVICE
from pausefl_server.connections.endpoints import Endpoints
from pausefl_server.connections.stream_handler import ClientStreamHandler, PeerIdentity

# The errors that gRPC raises if a stream breaks during a read or a write. At other times, gRPC cancels the coroutine
# that serves the stream.
_BROKEN_LINE = (grpc.aio.InternalError, grpc.aio.UsageError)


class GrpcStreamToClient:
    """`wire.MessageStream` over a gRPC context, in bytes, so that a job is serialised once for all clients."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        self._context = context

    async def read(self) -> bytes | None:
        try:
            data: Any = await self._context.read()
        except _BROKEN_LINE as error:
            raise ConnectionError(str(error)) from error
        return None if data is grpc.aio.EOF else data

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except _BROKEN_LINE as error:
            raise ConnectionError(str(error)) from error


class FederationServer:
    """Listens for clients, and passes their streams to the handler."""

    def __init__(self, handler: ClientStreamHandler, endpoints: Endpoints, most_clients: int) -> None:
        self._tls = endpoints.tls
        self._handler = handler
        timeout_ms = int(endpoints.hello_timeout_s * 1000)
        limits = (
            # A process of many clients has one connection for all. Some connections may be left from before a restart.
            ("grpc.max_allowed_incoming_connections", 2 * most_clients + 64),
            ("grpc.max_concurrent_streams", most_clients + 16),
            ("grpc.server_handshake_timeout_ms", timeout_ms),
            ("grpc.max_connection_idle_ms", timeout_ms),
        )
        self._server = make_server(endpoints.dead_after_s, limits)
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        # This is a stream too: gRPC reads a unary call's request, without a time limit, before the handler can refuse.
        show: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._show_offer)
        handlers = {"Join": join, "Offer": show}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; ConfigError if it is taken, or if a file for TLS is wrong."""
        bound = listen(self._server, "server", host, port, self._tls)
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def _show_offer(self, _: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        try:
            await self._handler.show_offer(GrpcStreamToClient(context), _peer(context))
        except TryLaterError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except WireError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def _join(self, _: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await self._handler.handle(GrpcStreamToClient(context), _peer(context))


def _peer(context: "grpc.aio.ServicerContext[bytes, bytes]") -> PeerIdentity:
    names = context.auth_context().get("x509_subject_alternative_name", ())
    shown = (value for key, value in context.invocation_metadata() or () if key == "authorization")
    token = next((value.removeprefix("Bearer ") for value in shown if isinstance(value, str)), "")
    return PeerIdentity(context.peer(), tuple(name.decode("utf-8", "replace") for name in names), token)
