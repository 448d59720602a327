"""Serves client streams over any transport: hello, admission, an actor for each client, and the client's loss."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from pausefl_process.host_monitor import UNWATCHED, HostWatch
from pausefl_proto.errors import DamageError, TryLaterError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, MessageStream, decode, encode
from pausefl_server.actor import ActorStopped
from pausefl_server.connections.client_actor import ClientActor
from pausefl_server.connections.endpoints import Endpoints
from pausefl_server.connections.peer_limits import (
    MAX_HELLO_BYTES,
    MOST_ENDING,
    AbuseError,
    ClientRateLimit,
    HelloLimiter,
    StreamQuota,
)
from pausefl_server.rounds.admission import Admission
from pausefl_server.rounds.coordinator import Coordinator
from pausefl_server.rounds.messages import Lost, Register
from pausefl_server.settings import ServerSettings

# How long a client that is sent away may take to read the reason.
_GOODBYE_WITHIN_S = 2.0


@dataclass(frozen=True)
class PeerIdentity:
    """The identity of a stream's peer before its hello."""

    connection: str
    """The name of its connection, the same for all streams of one connection."""
    names: tuple[str, ...] = ()
    """The names in the client's certificate, which TLS has verified; empty without a certificate."""
    token: str = ""

    @property
    def host(self) -> str:
        """The peer's IP address, if gRPC names the connection FAMILY:ADDRESS:PORT; else empty."""
        return unquote(self.connection.rpartition(":")[0].partition(":")[2])


