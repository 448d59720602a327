"""One client as the server sees it: an actor that owns its stream, times its exchanges and checks what it sends."""

from dataclasses import replace
from typing import Any

from pausefl_process.host_monitor import HostWatch
from pausefl_proto.budget import Budget, Release
from pausefl_proto.errors import DamageError, WireError
from pausefl_proto.foreign_text import shown
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Assembler, MessageStream, decode, encode
from pausefl_server.actor import Actor
from pausefl_server.connections.exchange import (
    LONGEST_TEXT,
    Exchange,
    host_of,
    loss_of,
    release_of,
    statistics_of,
    update_of,
)
from pausefl_server.connections.peer_limits import ClientRateLimit
from pausefl_server.records import Ping
from pausefl_server.rounds.messages import Dispatch, Order, Refusal, RefusalKind, Update
from pausefl_server.rounds.preparation import off_loop
from pausefl_server.settings import ServerSettings

# Checking this many bytes takes about 30 µs, handing them to a thread and back 100 µs.
_INLINE_BYTES = 1 << 20
# If an update arrives damaged this often, asking for it again will not help.
_MOST_TIMES_ASKED = 4
# How many messages an answer may have beyond its frames: for a refusal, or for an update that begins again.
_SPARE_MESSAGES = 4
# How many late jobs of a client, and how many withdrawn ones, are remembered.
_MOST_LATE = 64
# The most messages that a client may ever be allowed to send: jobs that it does not answer add up to no more.
_MOST_MESSAGES = 100_000

_Message = Order | Exchange
"""An exchange is a message of the actor to itself: send its job again, because the answer arrived damaged."""


