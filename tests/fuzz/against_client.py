"""Malformed messages against a real client process, with sound jobs in between, which it must answer and charge."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np

from fuzz.malformed import malformed
from fuzz.server_run import peak_rss_bytes, tracebacks
from fuzz.tally import Tally
from pausefl.experiment.experiment import Experiment, load_experiment
from pausefl_client.privacy.ledger import Ledger
from pausefl_proto.errors import DamageError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, SERVICE, decode, digest, pack_job, unpack
from rigs.command import toml_of

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
HELD, ENDED = "on a stream that goes on", "as the last of a stream"
_CLIENTS = 24
_MOST_IN_A_BURST = 200
_ANSWER_WITHIN_S = 20.0
_EXPERIMENT = {
    "clients.count": _CLIENTS,
    "privacy": {"epsilon_budget": 1000.0, "eta": 0.0001},
    "latency.delay.kind": "none",
    "workload": {"model": "synthetic", "model_bytes": 4000},
}


class ClientFuzz:
    """A hostile server and the clients of one process; `summary` gives the findings so far."""

    def __init__(self, messages: int, seed: int, say: Callable[[str], None]) -> None:
        self._seed = seed
        self._say = say
        self._tally = Tally(messages)
        self._tally.start()
        self._model = np.zeros(1000, np.float32)
        self._schedule = ""
        self._streams = self._jobs = self._answered = 0
        self._warm: set[str] = set()
        """Clients that have trained. Malformed messages start once all have, when the memory's base is measured."""
        self._base_is_taken = asyncio.Event()
        self._released: dict[str, dict[int, str]] = {}
        """By client and participation, the digest of the released update."""
        self._wrong: list[str] = []
        self._summary: dict[str, Any] = {}

    def summary(self) -> dict[str, Any]:
        """The findings so far."""
        return {
            "messages": self._tally.total,
            "seed": self._seed,
            "sent": self._tally.by_layer(),
            "streams": self._streams,
            "sound_jobs": self._jobs,
            "sound_jobs_answered": self._answered,
            "wrong_in_ledgers": len(self._wrong),
            **self._summary,
        }

    async def run(self, folder: Path) -> None:
        """Play to the end."""
        (folder / "client.toml").write_text(toml_of(_EXPERIMENT), "utf-8")
        experiment = load_experiment(str(folder / "client.toml"))
        self._schedule = experiment.privacy.schedule
        async with self._listening() as port:
            process = _start_clients(folder, port)
            try:
                await self._watch(process)
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait)
        self._check_ledgers(folder, experiment)
        complaints = tracebacks((folder / "client.err").read_text("utf-8", "replace"))
        self._summary |= {"tracebacks": len(complaints), "complaints": complaints[:5]}
        self._summary["releases"] = sum(map(len, self._released.values()))

    async def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        said_s = time.monotonic()
        while not self._tally.is_done:
            await asyncio.sleep(0.2)
            self._summary["survives"] = process.poll() is None
            assert process.poll() is None, "the client's process has ended"
            if len(self._warm) < _CLIENTS:
                continue
            self._summary["peak_rss_bytes"] = peak_rss_bytes(process.pid)
            self._summary.setdefault("base_rss_bytes", self._summary["peak_rss_bytes"])
            self._base_is_taken.set()
            if time.monotonic() - said_s > 10:
                said_s = time.monotonic()
                peak_bytes = self._summary["peak_rss_bytes"]
                self._say(
                    f"client: {self._tally.total:,} of {self._tally.limit:,} messages, {self._answered} of"
                    f" {self._jobs} sound jobs answered, memory at most {peak_bytes / 1e6:.0f} MB"
                )

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[int]:
        server = grpc.aio.server()
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Join": join}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield port
        finally:
            await server.stop(0)

    async def _join(self, _: Any, context: Context) -> None:
        """Serve a stream: a welcome, malformed messages that clients ignore, a sound job, one that ends the stream."""
        self._streams += 1
        rng = random.Random(f"{self._seed}/{self._streams}")
        hello = pb.ClientMessage.FromString(await _read(context)).hello
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                if self._base_is_taken.is_set() and rng.random() < 0.02:
                    await self._send_malformed(context, pb.ServerMessage(welcome=_WELCOME), rng)
                    return
                await context.write(pb.ServerMessage(welcome=_WELCOME).SerializeToString())
                if hello.client_id not in self._warm:
                    await self._give_job(context, hello.client_id)
                    self._warm.add(hello.client_id)
                await self._base_is_taken.wait()
                for _ in range(rng.randrange(_MOST_IN_A_BURST)):
                    name, data = _overlooked(rng)
                    await context.write(data)
                    self._tally.add(HELD, name)
                if rng.random() < 0.3:
                    await self._give_job(context, hello.client_id)
                if rng.random() < 0.5:  # if every stream ended in damage, clients would wait ever longer
                    await self._send_malformed(context, self._hostile_job(rng), rng)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(0, 0.2)):
                        await self._listen(context, hello.client_id)

    async def _send_malformed(self, context: Context, message: pb.ServerMessage, rng: random.Random) -> None:
        payload = self._model.tobytes() if message.HasField("job") or message.HasField("frame") else b""
        name, data = malformed(message, payload, rng)
        if _dismisses(data):
            return  # a final goodbye would rightly end a client
        await context.write(data)
        self._tally.add(ENDED, name)

    def _hostile_job(self, rng: random.Random) -> pb.ServerMessage:
        model = pb.Vector(size_bytes=self._model.nbytes, frames=1, digest=digest(self._model))
        job = pb.Job(round=rng.choice((0, 1, 2**32 - 1)), attempt=1, model=model, schedule=self._schedule)
        others = (
            pb.ServerMessage(frame=pb.Frame(index=rng.randrange(3))),
            pb.ServerMessage(ack=pb.Ack(round=1, attempt=rng.randrange(3))),
            pb.ServerMessage(goodbye=pb.Goodbye(reason="x" * 1000)),
        )
        return rng.choice((*[pb.ServerMessage(job=job)] * 2, *others))

    async def _give_job(self, context: Context, client_id: str) -> None:
        """Give a sound job with a model of its own, and wait for its answer."""
        self._jobs += 1
        round_ = 1_000 + self._jobs
        (data,) = pack_job(round_, 1, self._model, digest(self._model), self._schedule)
        await context.write(data)
        await self._listen(context, client_id, round_)
        self._answered += 1

    async def _listen(self, context: Context, client_id: str, until_round: int | None = None) -> None:
        """Record every release that leaves, until the one of `until_round`."""
        while True:
            said = pb.ClientMessage.FromString(unpack(await _read(context))[0])
            if not said.HasField("result"):
                continue
            result, number = said.result, said.result.release.participation
            if number:
                before = self._released.setdefault(client_id, {}).setdefault(number, result.update.digest)
                if before != result.update.digest:
                    self._wrong.append(f"{client_id}: release {number} left twice, with other bytes")
            if result.round == until_round:
                assert result.status == pb.STATUS_OK, result
                return

    def _check_ledgers(self, folder: Path, experiment: Experiment) -> None:
        """Check that each ledger is consistent and has every release that left, at its price."""
        budget = experiment.privacy.budget
        assert budget is not None
        for client_id, left in self._released.items():
            path = folder / f"ledgers/{client_id}.db"
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                charged = dict(db.execute("SELECT participation, update_digest FROM releases").fetchall())
                of_holder = "SELECT key, value FROM meta WHERE key NOT IN ('schedule', 'unit')"
                holder = dict(db.execute(of_holder).fetchall())
            ledger = Ledger(path, budget, unit=experiment.privacy.unit, **holder)  # verifies the chain of all rows
            if abs(ledger.spent.epsilon - budget.spent(ledger.spent.released)) > 1e-9:
                self._wrong.append(f"{client_id}: {ledger.spent.epsilon} spent on {ledger.spent.released} releases")
            ledger.close()
            self._wrong += [f"{client_id}: release {i} is not in the ledger" for i in left if charged.get(i) != left[i]]
        for wrong in self._wrong:
            self._say(wrong)