class ClientStreamHandler:
    """Serves each client stream from its hello to its end, with an actor of its own."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: ServerSettings,
        endpoints: Endpoints,
        watch: HostWatch = UNWATCHED,
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`watch` times exchanges, and monitors this host meanwhile. `on_refused` receives each refusal's reason.

        A client whose hello names another run than that of `settings` is told this run's id, and is not registered: its
        ledger states the ε that it spent in the other run.
        """
        self._coordinator = coordinator
        self._settings = settings
        self._admission = endpoints.admission
        self._watch = watch
        self._on_refused = on_refused
        self._welcome = pb.ServerMessage(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id=settings.run_id))
        self._offer = encode(pb.ExperimentOffer(experiment=endpoints.offer, run_id=settings.run_id))
        self._hellos = HelloLimiter(endpoints.hello_timeout_s)
        self._ending = StreamQuota(MOST_ENDING)  # gRPC keeps streams until their last message is read
        self._rate_limits: dict[str, ClientRateLimit] = {}  # of every id that was registered, or proven
        self._served: dict[ClientActor, tuple[PeerIdentity, asyncio.Timeout]] = {}  # the timeout can end its stream

    async def handle(self, stream: MessageStream, peer: PeerIdentity) -> None:
        """Serve one stream from its hello to its end, or until it breaks."""
        with contextlib.suppress(ConnectionError):
            await self._handle(stream, peer)

    def readmit(self, admission: Admission) -> None:
        """Use this admission from now on. Streams of clients that it does not admit are closed."""
        self._admission = admission
        for actor in self._served:
            self._end_if_locked_out(actor)

    def _end_if_locked_out(self, actor: ClientActor) -> None:
        peer, limit = self._served[actor]
        try:
            self._admission.check(actor.client_id, peer.names, peer.token)
        except WireError:
            if not limit.expired():  # else its stream is being closed already
                limit.reschedule(0.0)

    async def show_offer(self, stream: MessageStream, peer: PeerIdentity) -> None:
        """Send the experiment to a peer that may say hello and asks in time; WireError tells other peers the reason."""
        with contextlib.suppress(ConnectionError):
            with self._told_of_refusal(peer):
                self._admission.check_known(peer.names, peer.token)
            async with self._hellos.slot(peer.connection):
                await stream.read()
            with self._ending.reserved(peer.connection):
                await stream.write(self._offer)

    async def _handle(self, stream: MessageStream, peer: PeerIdentity) -> None:
        try:
            # Nothing is read from a client that proves no id: however many such clients come, the others need not wait.
            with self._told_of_refusal(peer):
                self._admission.check_known(peer.names, peer.token)
            async with self._hellos.slot(peer.connection):
                hello = _hello(await stream.read())
            with self._told_of_refusal(peer):
                is_owner = self._admission.check(hello.client_id, peer.names, peer.token)
            rate_limit = self._rate_limits.get(hello.client_id) or ClientRateLimit(self._watch.clock)
            if is_owner and isinstance(self._admission.ids, frozenset):  # a run has only so many of these ids
                self._rate_limits[hello.client_id] = rate_limit
            rate_limit.check_allowed()
            rate_limit.count_unsolicited("came and went")
            if hello.run_id not in ("", self._settings.run_id):
                await self._send_away(stream, peer, self._welcome)
                return
            await self._serve(stream, hello, peer, is_owner, rate_limit)
        except (WireError, ActorStopped) as error:
            await self._send_away(stream, peer, _goodbye(error))

    @contextlib.contextmanager
    def _told_of_refusal(self, peer: PeerIdentity) -> Iterator[None]:
        """Report a WireError. The coordinator reports the hellos that it refuses, but does not receive this one."""
        try:
            yield
        except WireError as error:
            self._on_refused(f"a client at {peer.connection} was refused: {error}")
            raise

    async def _send_away(self, stream: MessageStream, peer: PeerIdentity, message: pb.ServerMessage) -> None:
        """Send only this message, or nothing if too many peers have not read their last message."""
        with contextlib.suppress(TryLaterError), self._ending.reserved(peer.connection):
            await stream.write(encode(message))

    async def _serve(
        self, stream: MessageStream, hello: pb.Hello, peer: PeerIdentity, is_owner: bool, rate_limit: ClientRateLimit
    ) -> None:
        """Register the client, relay messages between it and the coordinator, and report its loss.

        WireError or ActorStopped if the coordinator does not accept the client.
        """
        actor = ClientActor(
            hello.client_id,
            stream,
            self._coordinator,
            self._settings,
            self._watch,
            released=hello.ledger.released,
            # A client that plays one run after the other may have spent its life's budget before the run's.
            budget=None if hello.run_id else self._settings.budget,
            rate_limit=rate_limit,
        )
        writer: asyncio.Future[None] | None = None
        reason = "its connection broke"
        try:
            await self._coordinator.ask(Register(hello, actor, is_owner, peer.host))
            self._rate_limits[hello.client_id] = rate_limit
            await stream.write(encode(self._welcome))
            writer = asyncio.ensure_future(actor.run())
            reason = await self._listen(actor, writer, peer)
        finally:
            # This coroutine is cancelled when the connection breaks, which may happen before the welcome, or here if a
            # read has failed. The coordinator must be told even then: else it keeps the client out as connected.
            actor.stop()
            self._coordinator.post(Lost(actor, reason, actor.handed_over_s, actor.may_return))
            if writer is not None:
                with rate_limit.draining():
                    await asyncio.gather(writer, return_exceptions=True)

    async def _listen(self, actor: ClientActor, writer: "asyncio.Future[None]", peer: PeerIdentity) -> str:
        """Listen until the client leaves, must leave, or is no longer admitted; returns the reason."""
        try:
            async with asyncio.timeout(None) as limit:
                self._served[actor] = peer, limit
                try:
                    self._end_if_locked_out(actor)  # the admission may have changed since its hello
                    return await actor.listen()
                finally:
                    del self._served[actor]
        except TimeoutError:
            actor.may_return = False
            return await _send_off(actor, writer, "is admitted no longer")  # it gets the reason when it comes again
        except ActorStopped:
            await asyncio.wait([writer])  # the run is over, but its goodbye may not be written yet
            return "the run is over"
        except (DamageError, AbuseError) as error:
            actor.may_return = isinstance(error, DamageError)
            return await _send_off(actor, writer, str(error))


def _goodbye(error: Exception) -> pb.ServerMessage:
    is_final = not isinstance(error, ActorStopped | TryLaterError | DamageError)
    return pb.ServerMessage(goodbye=pb.Goodbye(reason=str(error), final=is_final))


def _hello(data: bytes | None) -> pb.Hello:
    if data is not None and len(data) > MAX_HELLO_BYTES:
        raise WireError(f"the hello has {len(data)} bytes, at most {MAX_HELLO_BYTES} are allowed")
    message, _ = decode(pb.ClientMessage, data or b"")
    if message.WhichOneof("kind") != "hello":
        raise WireError("the first message must be a hello")
    return message.hello


async def _send_off(actor: ClientActor, writer: "asyncio.Future[None]", reason: str) -> str:
    # The writer may still be writing another message. A client that reads nothing does not get the reason.
    actor.offer(pb.Goodbye(reason=reason, final=False))
    await asyncio.wait([writer], timeout=_GOODBYE_WITHIN_S)
    return reason
