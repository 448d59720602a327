"""Both ends over real gRPC on loopback: broken streams, a suspended peer, and the state after an interrupt."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from chaos.line import Line
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.training.trainer import TrainingOutcome
from pausefl_client.transport import connect
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MessageStream, Vector, unpack
from pausefl_server.actor import Actor, ActorStopped
from pausefl_server.records import Evaluation
from pausefl_server.rounds.coordinator import Coordinator
from pausefl_server.rounds.messages import Lost, Register, Shutdown
from pausefl_server.selection.policies.baselines import All
from rigs.federation import (
    BIG,
    PRIVATE,
    SIZE,
    answer_of,
    clients,
    errors_in,
    federation,
    hello,
    log_of,
    private,
    raw_stream,
    take_a_job,
)
from rigs.one_job import OneJob, listening
from rigs.places import TESTS
from rigs.waiting import free_port


@asynccontextmanager
async def line_to(port: int) -> AsyncIterator[Line]:
    """A TCP line to the server whose connections can be cut."""
    line = Line(Counter())
    line.upstream = port
    await line.open()
    try:
        yield line
    finally:
        await line.close()


class RecordingStream:
    """A client's stream that records its uploads, and calls `on_frame` before every frame but the first."""

    def __init__(self, stream: MessageStream, uploads: list[tuple[int, str]], on_frame: Callable[[], None]) -> None:
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

    async with (
        federation(tmp_path / "run", size=BIG, rounds=2, privacy=PRIVATE) as run,
        clients() as some,
        line_to(await run.port) as line,
    ):

        def cut_once() -> None:
            if next(cuts, False):
                line.cut()

        @asynccontextmanager
        async def unreliable() -> AsyncIterator[MessageStream]:
            async with connect(f"127.0.0.1:{line.port}") as stream:
                yield RecordingStream(stream, uploads, cut_once)

        privacy = {c: private(tmp_path, c) for c in ("a", "b")}
        some.start("a", await run.port, BIG, privacy["a"])
        some.start("b", line.port, BIG, privacy["b"], unreliable)
        result = await run.finished()
    assert line.connected >= 2  # on a busy machine gRPC may try more than once
    assert [t for t, _ in uploads] == [1, 1, 2]
    assert uploads[0] == uploads[1] != uploads[2]
    records = log_of(tmp_path / "run")
    assert [[o.client_id for o in r.observations] for r in records] == [["a", "b"]] * 2
    assert [(e.kind, e.client_id) for r in records for e in r.events if e.kind != "joined"] == [("left", "b")]
    assert (privacy["b"].ledger.spent.released, result.state.table.released.tolist()) == (2, [2, 2])


class CutWhileTraining(SyntheticTrainer):
    """A trainer that cuts its client's connection when it begins to train, and trains on."""

    def __init__(self, cut: Callable[[], None], train_s: float) -> None:
        super().__init__(SIZE, seed=1, client_id="b", train_s=train_s)
        self._loop, self._cut = asyncio.get_running_loop(), cut

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        self._loop.call_soon_threadsafe(self._cut)
        return super().train(theta, round=round)


async def test_a_stream_lost_while_a_client_trains_does_not_make_it_look_faster(tmp_path: Path) -> None:
    train_s = 0.5
    async with federation(tmp_path / "run", rounds=1) as run, clients() as some, line_to(await run.port) as line:
        some.start("a", await run.port)
        some.start("b", line.port, trainer=CutWhileTraining(line.cut, train_s))
        await run.finished()
    assert line.connected >= 2
    (record,) = log_of(tmp_path / "run")
    timing = {o.client_id: o.timing for o in record.observations}["b"]
    assert timing.round_trip_s >= train_s
    assert 0 < timing.reconnect_s < timing.round_trip_s
    assert record.round_latency_s >= train_s
    assert {o.client_id: o.timing.reconnect_s for o in record.observations}["a"] == 0


