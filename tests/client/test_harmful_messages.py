"""Damaged or malicious messages of the other side: they are requested again, and reported briefly."""

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pausefl_client.link import Delays
from pausefl_client.reconnection import Reconnection
from pausefl_client.transport import connect, fetch_offer
from pausefl_proto.errors import ConfigError, DamageError, PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MOST_ROUNDS, PROTOCOL_VERSION, SERVICE, decode, digest, encode, pack_job
from pausefl_server.clients import ClientTable
from pausefl_server.rounds.admission import check_hello
from rigs.client_actor import ClientActorRig
from rigs.federation import answer_of, federation, hello, raw_stream
from rigs.session import SessionRig, held_back, welcomed
from rigs.settings import server_settings


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
        assert (await (await rig.server.welcome()).ask(rig.model))[0].status == pb.STATUS_OK
    assert stream.is_silent()
    assert rig.trainer.rounds == [1]


async def test_damage_found_after_the_stream_has_ended_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    submitted, may_run = threading.Event(), threading.Event()

    def hold_back() -> None:
        submitted.set()
        assert may_run.wait(20)

    with ThreadPoolExecutor(1, initializer=hold_back) as executor:
        async with welcomed(executor=executor) as (rig, stream):
            stream.give(damaged_model(rig))
            assert await asyncio.to_thread(submitted.wait, 20)
            stream.give(None)
            again = await rig.server.welcome()
            may_run.set()
            await asyncio.to_thread(executor.submit(lambda: None).result, 20)  # now the damage is found
            assert (await again.ask(rig.model))[0].status == pb.STATUS_OK
            gc.collect()
    assert not [record for record in caplog.records if "never retrieved" in record.message]


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
    assert decode(pb.ServerMessage, message.SerializeToString())[0] == message, "of a peer that makes no checksums"
    for bit in range(8 * len(data)):
        try:
            found, _ = decode(pb.ServerMessage, flipped(data, bit))
        except DamageError:
            continue
        assert getattr(found, str(message.WhichOneof("kind"))) == getattr(message, str(message.WhichOneof("kind")))


async def test_nothing_is_decompressed(tmp_path: Path) -> None:
    """A megabyte from the wire may become a gigabyte before gRPC compares its size with the limit."""
    async with federation(tmp_path) as run, raw_stream(await run.port, compression=grpc.Compression.Gzip) as call:
        await call.write(hello("client-" + 100 * "1"))
        assert "no message" in (await answer_of(call)).goodbye.reason


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
    """A single flipped bit turns each of these messages into a final goodbye."""
    assert pb.ServerMessage.FromString(flipped(MESSAGES[name].SerializeToString(), bit)).goodbye.final
    async with welcomed() as (rig, stream):
        stream.give(flipped(encode(MESSAGES[name]), bit))
        assert (await (await rig.server.welcome()).ask(rig.model))[0].status == pb.STATUS_OK


@contextlib.asynccontextmanager
async def serving(**methods: Any) -> AsyncIterator[str]:
    """The address of a server with these methods."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_client_asks_again_for_an_experiment_that_came_damaged() -> None:
    sound = encode(pb.ExperimentOffer(experiment="{}"))
    answers = iter((flipped(sound, 17), sound[:1], sound))

    async def show(_: bytes, context: Any) -> bytes:
        return next(answers)

    async with serving(Offer=grpc.unary_unary_rpc_method_handler(show)) as address:
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


@pytest.mark.parametrize("round_", [0, MOST_ROUNDS + 1, 2**32 - 1])
async def test_a_round_that_no_run_reaches_is_refused_before_anything_is_drawn(round_: int) -> None:
    drawn: list[int] = []

    def draw(round: int) -> Delays:
        drawn.append(round)
        return Delays()

    async with welcomed(delays=draw) as (rig, stream):
        refusal = await stream.refusal(rig.model, round_)
    assert (refusal.status, refusal.reason) == (pb.STATUS_FAILED, f"round {round_}: must be from 1 to 1000000")
    assert drawn == rig.trainer.rounds == []


async def test_a_reason_that_is_no_unicode_is_told_as_far_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pausefl.client")  # pytest-xdist's processes cannot exchange such a text
    rig = SessionRig()
    rig.trainer.fails_in = {1: ValueError("bad \udcff byte")}
    async with rig.welcomed() as stream:
        assert "bad ? byte" in (await stream.refusal(rig.model)).reason


async def test_a_session_whose_worker_is_dead_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session would answer pings, but no job any more."""

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
    """This holds even if reading reports no error."""
    async with welcomed() as (rig, stream):
        stream.writes_until_break = 0
        stream.give_job(rig.model, round=1)
        await rig.server.welcome()