class ClientActor(Actor[_Message]):
    """Writes the coordinator's messages to the client (`run`), and reads the client's messages (`listen`)."""

    def __init__(
        self,
        client_id: str,
        stream: MessageStream,
        coordinator: Actor[Any],
        settings: ServerSettings,
        watch: HostWatch,
        *,
        released: int = 0,
        budget: Budget | None = None,
        rate_limit: ClientRateLimit | None = None,
    ) -> None:
        """`released` is how many releases the client's ledger counts at hello; `rate_limit` outlives its streams.

        `budget` tells when the client may say that its budget is spent; None: it may always say so.
        """
        super().__init__(f"client {client_id}")
        self.client_id = client_id
        self._stream = stream
        self._coordinator = coordinator
        self._settings = settings
        self._encoding = settings.encoding.beside(settings.manifest.statistics.size)
        self._budget = budget
        self._watch = watch
        self._clock = watch.clock
        self._exchange: Exchange | None = None
        self._late: dict[tuple[int, int], Exchange] = {}  # withdrawn jobs that may have been charged before
        self._receiving: Exchange | None = None  # the exchange whose update is arriving
        self._withdrawn: set[tuple[int, int]] = set()  # withdrawn jobs that are not answered
        self._nonce = 0  # the last ping's
        self._pinged_s: float | None = None  # when the last ping was sent; None once answered or followed by a job
        self._rate_limit = rate_limit or ClientRateLimit(watch.clock)
        self._allowed_messages = 0
        self.may_return = True
        """False once the client has said goodbye, or must stay away for a while."""
        self._last_job = 0, 0
        # Each job allows one more release. Another one may be under way for an earlier stream's job.
        self._most_released = released + 1

    @property
    def handed_over_s(self) -> float | None:
        """When the client was first handed the job under way; None if there is no job."""
        return None if self._exchange is None else self._exchange.first_s

    def offer(self, message: _Message) -> bool:
        """Hand over a message, as `Actor.offer` does. A job withdrawn while it waits for its turn is dropped."""
        if isinstance(message, pb.Withdraw) and (self._exchange or (message.round, message.attempt) != self._last_job):
            job = message.round, message.attempt
            self._withdrawn.add(job)
            self.drop_offered(lambda waiting: isinstance(waiting, Dispatch) and waiting.key == job)
            if len(self._withdrawn) > _MOST_LATE:
                self._withdrawn.remove(min(self._withdrawn))
        return super().offer(message)

    async def receive(self, message: _Message) -> None:
        match message:
            case Dispatch():
                if self._exchange is not None and self._exchange.job.key in self._withdrawn:
                    # It may be answered meanwhile, but is never sent again: its model is not kept.
                    self._exchange.job = replace(self._exchange.job, messages=())
                    self._late[self._exchange.job.key] = self._exchange
                    if len(self._late) > _MOST_LATE:
                        del self._late[min(self._late)]
                self._exchange = Exchange(message, self._clock(), 0)
                self._pinged_s = None  # its answer would come after the job, and measure that
                self._last_job = message.key
                self._most_released += 1
                await self._send_job(self._exchange)
            case Exchange() if message is self._exchange:
                # The parts of the exchange are timed from now on. The time until now counts as `reconnect_s`.
                message.job, message.started_s = replace(message.job, handed_over_s=message.first_s), self._clock()
                await self._send_job(message)
            case pb.Ack():
                await self._stream.write(encode(pb.ServerMessage(ack=message)))
            case pb.Withdraw():
                await self._stream.write(encode(pb.ServerMessage(withdraw=message)))
            case pb.Ping() if self._exchange is None:
                self._nonce, self._pinged_s = self._nonce + 1, self._clock()
                self._allow(1)
                await self._stream.write(encode(pb.ServerMessage(ping=pb.Ping(nonce=self._nonce))))
            case pb.Goodbye():
                await self._stream.write(encode(pb.ServerMessage(goodbye=message)))
                self.stop()  # there is nothing to say after a goodbye

    async def _send_job(self, exchange: Exchange) -> None:
        messages = exchange.job.messages
        exchange.bytes_down += sum(map(len, messages))
        self._allow(len(messages) + _SPARE_MESSAGES)
        for data in messages:
            if exchange.job.key not in self._withdrawn:
                await self._stream.write(data)

    def _allow(self, messages: int) -> None:
        self._allowed_messages = min(self._allowed_messages + messages, _MOST_MESSAGES)

    async def listen(self) -> str:
        """Read until the client leaves; returns the reason.

        DamageError if its messages cannot be read any more: on a new stream it sends the same bytes again.
        AbuseError if it sends too many messages, or too many that are rejected.
        """
        try:
            return await self._read_on()
        except DamageError as damage:
            self._rate_limit.count_rejection(str(damage))
            raise

    async def _read_on(self) -> str:
        while (data := await self._stream.read()) is not None:
            arrived_s = self._clock()
            if self._allowed_messages:
                self._allowed_messages -= 1
            else:
                self._rate_limit.count_unsolicited()
            message, payload = decode(pb.ClientMessage, data)
            match message.WhichOneof("kind"):
                case "result":
                    await self._take_result(message.result, payload, arrived_s, len(data))
                case "frame":
                    await self._take_frame(message.frame, payload, arrived_s, len(data))
                case "goodbye":
                    self.may_return = False
                    return shown(message.goodbye.reason, LONGEST_TEXT)
                case "pong":
                    if message.pong.nonce == self._nonce and self._pinged_s is not None:  # else of an earlier ping
                        ping_s, self._pinged_s = arrived_s - self._pinged_s, None
                        await self._coordinator.tell(Ping(self.client_id, ping_s))
                case kind:
                    raise DamageError(f"sent an unexpected message ({kind})")
        return "its stream ended"

    async def _take_result(self, result: pb.Result, payload: memoryview, arrived_s: float, n_bytes: int) -> None:
        exchange, answered = self._exchange, (result.round, result.attempt)
        exchange = self._late.get(answered, exchange)
        if self._receiving is not None:  # no further frames can continue it
            self._receiving.result = self._receiving.frames = None
            self._receiving = None
        if result.status == pb.STATUS_WITHDRAWN and answered in self._withdrawn:
            self._end(answered)
            dropped = f"dropped its job of round {result.round} unpaid"
            await self._coordinator.tell(Refusal(self.client_id, *answered, "withdrawn", dropped))
        elif exchange is None or (exchange is self._exchange and answered != self._last_job):
            reason = f"answered round {result.round} attempt {result.attempt}, which it was not asked for now"
            if exchange is None or answered < self._last_job:
                is_late = answered <= self._last_job
                await self._reject(reason, answered, release_of(result), is_counted=not is_late)
            else:
                await self._ask_again(exchange, DamageError(reason))
        elif result.status != pb.STATUS_OK:
            self._end(answered)
            await self._relay_refusal(result)
        else:
            self._receiving = exchange
            exchange.result, exchange.first_frame_s, exchange.bytes_up = result, arrived_s, n_bytes
            try:
                exchange.frames = Assembler(result.update, self._settings.manifest.size, self._encoding)
                exchange.frames.add(0, payload)
                await self._finish_if_complete(exchange, arrived_s)
            except DamageError as damage:
                await self._ask_again(exchange, damage)

    def _end(self, job: tuple[int, int]) -> None:
        """Stop waiting for an answer to this job."""
        if self._exchange is not None and self._exchange.job.key == job:
            self._exchange = None
        self._late.pop(job, None)
        self._withdrawn.discard(job)

    async def _take_frame(self, frame: pb.Frame, payload: memoryview, arrived_s: float, n_bytes: int) -> None:
        exchange = self._receiving
        if exchange is None or exchange.frames is None or exchange.result is None:
            # It belongs to an update that was already rejected: one rejection is enough.
            return
        exchange.bytes_up += n_bytes
        if frame.HasField("host"):
            exchange.result.host.CopyFrom(frame.host)
        try:
            exchange.frames.add(frame.index, payload)
            await self._finish_if_complete(exchange, arrived_s)
        except DamageError as damage:
            await self._ask_again(exchange, damage)

    async def _ask_again(self, exchange: Exchange, damage: DamageError) -> None:
        """Send the job again: the client keeps its update until it is acknowledged, and so sends the same bytes again.

        If the job is withdrawn, followed by another, or was sent too often, its answer is rejected instead.
        """
        result, exchange.result, exchange.frames = exchange.result, None, None
        is_wanted = exchange.job.key == self._last_job and exchange.job.key not in self._withdrawn
        if is_wanted and exchange.times_asked < _MOST_TIMES_ASKED and self.offer(exchange):
            exchange.times_asked += 1
            return
        self._end(exchange.job.key)
        await self._reject(str(damage), exchange.job.key, release_of(result) if result else Release())

    async def _finish_if_complete(self, exchange: Exchange, arrived_s: float) -> None:
        """Pass a complete update on, or reject it; DamageError if its bytes were damaged on the way."""
        frames, result = exchange.frames, exchange.result
        if frames is None or result is None or not frames.complete:
            return
        self._receiving = None
        try:
            release = release_of(result)
            if release.participation > (most := self._most_released):
                raise WireError(f"counts {release.participation} releases, at most {most} are possible since its hello")
            server_host = self._watch.report(exchange.first_s, compute_s=0.0)
            timing = exchange.timing(result.timing, arrived_s, server_host)
            host, statistics = host_of(result, timing), statistics_of(result)
            is_quick = self._settings.manifest.size * 4 <= _INLINE_BYTES
            vector = await off_loop(is_quick, update_of, frames, release.epsilon, self._settings)
        except DamageError:
            raise
        except WireError as error:
            await self._reject(str(error), exchange.job.key, release_of(result))
            self._end(exchange.job.key)
            return
        await self._coordinator.tell(
            Update(
                client_id=self.client_id,
                round=exchange.job.round,
                attempt=exchange.job.attempt,
                vector=vector,
                timing=timing,
                drawn_down_s=result.timing.drawn_down_s,
                drawn_up_s=result.timing.drawn_up_s,
                release=release,
                loss=loss_of(result),
                statistics=statistics,
                bytes_down=exchange.bytes_down,
                bytes_up=exchange.bytes_up,
                arrived_s=arrived_s,
                host=host,
                server_host=server_host,
                is_resent=result.resent,
                still_before_s=result.host.still_before_s,
            )
        )
        self._end(exchange.job.key)  # not earlier: if the stream breaks meanwhile, the round trip continues

    async def _reject(self, reason: str, job: tuple[int, int], release: Release, *, is_counted: bool = True) -> None:
        """Tell the coordinator that an answer to this job is rejected. AbuseError if that happens too often."""
        believed = release if release.participation <= self._most_released else Release()  # more are impossible
        await self._coordinator.tell(Refusal(self.client_id, *job, "rejected", reason, believed))
        if is_counted:
            self._rate_limit.count_rejection(reason)

    async def _relay_refusal(self, result: pb.Result) -> None:
        job = result.round, result.attempt
        is_spent, budget = result.status == pb.STATUS_BUDGET_EXHAUSTED, self._budget
        if is_spent and budget is not None and not budget.may_be_spent(self._most_released - 1):  # without this job's
            await self._reject("says that its budget is spent, its schedule affords more", job, Release())
            return
        kind: RefusalKind = "exhausted" if is_spent else "refused"
        reason = shown(result.reason.lstrip("=+-@"), LONGEST_TEXT)  # no formula, where a report's CSV is opened
        await self._coordinator.tell(Refusal(self.client_id, *job, kind, reason))