class SlowCoordinator(Actor[Any]):
    """A coordinator that answers a hello only once `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__("coordinator")
        self.registered, self.may_answer = asyncio.Event(), asyncio.Event()
        self.lost: asyncio.Queue[Lost] = asyncio.Queue()

    async def receive(self, message: Any) -> Any:
        if isinstance(message, Register):
            self.registered.set()
            await self.may_answer.wait()
        if isinstance(message, Lost):
            self.lost.put_nowait(message)
        return None


async def test_a_client_that_vanishes_between_hello_and_welcome_is_lost_like_any_other() -> None:
    """Otherwise its id would stay taken for ever."""
    coordinator = SlowCoordinator()
    async with listening(coordinator=coordinator) as port:
        async with raw_stream(port) as call:
            await call.write(hello("shy"))
            await asyncio.wait_for(coordinator.registered.wait(), 20)
        coordinator.may_answer.set()
        assert (await asyncio.wait_for(coordinator.lost.get(), 20)).peer.client_id == "shy"


class GatedTrainer(SyntheticTrainer):
    """A trainer that waits for its `gate` to open."""

    def __init__(self, client_id: str) -> None:
        super().__init__(SIZE, seed=1, client_id=client_id)
        self.asked, self.gate = threading.Event(), threading.Event()

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        self.asked.set()
        assert self.gate.wait(20)
        return super().train(theta, round=round)


async def test_an_interrupt_dismisses_all_and_logs_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with federation(tmp_path, minimum_clients=1) as run, clients() as some:
        trainer = GatedTrainer("a")
        goodbye = some.start("a", await run.port, trainer=trainer)
        assert await asyncio.to_thread(trainer.asked.wait, 20)
        signal.raise_signal(signal.SIGINT)
        result = await run.finished()
        assert await goodbye == "stopped by SIGINT"
        trainer.gate.set()
    assert (result.stopped_because, errors_in(caplog)) == ("stopped by SIGINT", [])


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
            some.start_all("ab", port)
        result = await run.finished()
    assert result.final_evaluations == result.best_evaluations == ()
    assert asked == [*([] if stopped else [(True, False)] * 2 + [(True, True)]), (False, False)]


async def test_a_second_kind_of_signal_does_not_break_off_the_last_evaluation(tmp_path: Path) -> None:
    """One Ctrl-C gives two signals: SIGINT from the terminal, and SIGTERM from the server's parent."""

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        if not subset:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
        return (Evaluation("test", subset, 10, 0.5, 1.0),)

    async with federation(tmp_path, evaluate=evaluate) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        result = await run.finished()
    assert (result.stopped_because, [e.accuracy for e in result.final_evaluations]) == ("stopped by SIGINT", [0.5])
    assert result.best_evaluations == (), "no model was chosen on validation data"


async def test_a_signal_at_a_coordinators_end_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes before the coordinator has stopped, and its message after that."""

    async def stop_first(coordinator: Coordinator, message: Shutdown) -> None:
        await Actor.tell(coordinator, message)
        raise ActorStopped("coordinator has stopped")

    monkeypatch.setattr(Coordinator, "tell", stop_first)
    async with federation(tmp_path) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        result = await run.finished()
    assert result.stopped_because == "stopped by SIGINT"


async def test_an_answer_to_a_server_just_ended_hurts_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The client answers before it has read the goodbye."""
    async with federation(tmp_path, minimum_clients=1) as run, raw_stream(await run.port) as call:
        await take_a_job(call)
        signal.raise_signal(signal.SIGINT)
        goodbye = (await answer_of(call)).goodbye
        result = pb.Result(round=1, attempt=1, status=pb.STATUS_FAILED, reason="too late")
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.ClientMessage(result=result).SerializeToString())
        await run.finished()
    assert (goodbye.reason, goodbye.final) == ("stopped by SIGINT", True)
    assert errors_in(caplog) == []


