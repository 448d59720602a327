"""What the other side says is kept short and printable, however long it is on the wire: in a log and on a terminal."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pausefl_client.reconnection import Reconnection
from pausefl_client.transport import connect, fetch_offer
from pausefl_proto.errors import ConfigError, PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION
from pausefl_server.clients import ClientTable
from pausefl_server.rounds.admission import check_hello
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.session import SessionRig
from rigs.settings import server_settings

LONGEST = 200
LONGEST_AT_A_CLIENT = 1100
"""Its own words around the server's among them."""
LONGEST_OF_A_HELLO = 500
COMMANDS = "\x1b]0;owned\x07\x1b[2J\nforged line" * 50_000


def is_short_and_clean(text: str, longest: int = LONGEST) -> bool:
    return 0 < len(text) <= longest and text.isprintable()


async def test_a_reason_for_giving_no_update_is_cut() -> None:
    async with ClientActorRig().running() as rig:
        await rig.dispatch()
        result = pb.Result(round=1, attempt=1, status=pb.STATUS_FAILED, reason="\x1b[2J out of memory" * 50_000)
        rig.say(result=result)
        assert is_short_and_clean((await rig.refused()).reason)


@pytest.mark.parametrize(
    "statistics", [{f"label_{i}": 1.0 for i in range(2000)}, {"x" * 100_000: 1.0}], ids=["many", "long"]
)
async def test_more_statistics_than_a_data_set_has_labels_are_rejected(statistics: dict[str, float]) -> None:
    async with ClientActorRig().running() as rig:
        await rig.dispatch()
        rig.stream.give(upload(vector(5), statistics=statistics)[0])
        assert "reports statistics" in (await rig.refused()).reason


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
    assert is_short_and_clean(str(refused.value), LONGEST_OF_A_HELLO)


async def test_a_servers_reason_for_dismissing_is_cut() -> None:
    rig = SessionRig()
    async with rig.running() as task:
        (await rig.server.welcome()).say(goodbye=pb.Goodbye(reason=COMMANDS, final=True))
        reason = await asyncio.wait_for(task, 20)
    assert is_short_and_clean(reason, LONGEST_AT_A_CLIENT)


@pytest.mark.parametrize(("final", "said"), [(True, "the server refuses"), (False, "the server cannot be reached")])
async def test_a_servers_reason_for_refusing_is_cut(final: bool, said: str) -> None:
    rig = SessionRig()
    async with rig.running() as task:
        stream = await rig.server.accept()
        rig.clock.advance(3600.0)  # where it may come back, it has given up by then
        stream.say(goodbye=pb.Goodbye(reason=COMMANDS, final=final))
        with pytest.raises(PauseflError, match=f"{said}.*owned") as refused:
            await asyncio.wait_for(task, 20)
    assert is_short_and_clean(str(refused.value), LONGEST_AT_A_CLIENT)


async def test_a_clients_own_reason_for_giving_no_update_is_cut() -> None:
    rig = SessionRig()
    rig.trainer.fails_in = {1: PauseflError(COMMANDS)}
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model)
    assert refusal.status == pb.STATUS_FAILED
    assert is_short_and_clean(refusal.reason, LONGEST_AT_A_CLIENT)


DETAILS = COMMANDS[:3000]  # what fits into gRPC's trailers


class _Aborting(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def abort(_: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, DETAILS)

        if details.method.endswith("Offer"):
            return grpc.unary_unary_rpc_method_handler(abort)
        return grpc.stream_stream_rpc_method_handler(abort)


@contextlib.asynccontextmanager
async def aborting_server() -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Aborting(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_what_grpc_says_of_a_server_is_cut() -> None:
    async with aborting_server() as address:
        with pytest.raises(ConfigError, match="owned") as refused:
            await fetch_offer(address, None, "", Reconnection("a", 0.0))
        assert is_short_and_clean(str(refused.value), LONGEST_AT_A_CLIENT)
        async with connect(address) as stream:
            with pytest.raises(OSError, match="owned") as broken:
                await stream.read()
        assert is_short_and_clean(str(broken.value), LONGEST_AT_A_CLIENT)
