"""The server's only door to gRPC: bytes in, bytes out, one stream a client."""

import asyncio
import contextlib
import time
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from pausefl_proto.actor import ActorStopped
from pausefl_proto.endpoint import listen, make_server
from pausefl_proto.errors import TryLaterError, WireError
from pausefl_proto.tls import Tls
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import SERVICE
from pausefl_server.client_actor import ClientActor
from pausefl_server.coordinator import Coordinator
from pausefl_server.messages import Lost, Register


class _GrpcStreamToClient:
    """`client_actor.StreamToClient` over a gRPC context, in bytes: a job is serialised once for all clients."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        self._context = context

    async def read(self) -> bytes | None:
        data: Any = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, message: bytes) -> None:
        await self._context.write(message)


class FederationServer:
    """Listens for clients and gives each stream to an actor of its own."""

    def __init__(self, coordinator: Coordinator, model_size: int, tls: Tls | None = None) -> None:
        self._coordinator = coordinator
        self._model_size = model_size
        self._tls = tls
        self._server = make_server()
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Join": join}),))

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port (port 0: any free one).

        ConfigError when it is taken, or a file for TLS is wrong.
        """
        bound = listen(self._server, "server", host, port, self._tls)
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Give clients `grace_s` to close their streams after the goodbye, then cut them off."""
        await self._server.stop(grace_s)

    async def _join(self, _: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        stream = _GrpcStreamToClient(context)
        try:
            hello = _hello(await stream.read())
        except (WireError, DecodeError) as error:
            await _say_goodbye(stream, error)
            return
        actor = ClientActor(hello.client_id, stream, self._coordinator, self._model_size, time.monotonic)
        writer: asyncio.Future[None] | None = None
        reason = "its connection broke"
        try:
            welcome = await self._coordinator.ask(Register(hello, actor))
            await stream.write(pb.ServerMessage(welcome=welcome).SerializeToString())
            writer = asyncio.ensure_future(actor.run())
            reason = await _listen(actor, writer)
        except (WireError, ActorStopped) as error:
            await _say_goodbye(stream, error)
        finally:
            # gRPC cancels this coroutine when the connection breaks, be it before the welcome; the coordinator must
            # hear of it all the same.
            actor.stop()
            await self._tell_lost(actor, reason)
            if writer is not None:
                await asyncio.gather(writer, return_exceptions=True)

    async def _tell_lost(self, actor: ClientActor, reason: str) -> None:
        with contextlib.suppress(ActorStopped):  # the run is over; nobody needs to know
            await self._coordinator.tell(Lost(actor, reason, actor.handed_over_s))


def _hello(data: bytes | None) -> pb.Hello:
    message = pb.ClientMessage.FromString(data or b"")
    if message.WhichOneof("kind") != "hello":
        raise WireError("the first message must be a hello")
    return message.hello


async def _listen(actor: ClientActor, writer: "asyncio.Future[None]") -> str:
    try:
        return await actor.listen()
    except ActorStopped:
        # The run is over. Its goodbye may still wait to be written.
        await asyncio.wait([writer])
        return "the run is over"


async def _say_goodbye(stream: _GrpcStreamToClient, error: Exception) -> None:
    goodbye = pb.Goodbye(reason=str(error), final=not isinstance(error, ActorStopped | TryLaterError))
    await stream.write(pb.ServerMessage(goodbye=goodbye).SerializeToString())