LONGEST_AT_A_CLIENT = 1100
"""Characters. The client's own words around the server's text are included."""
COMMANDS = "\x1b]0;owned\x07\x1b[2J\nforged line" * 50_000


def is_short_and_clean(text: str, longest: int = 200) -> bool:
    return 0 < len(text) <= longest and text.isprintable()


async def test_a_reason_for_giving_no_update_is_cut() -> None:
    async with ClientActorRig().at_work() as rig:
        rig.say(result=pb.Result(round=1, attempt=1, status=pb.STATUS_FAILED, reason="\x1b[2J out of memory" * 50_000))
        assert is_short_and_clean((await rig.refused()).reason)


@pytest.mark.parametrize(
    "hello",
    [
        pb.Hello(agreement={COMMANDS: "1"}),
        pb.Hello(agreement={"workload.epochs": COMMANDS}),
        pb.Hello(ledger=pb.Ledger(schedule=COMMANDS)),
        pb.Hello(manifest=pb.Manifest(tensors=[pb.Tensor(name=COMMANDS, shape=[1], dtype=COMMANDS)])),
    ],
    ids=["key", "value", "schedule", "tensor"],
)
def test_what_is_told_of_a_hello_that_is_refused_is_cut(hello: pb.Hello) -> None:
    settings = server_settings(1, agreement={})
    greeting = pb.Hello(protocol_version=PROTOCOL_VERSION, client_id="a", n_examples=1)
    if not hello.HasField("manifest"):
        greeting.manifest.CopyFrom(settings.manifest.to_message())
    greeting.MergeFrom(hello)
    with pytest.raises(WireError, match="owned") as refused:
        check_hello(greeting, settings, ClientTable(1), ())
    assert is_short_and_clean(str(refused.value), 500)


async def test_a_servers_reason_for_dismissing_is_cut() -> None:
    rig = SessionRig()
    async with rig.running() as task:
        (await rig.server.welcome()).say(goodbye=pb.Goodbye(reason=COMMANDS, final=True))
        reason = await asyncio.wait_for(task, 20)
    assert is_short_and_clean(reason, LONGEST_AT_A_CLIENT)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (pb.Goodbye(reason=COMMANDS, final=True), "the server refuses .*owned"),
        (pb.Goodbye(reason=COMMANDS), "the server cannot be reached: .*owned"),
        (pb.Welcome(protocol_version=99, run_id="run"), "it speaks protocol version 99, this client 1"),
        (pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run" * 101), "its name of the run has 303 characters"),
        (pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="\x1b[2J\n"), "its name of the run has 5 characters"),
    ],
)
async def test_a_server_that_gives_no_sound_welcome_is_left_in_few_words(answer: Any, said: str) -> None:
    """Lines of the log, and rows of the ledger, would hold its words."""
    rig = SessionRig()
    async with rig.running() as task:
        stream = await rig.server.accept()
        rig.clock.advance(3600.0)  # a client that may return has given up by then
        stream.say(**{type(answer).__name__.lower(): answer})
        with pytest.raises(PauseflError, match=said) as refused:
            await asyncio.wait_for(task, 20)
    assert is_short_and_clean(str(refused.value), LONGEST_AT_A_CLIENT)


async def test_a_clients_own_reason_for_giving_no_update_is_cut() -> None:
    rig = SessionRig()
    rig.trainer.fails_in = {1: PauseflError(COMMANDS)}
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model)
    assert refusal.status == pb.STATUS_FAILED
    assert is_short_and_clean(refusal.reason, LONGEST_AT_A_CLIENT)


async def test_what_grpc_says_of_a_server_is_cut() -> None:
    async def abort(_: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, COMMANDS[:3000])  # this fits into gRPC's trailers

    offer: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(abort)
    join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(abort)
    async with serving(Offer=offer, Join=join) as address:
        with pytest.raises(ConfigError, match="owned") as refused:
            await fetch_offer(address, None, "", Reconnection("a", 0.0))
        assert is_short_and_clean(str(refused.value), LONGEST_AT_A_CLIENT)
        async with connect(address) as stream:
            with pytest.raises(OSError, match="owned") as broken:
                await stream.read()
        assert is_short_and_clean(str(broken.value), LONGEST_AT_A_CLIENT)
