"""One flipped bit in a message, be it a greeting or a refusal, never shuts a client out: its sender is asked again."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pausefl_client.reconnection import Reconnection
from pausefl_client.transport import fetch_offer
from pausefl_proto.errors import DamageError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, SERVICE, decode, encode
from rigs.federation import answer_of, federation, hello, raw_stream
from rigs.session import SessionRig

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
    rig = SessionRig()
    async with rig.welcomed() as stream:
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
