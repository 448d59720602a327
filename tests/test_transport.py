"""Both ends over real gRPC on loopback: who is let in, what breaks, and what a restart finds again."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pausefl.actor import Actor, ActorStopped
from pausefl.budget import Budget
from pausefl.errors import ConfigError, EvaluatorLost, PauseflError
from pausefl.v1 import federation_pb2 as pb
from pausefl.wire import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, SERVICE, Manifest, Tensor, Vector, unpack
from pausefl_client.ledger import Ledger, ReleaseKey
from pausefl_client.link import Link
from pausefl_client.privacy import Mechanism
from pausefl_client.release import Privacy as ClientPrivacy
from pausefl_client.release import Releaser
from pausefl_client.session import ClientSession, ClientSettings, Stream
from pausefl_client.synthetic import SyntheticTrainer
from pausefl_client.trainer import TrainingOutcome
from pausefl_client.transport import connect
from pausefl_server.messages import Lost, Register, Shutdown
from pausefl_server.records import Evaluation, RoundRecord
from pausefl_server.rounds import Coordinator
from pausefl_server.selection.base import Policy
from pausefl_server.selection.everyone import All
from pausefl_server.selection.uniform import Random
from pausefl_server.service import Endpoints, RunResult, serve
from pausefl_server.settings import MetricsSettings, Privacy, ServerSettings
from pausefl_server.store import Store
from pausefl_server.transport import FederationServer

SIZE = 500
BUDGET = Budget(epsilon_budget=10.0, eta=0.1)
PRIVATE = Privacy(BUDGET, "coordinate", "agreed")
BIG = MAX_FRAME_BYTES // 4 * 5 // 2  # two frames and a half


def settings_of(**changes: Any) -> ServerSettings:
    size = changes.pop("size", SIZE)
    settings = ServerSettings(
        run_id="test",
        seed=1,
        rounds=3,
        minimum_clients=2,
        manifest=Manifest((Tensor("synthetic", (size,)),)),
        privacy=None,
        signal="round_trip",
        time_scale=1.0,
        tau_min_s=0.05,
        connect_timeout_s=20.0,
        round_timeout_s=20.0,
        rejoin_timeout_s=20.0,
        evaluation_every=0,
    )
    return dataclasses.replace(settings, **changes)


class Federation:
    """A server that runs, and what it tells."""

    def __init__(self) -> None:
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task: asyncio.Task[RunResult]

    def tell(self, event: Mapping[str, Any]) -> None:
        self.events.put_nowait(dict(event))

    async def event(self, kind: str, containing: str = "") -> dict[str, Any]:
        """The next event of this kind whose message contains the text."""
        async with asyncio.timeout(20):
            while True:
                event = await self.events.get()
                if event["kind"] == kind and containing in str(event.get("message", "")):
                    return event

    async def finished(self) -> RunResult:
        async with asyncio.timeout(30):
            return await self.task


def make(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


@asynccontextmanager
async def federation(folder: Path, policy: Policy | None = None, **changes: Any) -> AsyncIterator[Federation]:
    """Serve in `folder`; the server is gone with the block."""
    make(folder)
    evaluate = changes.pop("evaluate", None)
    endpoints = Endpoints("127.0.0.1", 0, changes.pop("metrics", None))
    settings, run = settings_of(**changes), Federation()
    theta_0 = np.zeros(settings.manifest.size, np.float32)
    run.task = asyncio.ensure_future(
        serve(settings, policy or All(1), theta_0, evaluate, endpoints, folder, run.tell, on_ready=run.port.set_result)
    )
    await asyncio.wait([run.task, run.port], return_when=asyncio.FIRST_COMPLETED)
    if not run.port.done():
        await run.task  # which says why it does not listen
    try:
        yield run
    finally:
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)


Connect = Callable[[], AbstractAsyncContextManager[Stream]]


class Clients:
    """Client sessions that share a trainer thread, as in a host process."""

    def __init__(self, group: asyncio.TaskGroup, executor: ThreadPoolExecutor) -> None:
        self._group = group
        self._executor = executor

    def start(
        self,
        client_id: str,
        port: int,
        size: int = SIZE,
        privacy: ClientPrivacy | None = None,
        connecting: Connect | None = None,
        trainer: Any = None,
    ) -> "asyncio.Task[str]":
        session = ClientSession(
            ClientSettings(client_id, "agreed" if privacy else "", give_up_after_s=10.0, retry_every_s=0.02),
            trainer or SyntheticTrainer(size, seed=1, client_id=client_id),
            Releaser(privacy),
            Link(),
            connecting or partial(connect, f"127.0.0.1:{port}"),
            self._executor,
        )
        return self._group.create_task(session.run())


@asynccontextmanager
async def clients() -> AsyncIterator[Clients]:
    with ThreadPoolExecutor(1) as executor:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            yield Clients(group, executor)


def private(folder: Path, client_id: str) -> ClientPrivacy:
    def fresh_noise(_: ReleaseKey) -> np.random.Generator:
        return np.random.default_rng()

    ledger = Ledger(folder / f"{client_id}.db", BUDGET, unit="coordinate", client_id=client_id, data="test")
    return ClientPrivacy(Mechanism("coordinate", 0.01), ledger, fresh_noise)


def log_of(folder: Path) -> list[RoundRecord]:
    store = Store(folder / "run.db")
    try:
        return store.rounds()
    finally:
        store.close()


@asynccontextmanager
async def raw_stream(port: int) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
    """A stream without any of our client's code, nor its limits."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/Join")()
        try:
            yield call
        finally:
            call.cancel()


