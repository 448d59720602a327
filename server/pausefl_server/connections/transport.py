"""The server's only door to gRPC: bytes in, bytes out, one stream a client."""

import asyncio
import contextlib
import time
from typing import Any

import grpc

from pausefl_proto.actor import ActorStopped
from pausefl_proto.endpoint import listen, make_server
from pausefl_proto.errors import DamageError, TryLaterError, WireError
from pausefl_proto.tls import Tls
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import SERVICE, decode
from pausefl_server.connections.client_actor import ClientActor
from pausefl_server.connections.conduct import AbuseError, Conduct
from pausefl_server.connections.reception import MAX_HELLO_BYTES, ConnectionBounds, Reception
from pausefl_server.model.norm_bound import UpdateLimits
from pausefl_server.rounds.admission import Admission
from pausefl_server.rounds.coordinator import Coordinator
from pausefl_server.rounds.messages import Dismiss, Lost, Register

# How long a client that is sent away may take to hear why.
_GOODBYE_WITHIN_S = 2.0


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

    def __init__(
        self,
        coordinator: Coordinator,
        limits: UpdateLimits,
        tls: Tls | None = None,
        *,
        admission: Admission | None = None,
        offer: str = "",
        bounds: ConnectionBounds | None = None,
    ) -> None:
        """`admission` says what a stream must show, `offer` is what clients without a file may ask for."""
        bounds = bounds or ConnectionBounds()
        self._coordinator = coordinator
        self._limits = limits
        self._tls = tls
        self._admission = admission or Admission()
        self._offer = pb.ExperimentOffer(experiment=offer).SerializeToString()
        self._reception = Reception(bounds.hello_timeout_s)
        self._conducts: dict[str, Conduct] = {}  # of every id that was let in once
        self._server = make_server(bounds.dead_after_s, _limits(bounds.most_clients, bounds.hello_timeout_s))
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        show: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._show_offer)
        handlers = {"Join": join, "Offer": show}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

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

    async def _show_offer(self, _: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        """The experiment, for those who may say hello."""
        try:
            self._admission.check_known(_names(context), _token(context))
        except WireError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return self._offer

    async def _join(self, _: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        stream = _GrpcStreamToClient(context)
        names, token = _names(context), _token(context)
        try:
            # Nothing is read from a client that can be no id's owner: however many they are, no owner waits for them.
            self._admission.check_known(names, token)
            async with self._reception.turn(context.peer()):
                hello = _hello(await stream.read())
            is_owner = self._admission.check(hello.client_id, names, token)
            if (conduct := self._conducts.get(hello.client_id)) is not None:
                conduct.check_rested()
                conduct.greet()
        except WireError as error:
            await _say_goodbye(stream, error)
            return
        await self._serve(stream, hello, is_owner, conduct or Conduct(time.monotonic))

    async def _serve(self, stream: _GrpcStreamToClient, hello: pb.Hello, is_owner: bool, conduct: Conduct) -> None:
        """Register the client, relay what it and the coordinator say, and tell of its loss."""
        actor = ClientActor(
            hello.client_id,
            stream,
            self._coordinator,
            self._limits,
            time.monotonic,
            released=hello.ledger.released,
            conduct=conduct,
        )
        writer: asyncio.Future[None] | None = None
        reason = "its connection broke"
        try:
            welcome = await self._coordinator.ask(Register(hello, actor, is_owner))
            self._conducts[hello.client_id] = conduct
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
        with contextlib.suppress(ActorStopped):  # the run is over; no actor is left to be told
            await self._coordinator.tell(Lost(actor, reason, actor.handed_over_s, actor.may_return))


def _limits(most_clients: int, hello_timeout_s: float) -> tuple[tuple[str, int], ...]:
    """What connections may cost that have not said hello: how many there are, for how long, and of how many streams."""
    timeout_ms = int(hello_timeout_s * 1000)
    return (
        # A process of many clients has one connection for all of them; some are left over from before a restart.
        ("grpc.max_allowed_incoming_connections", 2 * most_clients + 64),
        ("grpc.max_concurrent_streams", most_clients + 16),
        ("grpc.server_handshake_timeout_ms", timeout_ms),
        ("grpc.max_connection_idle_ms", timeout_ms),
    )


def _names(context: "grpc.aio.ServicerContext[bytes, bytes]") -> list[str]:
    """The subject alternative names of the client's certificate, which TLS has verified; none without one."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in names]


def _token(context: "grpc.aio.ServicerContext[bytes, bytes]") -> str:
    """The token of the stream's metadata; empty without one."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            return value.removeprefix("Bearer ")
    return ""


def _hello(data: bytes | None) -> pb.Hello:
    if data is not None and len(data) > MAX_HELLO_BYTES:
        raise WireError(f"the hello has {len(data)} bytes, at most {MAX_HELLO_BYTES} are allowed")
    message, _ = decode(pb.ClientMessage, data or b"")
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
    except (DamageError, AbuseError) as error:
        # The writer may be in the midst of a message; a client that reads nothing does not hear why.
        actor.offer(Dismiss(str(error), final=False))
        await asyncio.wait([writer], timeout=_GOODBYE_WITHIN_S)
        return str(error)


async def _say_goodbye(stream: _GrpcStreamToClient, error: Exception) -> None:
    is_final = not isinstance(error, ActorStopped | TryLaterError | DamageError)
    goodbye = pb.Goodbye(reason=str(error), final=is_final)
    await stream.write(pb.ServerMessage(goodbye=goodbye).SerializeToString())