_WELCOME = pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="fuzz")


def _overlooked(rng: random.Random) -> tuple[str, bytes]:
    """A malformed message that a client ignores: it expects none of the kind, and the stream goes on."""
    number = rng.choice((0, 1, 2**31, 2**32 - 1))
    kinds: tuple[dict[str, Any], ...] = (
        {"ack": pb.Ack(round=number, attempt=number)},
        {"ping": pb.Ping(nonce=number)},
        {"frame": pb.Frame(index=number)},
        {},
        {"welcome": pb.Welcome(protocol_version=number, run_id="other")},
    )
    message = pb.ServerMessage(**rng.choice(kinds))
    name, data = malformed(message, b"", rng)
    with suppress(DamageError):
        if decode(pb.ServerMessage, data)[0].WhichOneof("kind") not in ("job", "goodbye"):
            return name, data
    return "out of place", message.SerializeToString()


def _dismisses(data: bytes) -> bool:
    with suppress(Exception):
        return pb.ServerMessage.FromString(unpack(data)[0]).goodbye.final
    return False


async def _read(context: Context) -> bytes:
    """The next message. Raises ConnectionError at the end of the stream."""
    data: Any = await context.read()
    if data is grpc.aio.EOF:
        raise ConnectionError
    assert isinstance(data, bytes)
    return data


def _start_clients(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pausefl", "client", folder / "client.toml", "--server", f"127.0.0.1:{port}"]
    command += ["--slot", "0", "--count", _CLIENTS, "--ledger-dir", folder / "ledgers"]
    with (folder / "client.out").open("wb") as out, (folder / "client.err").open("wb") as err:
        return subprocess.Popen([*map(str, command)], stdout=out, stderr=err)
