"""Both ends over real gRPC on loopback: whole runs, and who is let in."""

import asyncio
import contextlib
import socket
from pathlib import Path

import grpc
import numpy as np
import pytest

from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_process.http_server import WebServer
from pausefl_proto.addresses import host_and_port, is_loopback
from pausefl_proto.endpoint import listen, make_server, open_channel
from pausefl_proto.errors import ConfigError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_MESSAGE_BYTES
from rigs.federation import (
    BIG,
    SIZE,
    answer_of,
    clients,
    errors_in,
    federation,
    hello,
    log_of,
    raw_stream,
    take_a_job,
)

# -- whole runs


@pytest.mark.parametrize("size", [1, SIZE, BIG])
async def test_a_run_over_the_network_averages_what_its_clients_sent(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
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
    assert errors_in(caplog) == []


async def test_times_and_bytes_are_those_of_the_network(tmp_path: Path) -> None:
    async with federation(tmp_path, size=BIG) as run, clients() as some:
        some.start_all("ab", await run.port, BIG)
        await run.finished()
    for record in log_of(tmp_path):
        for o in record.observations:
            assert 0 < o.timing.device_s < o.timing.round_trip_s < 20
            assert o.timing.propagation_s > -1e-3
            assert o.timing.download_s > 0
            assert o.timing.upload_s > 0
            assert 4 * BIG < o.bytes_down < 4 * BIG + 1000
            assert 4 * BIG < o.bytes_up < 4 * BIG + 1000


# -- who is let in


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
        (b"\xff\xff\xff\xff", "no message"),
        (b"GET / HTTP/1.1\r\n\r\n", "no message"),
        (b"", "must be a hello"),
        (pb.ClientMessage(pong=pb.Pong(nonce=1)).SerializeToString(), "must be a hello"),
        (hello(""), "1 to 128 printable characters"),
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
            assert goodbye.final == (reason != "no message")  # a hello that was damaged may come again
            assert reason in goodbye.reason
            assert await call.read() is grpc.aio.EOF
        some.start_all("ab", await run.port)
        assert (await run.finished()).state.round == 3
    assert errors_in(caplog) == []


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\x7a\xff\xff\xff\xff\x0f", b"", hello()])
async def test_garbage_after_the_hello_ends_its_stream_and_no_other(tmp_path: Path, garbage: bytes) -> None:
    async with federation(tmp_path, minimum_clients=3, rejoin_timeout_s=0.0) as run, clients() as some:
        some.start_all("ab", await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            await call.write(garbage)
            goodbye = (await answer_of(call)).goodbye
            assert not goodbye.final
            assert "message" in goodbye.reason
            assert await call.read() is grpc.aio.EOF
        result = await run.finished()
    assert result.state.round == 3


async def test_a_message_beyond_the_limit_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3, rejoin_timeout_s=0.0) as run, clients() as some:
        some.start_all("ab", await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            with pytest.raises(grpc.aio.AioRpcError):
                await call.write(b"\0" * (MAX_MESSAGE_BYTES + 1))
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
        with pytest.raises(ExceptionGroup) as caught:
            async with federation(tmp_path, port=port):
                pass
    assert caught.group_contains(ConfigError, match=rf"server\.port = {port}: cannot listen")


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe, contextlib.suppress(OSError):
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_ipv6_address_is_listened_on_with_and_without_brackets(host: str) -> None:
    server, web = make_server(), WebServer(host, 0, {}, key="metrics.port")
    assert is_loopback(host)
    assert web.address.startswith("[::1]:")
    web.close()
    port = listen(server, "server", host, 0, None)
    await server.start()
    async with open_channel(host_and_port(host, port), None) as channel, asyncio.timeout(20):
        await channel.channel_ready()
    await server.stop(0)
