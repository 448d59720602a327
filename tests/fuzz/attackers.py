"""Hostile peers of a server: strangers at each layer, and admitted clients that send malformed messages."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import numpy as np

from fuzz.http2 import ATTACKS
from fuzz.malformed import malformed
from fuzz.tally import Tally
from pausefl.experiment.experiment import Experiment
from pausefl.runtime.client.agreement import agreement_of
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, SERVICE, Manifest, TensorSpec, digest, pack, unpack

RAW, HELLO, ADMITTED = "HTTP/2 and below", "instead of a hello", "after the welcome"
_ANSWER_WITHIN_S = 5.0
_STREAMS_OF_A_CHANNEL = 40
_MOST_IN_A_BURST = 24


class Target:
    """A server, and the messages that admit a client to it."""

    def __init__(self, port: int, model_bytes: int, experiment: Experiment, seed: int) -> None:
        self.port = port
        self.seed = seed
        self.vector = np.zeros(model_bytes // 4, np.float32)
        self._schedule = experiment.privacy.schedule
        self._agreement = agreement_of(experiment)

    def hello(self, client_id: str) -> pb.ClientMessage:
        """A valid hello."""
        manifest = Manifest((TensorSpec("synthetic", (self.vector.size,)),)).to_message()
        greeting = pb.Hello(protocol_version=PROTOCOL_VERSION, client_id=client_id, n_examples=1, manifest=manifest)
        greeting.ledger.schedule = self._schedule
        greeting.agreement.update(self._agreement)
        return pb.ClientMessage(hello=greeting)

    def result(self, round: int, attempt: int) -> pb.ClientMessage:
        """A valid answer except for its release, which exceeds every budget."""
        update = pb.Vector(size_bytes=self.vector.nbytes, frames=1, digest=digest(self.vector))
        result = pb.Result(round=round, attempt=attempt, status=pb.STATUS_OK, update=update)
        result.timing.train_s = 0.001
        result.release.participation = 1
        result.release.epsilon = result.release.epsilon_spent = 5.0
        result.host.loop_lag_s = 0.001
        return pb.ClientMessage(result=result)


class Channels:
    """Connections to the server, each for up to 40 streams."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._channels: list[grpc.aio.Channel] = []
        self._streams = 0

    @asynccontextmanager
    async def stream(self) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
        """A new stream."""
        if self._streams % _STREAMS_OF_A_CHANNEL == 0:
            options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
            self._channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{self._target.port}", options=options))
            if len(self._channels) > 8:
                await self._channels.pop(0).close()
        self._streams += 1
        call: grpc.aio.StreamStreamCall[bytes, bytes] = self._channels[-1].stream_stream(f"/{SERVICE}/Join")()
        try:
            yield call
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            await channel.close()


async def send_raw(number: int, target: Target, tally: Tally) -> None:
    """Break the rules of HTTP/2 on one connection after another."""
    rng = random.Random(f"{target.seed}/raw/{number}")
    while await tally.turn():
        name = rng.choice(list(ATTACKS))
        pieces = ATTACKS[name](rng)
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            try:
                async with asyncio.timeout(0.5):
                    for piece in pieces:
                        writer.write(piece)
                        await writer.drain()  # fails once the server has closed the connection
                        tally.add(RAW, name)
                    while await reader.read(1 << 16):
                        pass
            finally:
                writer.transport.abort()


async def send_bad_hellos(number: int, target: Target, tally: Tally, channels: Channels) -> None:
    """Send a malformed hello, or another message, on one stream after another."""
    rng = random.Random(f"{target.seed}/hello/{number}")
    while await tally.turn():
        name, data = malformed(target.hello(f"hostile-{rng.randrange(1000):03d}"), b"", rng)
        if rng.random() < 0.1:
            name, data = "another kind", target.result(1, 1).SerializeToString()
        with suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
            async with asyncio.timeout(_ANSWER_WITHIN_S), channels.stream() as call:
                await call.write(data)
                tally.add(HELLO, name)
                _note(tally, await call.read())