async def take_a_job(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
    """Be a client by hand, up to the model of its first job."""
    await call.write(hello())
    assert (await answer_of(call)).WhichOneof("kind") == "welcome"
    assert (await answer_of(call)).WhichOneof("kind") == "job"


def hello(client_id: str = "raw", size: int = SIZE) -> bytes:
    manifest = Manifest((Tensor("synthetic", (size,)),)).to_message()
    greeting = pb.Hello(protocol_version=PROTOCOL_VERSION, client_id=client_id, n_examples=1, manifest=manifest)
    return pb.ClientMessage(hello=greeting).SerializeToString()


async def answer_of(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> pb.ServerMessage:
    return pb.ServerMessage.FromString(unpack(await asyncio.wait_for(call.read(), 20))[0])


# -- whole runs


def errors_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """gRPC warns of a stream that was ending by itself when the server stopped; that hurts nobody."""
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("size", [1, SIZE, BIG])
async def test_a_run_over_the_network_averages_what_its_clients_sent(tmp_path: Path, size: int) -> None:
    async with federation(tmp_path, size=size) as run, clients() as some:
        goodbyes = [some.start(c, await run.port, size) for c in ("a", "b")]
        result = await run.finished()
    assert [goodbye.result() for goodbye in goodbyes] == ["all rounds done"] * 2
    theta = np.zeros(size, np.float32)
    for t in (1, 2, 3):
        updates = [SyntheticTrainer(size, seed=1, client_id=c).train(theta, round=t).update for c in ("a", "b")]
        theta += (updates[0] + updates[1]) / 2
    np.testing.assert_allclose(result.theta, theta, atol=1e-6)
    assert result.rejected_updates == 0


async def test_times_and_bytes_are_those_of_the_network(tmp_path: Path) -> None:
    async with federation(tmp_path, size=BIG) as run, clients() as some:
        for c in ("a", "b"):
            some.start(c, await run.port, BIG)
        await run.finished()
    for record in log_of(tmp_path):
        for o in record.observations:
            assert 0 < o.timing.device_s < o.timing.round_trip_s < 20
            assert o.timing.propagation_s > -1e-3
            assert o.timing.download_s > 0
            assert o.timing.upload_s > 0
            assert 4 * BIG < o.bytes_down < 4 * BIG + 1000
            assert 4 * BIG < o.bytes_up < 4 * BIG + 1000


async def test_nothing_is_logged_as_an_error_in_a_sound_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with federation(tmp_path) as run, clients() as some:
            for c in ("a", "b"):
                some.start(c, await run.port)
            await run.finished()
    assert errors_in(caplog) == []


# -- who is let in


async def test_a_client_with_another_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with federation(tmp_path) as run:
        with pytest.raises(ExceptionGroup) as caught:
            async with clients() as some:
                some.start("odd", await run.port, SIZE + 1)
        (error,) = caught.value.exceptions
        assert isinstance(error, PauseflError)
        assert str(error).startswith("the server refuses client odd: the client's model is not this run's")
        await run.event("event", "refused")


async def test_a_second_client_of_the_same_name_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path) as run, clients() as some:
        first = some.start("a", await run.port)
        await run.event("waiting")
        await run.event("waiting")  # "a" is in
        async with raw_stream(await run.port) as call:
            await call.write(hello("a"))
            goodbye = (await answer_of(call)).goodbye
            assert "'a' is connected already" in goodbye.reason
            assert not goodbye.final  # its stream may be dead, and this its return
        some.start("b", await run.port)
        result = await run.finished()
        assert await first == "all rounds done"
    assert result.rejected_updates == 1
    assert [r.chosen for r in log_of(tmp_path)] == [("a", "b")] * 3


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"\xff\xff\xff\xff", ""),
        (b"GET / HTTP/1.1\r\n\r\n", ""),
        (b"", "must be a hello"),
        (pb.ClientMessage(pong=pb.Pong(nonce=1)).SerializeToString(), "must be a hello"),
        (hello(""), "client id is empty"),
        (hello("a", SIZE + 1), "not this run's"),
    ],
    ids=["bytes", "HTTP", "nothing", "a pong", "no name", "another model"],
)
async def test_whoever_does_not_say_hello_properly_is_told_and_left(
    tmp_path: Path, first: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with federation(tmp_path) as run, clients() as some:
        async with raw_stream(await run.port) as call:
            await call.write(first)
            goodbye = (await answer_of(call)).goodbye
            assert goodbye.final
            assert goodbye.reason
            assert reason in goodbye.reason
            assert await call.read() is grpc.aio.EOF
        for c in ("a", "b"):
            some.start(c, await run.port)
        assert (await run.finished()).state.round == 3
    assert errors_in(caplog) == []


async def test_garbage_after_the_hello_is_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3, rejoin_timeout_s=0.0) as run, clients() as some:
        for c in ("a", "b"):
            some.start(c, await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            for garbage in (b"\xff\xff", b"\x7a\xff\xff\xff\xff\x0f", b"", hello()):
                await call.write(garbage)
                await run.event("event", "rejected")
        result = await run.finished()
    assert result.rejected_updates == 4
    assert result.state.round == 3


async def test_a_message_beyond_the_limit_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3, rejoin_timeout_s=0.0) as run, clients() as some:
        for c in ("a", "b"):
            some.start(c, await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            await call.write(b"\0" * (MAX_MESSAGE_BYTES + 1))
            with pytest.raises(grpc.aio.AioRpcError):
                while await asyncio.wait_for(call.read(), 20) is not grpc.aio.EOF:
                    pass
        result = await run.finished()
    assert result.state.round == 3
    last = log_of(tmp_path)[-1]
    assert [o.client_id for o in last.observations] == ["a", "b"]


async def test_a_taken_port_is_bad_input(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = serve(
            settings_of(),
            All(1),
            np.zeros(SIZE, np.float32),
            None,
            Endpoints("127.0.0.1", port),
            tmp_path,
            lambda event: None,  # noqa: ARG005
            on_ready=lambda port: None,  # noqa: ARG005
        )
        with pytest.raises(ExceptionGroup) as caught:
            await run
    assert caught.group_contains(ConfigError, match=rf"server\.port = {port}: cannot listen")


# -- what breaks


class Proxy:
    """A TCP relay between client and server whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._to_port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._relays: set[asyncio.Task[None]] = set()
        self.connections = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            for relay in tuple(self._relays):
                relay.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection, as a network that breaks does."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        self.connections += 1
        self._writers += [writer, there_writer]
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            relay = asyncio.ensure_future(self._relay(source, sink))
            self._relays.add(relay)
            relay.add_done_callback(self._relays.discard)

    @staticmethod
    async def _relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()


class RecordingStream:
    """A client's stream that notes what it uploads, and calls `on_frame` before every frame after the first."""

    def __init__(self, stream: Stream, uploads: list[tuple[int, str]], on_frame: Callable[[], None]) -> None:
        self._stream = stream
        self._uploads = uploads
        self._on_frame = on_frame

    async def read(self) -> bytes | None:
        return await self._stream.read()

    async def write(self, message: bytes) -> None:
        said = pb.ClientMessage.FromString(unpack(message)[0])
        if said.WhichOneof("kind") == "result":
            self._uploads.append((said.result.round, said.result.update.digest))
        elif said.WhichOneof("kind") == "frame":
            self._on_frame()
        await self._stream.write(message)


async def test_an_upload_cut_off_is_sent_again_byte_by_byte_and_charged_once(tmp_path: Path) -> None:
    uploads: list[tuple[int, str]] = []
    cuts = iter([True])

    async with federation(tmp_path / "run", size=BIG, rounds=2, privacy=PRIVATE) as run, clients() as some:
        proxy = Proxy(await run.port)
        async with proxy.running() as port:

            def cut_once() -> None:
                if next(cuts, False):
                    proxy.cut()

            @asynccontextmanager
            async def unreliable() -> AsyncIterator[Stream]:
                async with connect(f"127.0.0.1:{port}") as stream:
                    yield RecordingStream(stream, uploads, cut_once)

            privacy = {c: private(tmp_path, c) for c in ("a", "b")}
            some.start("a", await run.port, BIG, privacy["a"])
            some.start("b", port, BIG, privacy["b"], unreliable)
            result = await run.finished()
    assert proxy.connections == 2
    assert [t for t, _ in uploads] == [1, 1, 2]
    assert uploads[0] == uploads[1] != uploads[2]
    records = log_of(tmp_path / "run")
    assert [[o.client_id for o in r.observations] for r in records] == [["a", "b"]] * 2
    assert [(e.kind, e.client_id) for r in records for e in r.events if e.kind != "joined"] == [("left", "b")]
    assert privacy["b"].ledger.released == 2
    assert result.state.table.released.tolist() == [2, 2]


class SlowCoordinator(Actor[Any]):
    """Takes its time with a hello."""

    def __init__(self) -> None:
        super().__init__("coordinator")
        self.registered, self.may_answer = asyncio.Event(), asyncio.Event()
        self.lost: asyncio.Queue[Lost] = asyncio.Queue()

    async def receive(self, message: Any) -> Any:
        if isinstance(message, Register):
            self.registered.set()
            await self.may_answer.wait()
            return pb.Welcome(protocol_version=PROTOCOL_VERSION)
        if isinstance(message, Lost):
            self.lost.put_nowait(message)
        return None


async def test_a_client_that_vanishes_between_hello_and_welcome_is_lost_like_any_other() -> None:
    """Or its name would stay taken for ever."""
    coordinator = SlowCoordinator()
    async with asyncio.TaskGroup() as group:
        group.create_task(coordinator.run())
        server = FederationServer(coordinator, SIZE)  # type: ignore[arg-type]
        port = await server.start("127.0.0.1", 0)
        async with raw_stream(port) as call:
            await call.write(hello("shy"))
            await asyncio.wait_for(coordinator.registered.wait(), 20)
        coordinator.may_answer.set()
        lost = await asyncio.wait_for(coordinator.lost.get(), 20)
        assert lost.actor.client_id == "shy"
        await server.stop(0)
        coordinator.stop()


class GatedTrainer(SyntheticTrainer):
    """Trains when it is let."""

    def __init__(self, client_id: str) -> None:
        super().__init__(SIZE, seed=1, client_id=client_id)
        self.asked, self.gate = threading.Event(), threading.Event()

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        self.asked.set()
        assert self.gate.wait(20)
        return super().train(theta, round=round)


async def test_an_interrupt_while_clients_train_dismisses_them_and_logs_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with federation(tmp_path, minimum_clients=1) as run, clients() as some:
        trainer = GatedTrainer("a")
        goodbye = some.start("a", await run.port, trainer=trainer)
        assert await asyncio.to_thread(trainer.asked.wait, 20)
        signal.raise_signal(signal.SIGINT)
        result = await run.finished()
        assert await goodbye == "stopped by SIGINT"
        trainer.gate.set()
    assert result.stopped_because == "stopped by SIGINT"
    assert errors_in(caplog) == []


@pytest.mark.parametrize("stopped", [False, True])
async def test_an_evaluator_that_is_lost_is_waited_for_at_the_end_of_a_whole_run(tmp_path: Path, stopped: bool) -> None:
    asked = []

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        asked.append((subset, patient))
        raise EvaluatorLost("nobody answers")

    async with federation(tmp_path, evaluate=evaluate, evaluation_every=1) as run, clients() as some:
        port = await run.port
        if stopped:
            signal.raise_signal(signal.SIGTERM)
        else:
            for c in ("a", "b"):
                some.start(c, port)
        result = await run.finished()
    assert result.final_evaluations == result.best_evaluations == ()
    assert asked == [*([] if stopped else [(True, False)] * 2), (True, not stopped), (False, False)]


async def test_a_second_kind_of_signal_does_not_break_off_the_last_judgement(tmp_path: Path) -> None:
    """One Ctrl-C: SIGINT from the terminal, SIGTERM from whoever started the server."""

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        if not subset:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
        return (Evaluation("test", subset, 10, 0.5, 1.0),)

    async with federation(tmp_path, evaluate=evaluate) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        result = await run.finished()
    assert result.stopped_because == "stopped by SIGINT"
    assert [e.accuracy for e in result.final_evaluations] == [0.5]


async def test_a_signal_that_meets_a_coordinator_at_its_end_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not stopped when the signal comes, and has when it would hear of it."""

    async def stop_first(coordinator: Coordinator, message: Shutdown) -> None:
        await Actor.tell(coordinator, message)
        raise ActorStopped("coordinator has stopped")

    monkeypatch.setattr(Coordinator, "tell", stop_first)
    async with federation(tmp_path) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        result = await run.finished()
    assert result.stopped_because == "stopped by SIGINT"


async def test_an_answer_to_a_server_that_has_just_ended_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client does not read its goodbye before it has answered."""
    async with federation(tmp_path, minimum_clients=1) as run, raw_stream(await run.port) as call:
        await take_a_job(call)
        signal.raise_signal(signal.SIGINT)
        goodbye = (await answer_of(call)).goodbye
        result = pb.Result(round=1, attempt=1, status=pb.STATUS_FAILED, reason="too late")
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.ClientMessage(result=result).SerializeToString())
        await run.finished()
    assert (goodbye.reason, goodbye.final) == ("stopped by SIGINT", True)
    assert errors_in(caplog) == []


async def test_a_client_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    attempts = asyncio.Event()

    @asynccontextmanager
    async def early() -> AsyncIterator[Stream]:
        try:
            async with connect(f"127.0.0.1:{port}") as stream:
                yield stream
        finally:
            attempts.set()

    run = Federation()
    async with clients() as some:
        goodbye = some.start("a", port, connecting=early)
        await asyncio.wait_for(attempts.wait(), 20)
        endpoints = Endpoints("127.0.0.1", port)
        await serve(
            settings_of(minimum_clients=1),
            All(1),
            np.zeros(SIZE, np.float32),
            None,
            endpoints,
            tmp_path,
            run.tell,
            on_ready=run.port.set_result,
        )
        assert await goodbye == "all rounds done"


async def test_a_stream_that_is_over_says_so_to_whoever_reads_or_writes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with connect(f"127.0.0.1:{port}") as stream:
        with pytest.raises(OSError):
            await stream.read()
        with pytest.raises(OSError):
            await stream.write(b"too late")
        with pytest.raises(OSError):
            await stream.read()


# -- what a restart finds again


async def play(
    folder: Path, rounds: int, names: str = "abc", policy: Policy | None = None, **changes: Any
) -> RunResult:
    """Begin or go on with the run in `folder` until it has so many rounds."""
    privacy = {c: private(folder / "ledgers", c) if changes.get("privacy") else None for c in names}
    try:
        async with (
            federation(folder, policy or Random(2), rounds=rounds, minimum_clients=len(names), **changes) as run,
            clients() as some,
        ):
            for c in names:
                some.start(c, await run.port, privacy=privacy[c])
            return await run.finished()
    finally:
        for p in privacy.values():
            if p is not None:
                p.ledger.close()


def choices_and_models(folder: Path) -> list[tuple[int, tuple[str, ...], str]]:
    return [(r.round, r.chosen, r.model_digest) for r in log_of(folder)]


async def test_a_resumed_run_is_measured_before_anybody_is_back(tmp_path: Path) -> None:
    result = await play(tmp_path, 3, privacy=PRIVATE)
    resumed = {"privacy": PRIVATE, "rounds": 5, "metrics": MetricsSettings()}
    async with federation(tmp_path, Random(2), **resumed) as run:
        url = (await run.event("metrics"))["url"]
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    spent = dict(zip(result.state.table.ids, result.state.table.epsilon_spent, strict=True))
    assert float(samples["pausefl_round"]) == 3
    assert float(samples["pausefl_total_latency_seconds"]) == pytest.approx(result.state.total_latency_s)
    assert float(samples["pausefl_round_trip_seconds_count"]) == 6
    for client_id in "abc":
        sample = f'pausefl_client_epsilon_spent{{client="{client_id}",unit="coordinate"}}'
        assert float(samples[sample]) == pytest.approx(spent[client_id])


async def test_a_run_in_two_parts_is_the_run_in_one(tmp_path: Path) -> None:
    whole = await play(tmp_path / "whole", 6)
    for rounds in (2, 3, 6):
        parts = await play(tmp_path / "parts", rounds)
    assert choices_and_models(tmp_path / "parts") == choices_and_models(tmp_path / "whole")
    assert parts.theta.tobytes() == whole.theta.tobytes()
    assert parts.state.table.chosen.tolist() == whole.state.table.chosen.tolist()


async def test_a_torn_model_costs_its_round_and_no_epsilon_is_forgotten(tmp_path: Path) -> None:
    before = await play(tmp_path, 3, policy=All(1), privacy=PRIVATE)
    torn = tmp_path / "checkpoints" / "slot-1.f32"  # of round 3, the last
    torn.write_bytes(torn.read_bytes()[:-100])
    after = await play(tmp_path, 4, policy=All(1), privacy=PRIVATE)
    records = log_of(tmp_path)
    assert [r.round for r in records] == [1, 2, 3, 4]
    third = records[2]
    assert {e.client_id for e in third.events if e.kind == "reconciled"} == {"a", "b", "c"}
    assert (after.state.table.epsilon_spent >= before.state.table.epsilon_spent).all()
    for client_id, released in zip(after.state.table.ids, after.state.table.released, strict=True):
        ledger = private(tmp_path / "ledgers", client_id).ledger
        assert ledger.released == released
        ledger.close()


async def test_who_was_there_before_a_restart_is_not_taken_to_be_there(tmp_path: Path) -> None:
    """Also if it joined after the last round of the log."""
    async with federation(tmp_path, minimum_clients=3) as run, clients() as some:
        for c in ("a", "b"):
            some.start(c, await run.port)
        for _ in range(3):
            await run.event("waiting")
        signal.raise_signal(signal.SIGINT)
        await run.finished()
    await play(tmp_path, 2, names="a", policy=All(1))
    assert [r.chosen for r in log_of(tmp_path)] == [("a",)] * 2


async def test_another_experiment_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        await run.finished()
    with pytest.raises(ConfigError, match="was begun with another initial_digest"):
        async with federation(tmp_path, size=SIZE + 1) as run:
            await run.finished()