async def test_a_client_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    port, attempts = free_port(), asyncio.Event()

    @asynccontextmanager
    async def early() -> AsyncIterator[MessageStream]:
        try:
            async with connect(f"127.0.0.1:{port}") as stream:
                yield stream
        finally:
            attempts.set()

    async with clients() as some:
        goodbye = some.start("a", port, connecting=early)
        await asyncio.wait_for(attempts.wait(), 20)
        async with federation(tmp_path, minimum_clients=1, port=port) as run:
            await run.finished()
        assert await goodbye == "all rounds done"


async def test_a_stream_that_is_over_says_so_to_whoever_reads_or_writes() -> None:
    async with connect(f"127.0.0.1:{free_port()}") as stream:
        with pytest.raises(OSError):
            await stream.read()
        with pytest.raises(OSError):
            await stream.write(b"too late")
        with pytest.raises(OSError):
            await stream.read()


async def test_a_client_that_comes_and_goes_does_not_hold_rounds_up(tmp_path: Path) -> None:
    """Its stream breaks at each upload and it reconnects at once. Rounds still end at their deadlines."""
    timeout_s = 0.5
    settings = {"rounds": 3, "round_timeout_s": timeout_s, "rejoin_timeout_s": 5.0, "rest_rounds_max": 0}
    async with (
        federation(tmp_path / "run", All(2), **settings) as run,
        clients(threads=2) as some,
        line_to(await run.port) as line,
    ):
        some.start("a", await run.port)
        some.start("b", line.port, trainer=CutWhileTraining(line.cut, train_s=30.0))
        await run.finished()
    records = log_of(tmp_path / "run")
    assert line.connected >= 3
    assert all(timeout_s <= record.round_latency_s < 5 * timeout_s for record in records)
    assert [record.deadline_s for record in records] == [timeout_s] * 3


DEAD_AFTER_S = 3.0
# A loaded machine runs a timer late. Without the fix, a suspended peer stays undetected for 60 s.
TOLERANCE_S = 20.0

CLIENT = """
import asyncio, sys
from pausefl_client.transport import connect
from rigs.federation import BIG, hello

async def main():
    async with connect("127.0.0.1:" + sys.argv[1]) as stream:
        await stream.write(hello("stopped", BIG))
        await stream.read()
        await stream.read()
        print("in a round", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""

SERVER = """
import asyncio
from rigs.federation import BIG
from rigs.one_job import listening

async def main():
    async with listening(size=BIG) as port:
        print(port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def python(program: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs this program with the tests' rigs; it is killed when the block ends."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


async def test_a_client_that_is_stopped_in_a_round_is_found_dead() -> None:
    coordinator = OneJob(BIG)
    server = listening(coordinator=coordinator, size=BIG, dead_after_s=DEAD_AFTER_S)
    async with server as port, python(CLIENT, port) as client:
        assert await line_of(client) == "in a round"
        stopped_s = time.monotonic()
        client.send_signal(signal.SIGSTOP)
        await asyncio.wait_for(coordinator.lost.get(), 90)
        assert time.monotonic() - stopped_s < DEAD_AFTER_S + TOLERANCE_S


async def test_a_server_that_is_stopped_in_a_round_is_found_dead() -> None:
    async with (
        python(SERVER) as server,
        connect(f"127.0.0.1:{await line_of(server)}", dead_after_s=DEAD_AFTER_S) as stream,
    ):
        await stream.write(hello("a", BIG))
        kinds = []
        for _ in range(2):
            data = await asyncio.wait_for(stream.read(), 20)
            assert data is not None
            kinds.append(pb.ServerMessage.FromString(unpack(data)[0]).WhichOneof("kind"))
        assert kinds == ["welcome", "job"]
        stopped_s = time.monotonic()
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(OSError):
            while await asyncio.wait_for(stream.read(), 90) is not None:
                pass
        assert time.monotonic() - stopped_s < DEAD_AFTER_S + TOLERANCE_S
