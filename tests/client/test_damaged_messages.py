"""What a server's messages may do to a client, by damage or on purpose: it comes back, and keeps its memory."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pausefl_client.link import Delays
from pausefl_client.reconnection import Reconnection
from pausefl_client.transport import fetch_offer
from pausefl_proto.errors import DamageError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MOST_ROUNDS, PROTOCOL_VERSION, SERVICE, decode, digest, encode, pack_job
from rigs.federation import answer_of, federation, hello, raw_stream
from rigs.session import SessionRig, held_back, welcomed


def damaged_model(rig: SessionRig) -> bytes:
    (damaged,) = pack_job(1, 1, rig.model + 1, digest(rig.model))
    return damaged


DAMAGES: dict[str, Callable[[SessionRig], bytes]] = {
    "no message": lambda _: b"\xff\xff\xff",
    "a payload cut off": lambda _: b"\x7a\xff\xff\xff\xff\x0f",
    "a model of another size": lambda _: pack_job(1, 1, np.zeros(7, np.float32), "")[0],
    "a model that does not fit its checksum": damaged_model,
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_what_arrives_damaged_is_asked_for_again_on_a_fresh_stream(what: str) -> None:
    async with welcomed() as (rig, stream):
        stream.give(DAMAGES[what](rig))
        again = await rig.server.welcome()
        assert (await again.ask(rig.model))[0].status == pb.STATUS_OK
    assert stream.is_silent()
    assert rig.trainer.rounds == [1]


async def test_a_server_of_another_protocol_version_is_left() -> None:
    rig = SessionRig()
    async with rig.running() as task:
        stream = await rig.server.accept()
        await stream.heard()
        stream.give(pb.ServerMessage(welcome=pb.Welcome(protocol_version=99, run_id="run")).SerializeToString(), 100.0)
        with pytest.raises(PauseflError, match="speaks protocol version 99, this client 1"):
            await asyncio.wait_for(task, 20)


async def test_damage_found_after_the_stream_has_ended_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    executor = LaterExecutor()
    async with welcomed(executor=executor) as (rig, stream):
        stream.give(damaged_model(rig))
        await executor.submitted.wait()
        stream.give(None)
        again = await rig.server.welcome()
        executor.run_all()
        executor.is_late = False
        assert (await again.ask(rig.model))[0].status == pb.STATUS_OK
        gc.collect()
    assert not [record for record in caplog.records if "never retrieved" in record.message]


class LaterExecutor(Executor):
    """Runs work when it is told to, until it is no longer late."""

    def __init__(self) -> None:
        self.submitted = asyncio.Event()
        self.is_late = True
        self._work: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        self._work.append(run)
        self.submitted.set()
        if not self.is_late:
            self.run_all()
        return future

    def run_all(self) -> None:
        while self._work:
            self._work.pop(0)()


MESSAGES = {
    "welcome": pb.ServerMessage(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run")),
    "ack": pb.ServerMessage(ack=pb.Ack(round=1, attempt=1)),
    "withdraw": pb.ServerMessage(withdraw=pb.Withdraw(round=1, attempt=1)),
    "job": pb.ServerMessage(job=pb.Job(round=1, attempt=1)),
    "refusal": pb.ServerMessage(goodbye=pb.Goodbye(reason="unknown client", final=True)),
}


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_flipped_bit_is_found_or_changes_nothing(name: str) -> None:
    data = encode(message := MESSAGES[name])
    for bit in range(8 * len(data)):
        try:
            found, _ = decode(pb.ServerMessage, flipped(data, bit))
        except DamageError:
            continue
        assert getattr(found, str(message.WhichOneof("kind"))) == getattr(message, str(message.WhichOneof("kind")))


def test_a_message_of_a_peer_that_makes_no_checksums_is_taken() -> None:
    for message in MESSAGES.values():
        assert decode(pb.ServerMessage, message.SerializeToString())[0] == message


async def test_a_damaged_hello_is_not_refused_for_good(tmp_path: Path) -> None:
    sound = encode(pb.ClientMessage.FromString(hello("client-1")))

    async with federation(tmp_path) as run:
        for bit in range(0, 8 * (len(sound) - 9), 5):
            async with raw_stream(await run.port) as call:
                await call.write(flipped(sound, bit))
                goodbye = (await answer_of(call)).goodbye
                assert not goodbye.final, (bit, goodbye)
                assert "checksum" in goodbye.reason or "no message" in goodbye.reason, bit


@pytest.mark.parametrize(("name", "bit"), [("ack", 4), ("withdraw", 3), ("job", 5)])
async def test_no_flipped_bit_makes_a_message_a_dismissal(name: str, bit: int) -> None:
    """In each of these, one bit tells the message from a final goodbye."""
    data = flipped(MESSAGES[name].SerializeToString(), bit)
    assert pb.ServerMessage.FromString(data).goodbye.final
    async with welcomed() as (rig, stream):
        stream.give(flipped(encode(MESSAGES[name]), bit))
        again = await rig.server.welcome()
        assert (await again.ask(rig.model))[0].status == pb.STATUS_OK


@contextlib.asynccontextmanager
async def offering(*answers: bytes) -> AsyncIterator[str]:
    """The address of a server that answers so to those who ask for the experiment, one after the other."""
    left = iter(answers)

    async def show(_: bytes, context: Any) -> bytes:
        return next(left)

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(show)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Offer": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_client_asks_again_for_an_experiment_that_came_damaged() -> None:
    sound = encode(pb.ExperimentOffer(experiment="{}"))
    async with offering(flipped(sound, 17), sound[:1], sound) as address:
        assert (await fetch_offer(address, None, "", Reconnection("a", 20.0))).experiment == "{}"


FLOOD = 20


async def test_a_session_keeps_few_models_of_jobs_it_cannot_answer_yet() -> None:
    async with held_back() as (rig, stream):
        for t in range(1, FLOOD + 1):
            stream.give_job(rig.model, round=t)
        for _ in range(20 * FLOOD):
            await asyncio.sleep(0)
        n_unread = stream.unread()
        rig.trainer.gate.set()
        assert [(await stream.upload())[0].round for _ in range(FLOOD)] == list(range(1, FLOOD + 1))
        assert n_unread > FLOOD / 2


async def test_a_name_of_a_run_that_would_fill_the_ledger_is_not_taken() -> None:
    rig = SessionRig()
    async with rig.running() as session:
        for after_s in (0.0, 100.0):
            stream = await rig.server.accept()
            await stream.heard()
            rig.clock.advance(after_s)
            stream.say(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run" * 101))
        with pytest.raises(PauseflError, match="cannot be reached: its name of the run has 303 characters"):
            await session


@pytest.mark.parametrize("round_", [0, MOST_ROUNDS + 1, 2**32 - 1])
async def test_a_round_that_no_run_reaches_is_refused_before_anything_is_drawn(round_: int) -> None:
    drawn: list[int] = []

    def draw(round: int) -> Delays:
        drawn.append(round)
        return Delays()

    async with welcomed(delays=draw) as (rig, stream):
        refusal = await stream.refusal(rig.model, round_)
    assert (refusal.status, refusal.reason) == (pb.STATUS_FAILED, f"round {round_}: must be from 1 to 1000000")
    assert not drawn
    assert not rig.trainer.rounds


async def test_a_reason_that_is_no_unicode_is_told_as_far_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pausefl.client")  # processes of pytest-xdist cannot send such a text
    rig = SessionRig()
    rig.trainer.fails_in = {1: ValueError("bad \udcff byte")}
    async with rig.welcomed() as stream:
        assert "bad ? byte" in (await stream.refusal(rig.model)).reason


async def test_a_session_whose_worker_is_dead_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer pings, and no job ever again."""

    async def write(_: bytes) -> None:
        raise RuntimeError("cannot be written")

    rig = SessionRig()
    with pytest.raises(RuntimeError, match="cannot be written"):
        async with rig.running() as task:
            stream = await rig.server.welcome()
            monkeypatch.setattr(stream, "write", write)
            stream.give_job(rig.model, round=1)
            await asyncio.wait_for(task, 20)


async def test_a_session_that_cannot_write_comes_back_on_a_fresh_stream() -> None:
    """Also where reading says nothing of it."""
    async with welcomed() as (rig, stream):
        stream.writes_until_break = 0
        stream.give_job(rig.model, round=1)
        await rig.server.welcome()