class Insider:
    """An admitted client that sends malformed messages, and that reconnects as soon as it may."""

    def __init__(self, client_id: str, target: Target, tally: Tally, channels: Channels) -> None:
        self._client_id = client_id
        self._target = target
        self._tally = tally
        self._channels = channels
        self._rng = random.Random(f"{target.seed}/{client_id}")
        self._job = 0, 0

    async def run(self) -> None:
        """Connect again and again until enough messages were sent."""
        while await self._tally.turn():
            rest_s = 0.05
            with suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
                async with asyncio.timeout(_ANSWER_WITHIN_S), self._channels.stream() as call:
                    await call.write(self._target.hello(self._client_id).SerializeToString())
                    answer = _note(self._tally, await call.read())
                    if answer.startswith("welcome"):
                        await self._misbehave(call)
                    elif found := re.search(r"(?:in|for) (\d+) s", answer):
                        rest_s = float(found[1])
            await asyncio.sleep(rest_s)

    async def _misbehave(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        for _ in range(self._rng.randrange(_MOST_IN_A_BURST)):
            await self._send(call)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0.0, 2.0)):
                while self._tally.is_on and (data := await call.read()) is not grpc.aio.EOF:
                    assert isinstance(data, bytes)
                    said = pb.ServerMessage.FromString(unpack(data)[0])
                    if said.WhichOneof("kind") == "job":
                        self._job = said.job.round, said.job.attempt
                        await self._send(call)
                        await self._refuse(call)
                    elif said.WhichOneof("kind") == "goodbye":
                        self._tally.answers[_first_words(said.goodbye.reason)] += 1
                        return
        await call.write(pb.ClientMessage(goodbye=pb.Goodbye(reason="x" * 900_000)).SerializeToString())
        await call.read()

    async def _send(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        if call.done():
            raise asyncio.InvalidStateError
        name, data = self._nonsense()
        await call.write(data)
        self._tally.add(ADMITTED, name)

    async def _refuse(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        """Refuse the job, so that its round need not wait for it."""
        reason = self._rng.choice(("", "out of memory", "\x1b[2J" * 99, "x" * 900_000))
        result = pb.Result(round=self._job[0], attempt=self._job[1], status=pb.STATUS_FAILED, reason=reason)
        await call.write(pb.ClientMessage(result=result).SerializeToString())
        self._tally.add(ADMITTED, "hostile refusal")

    def _nonsense(self) -> tuple[str, bytes]:
        rng, (round_, attempt) = self._rng, self._job
        payload = self._target.vector.tobytes()
        if (what := rng.randrange(9)) == 0:
            return "wrong round", self._sound(rng.choice((0, round_ - 1, round_ + 1, 2**32 - 1)), attempt, payload)
        if what == 1:
            return "wrong attempt", self._sound(round_, rng.choice((0, attempt + 1, 2**32 - 1)), payload)
        others = {
            2: (pb.ClientMessage(frame=pb.Frame(index=rng.randrange(3))), payload),
            3: (pb.ClientMessage(pong=pb.Pong(nonce=rng.randrange(9))), b""),
            4: (self._target.hello(self._client_id), b""),
            5: (pb.ClientMessage(goodbye=pb.Goodbye(reason="x" * 1000)), b""),
        }
        return malformed(*others.get(what, (self._target.result(round_, attempt), payload)), rng)

    def _sound(self, round: int, attempt: int, payload: bytes) -> bytes:
        message = self._target.result(max(0, round) % 2**32, attempt % 2**32)
        return pack(message, memoryview(payload))


def _note(tally: Tally, data: object) -> str:
    """Count the server's answer; returns its reason or its kind."""
    if not isinstance(data, bytes):
        answer = "the stream ends"
    else:
        said = pb.ServerMessage.FromString(unpack(data)[0])
        answer = said.goodbye.reason if said.HasField("goodbye") else str(said.WhichOneof("kind"))
    tally.answers[_first_words(answer)] += 1
    return answer


def _first_words(text: str) -> str:
    """A text without quoted words and numbers, shortened: the same for all answers of a kind."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|[-+]?\d[\d.,e+-]*", "…", text.partition(":")[0])
    return " ".join(words.split()[:12])
