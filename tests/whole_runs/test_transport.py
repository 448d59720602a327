"""Both ends over real gRPC on loopback: whole runs, accepted clients, and TLS with renewed certificates."""

import asyncio
import contextlib
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from pausefl.certificates import make_certificates
from pausefl.cli import main
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.transport import connect
from pausefl_process.http_server import WebServer
from pausefl_proto.addresses import host_and_port, is_loopback
from pausefl_proto.endpoint import listen, make_server, open_channel
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls, is_no_servers
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_MESSAGE_BYTES
from rigs.authority import Authority
from rigs.command import Background, summary_of, synthetic
from rigs.federation import BIG, SIZE, answer_of, clients, errors_in, federation, hello, log_of, raw_stream, take_a_job
from rigs.one_job import listening
from rigs.refusals import complaint
from rigs.waiting import wait_for


@pytest.mark.parametrize("size", [1, SIZE, BIG])
async def test_a_run_averages_what_clients_sent(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
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
    assert (run.rejected, errors_in(caplog)) == (0, [])


async def test_times_and_bytes_are_those_of_the_network(tmp_path: Path) -> None:
    async with federation(tmp_path, size=BIG) as run, clients() as some:
        some.start_all("ab", await run.port, BIG)
        await run.finished()
    for record in log_of(tmp_path):
        for o in record.observations:
            assert 0 < o.timing.device_s < o.timing.round_trip_s < 20
            assert o.timing.propagation_s > -1e-3
            assert min(o.timing.download_s, o.timing.upload_s) > 0
            assert 4 * BIG < o.bytes_down < 4 * BIG + 1000
            assert 4 * BIG < o.bytes_up < 4 * BIG + 1000


async def test_a_second_client_of_the_same_name_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path) as run, clients() as some:
        first = some.start("a", await run.port)
        await run.event("waiting")
        await run.event("waiting")  # "a" is in
        async with raw_stream(await run.port) as call:
            await call.write(hello("a"))
            goodbye = (await answer_of(call)).goodbye
            assert "'a' is connected already" in goodbye.reason
            assert not goodbye.final  # the first stream may be dead, and the client coming back
        some.start("b", await run.port)
        await run.finished()
        assert await first == "all rounds done"
    assert (run.rejected, [r.chosen for r in log_of(tmp_path)]) == (1, [("a", "b")] * 3)


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
            assert goodbye.final == (reason != "no message")  # a damaged hello may be sent again
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
        assert (await run.finished()).state.round == 3


async def test_a_message_beyond_the_limit_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3, rejoin_timeout_s=0.0) as run, clients() as some:
        some.start_all("ab", await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            with pytest.raises(grpc.aio.AioRpcError):
                await call.write(b"\0" * (MAX_MESSAGE_BYTES + 1))
                while await asyncio.wait_for(call.read(), 20) is not grpc.aio.EOF:
                    pass
        assert (await run.finished()).state.round == 3
    assert [o.client_id for o in log_of(tmp_path)[-1].observations] == ["a", "b"]


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


def test_a_file_in_a_form_that_others_read_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["server.lab"], [])
    certificate = tmp_path / "server.pem"
    certificate.write_text(certificate.read_text().replace(" CERTIFICATE-----", " TRUSTED CERTIFICATE-----"))
    with pytest.raises(ConfigError, match=r'^tls\.certificate = ".*server\.pem", tls\.key = .* are no certificate'):
        Tls(str(certificate), f"{tmp_path}/server.key").to_listen()
    assert is_no_servers(certificate.read_bytes())
    ca = tmp_path / "ca.pem"
    assert not is_no_servers(ca.read_bytes()), "it lists no purposes"
    ca.write_text(f"# Autorité\n{ca.read_text()}", "utf-8")
    assert Tls(ca=str(ca)).to_connect().ca == ca.read_bytes()
    ca.write_text("")  # as while another file is written over it: a client that was welcome waits for it
    with pytest.raises(ConfigError, match=r'^tls\.ca = ".*ca\.pem": is no certificate in PEM \(Empty cert'):
        Tls(ca=str(ca)).to_connect()


async def greet(address: str, tls: Tls | None) -> str:
    """Send a hello; returns the kind of the answer."""
    async with connect(address, tls) as stream:
        await stream.write(hello("a"))
        return str(pb.ServerMessage.FromString(await stream.read() or b"").WhichOneof("kind"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("mutual", [False, True])
async def test_those_who_trust_each_other_talk(authority: Authority, host: str, mutual: bool) -> None:
    mine = authority.certify("server")
    async with listening(mine if mutual else Tls(mine.certificate, mine.key)) as port:
        theirs = authority.certify("client", "DNS:somebody") if mutual else Tls(ca=authority.ca)
        assert await greet(f"{host}:{port}", theirs) == "welcome"


async def test_sides_that_do_not_trust_or_understand_each_other_part(authority: Authority, stranger: Authority) -> None:
    one, another, trusting = authority.certify("server"), authority.certify("a", "DNS:elsewhere"), Tls(ca=authority.ca)
    strange = replace(stranger.certify("client"), ca=authority.ca)
    unsigned = rf'sign tls\.certificate = "{strange.certificate}", and do the clocks of both agree\?'
    for theirs, mine, error, message in (
        (one, Tls(ca=stranger.ca), ConfigError, r'tls\.ca = ".*strange.*": does not vouch for .*127.0.0.1:\d+ \(.+\)'),
        (another, trusting, ConfigError, r"tls\.certificate of 127\.0\.0\.1:\d+: does not name this host"),
        (one, None, OSError, r"hangs up at once, does it demand TLS with tls\.ca\?"),
        (one, trusting, OSError, r"127\.0\.0\.1:\d+ hangs up at once, does it demand TLS with tls\.certificate\? \("),
        (one, strange, OSError, rf"127\.0\.0\.1:\d+ hangs up at once, does its tls\.ca {unsigned} \("),
        (None, trusting, ConfigError, r"does not speak TLS"),
    ):
        async with listening(theirs) as port:
            with pytest.raises(error, match=message):
                await greet(f"127.0.0.1:{port}", mine)


async def test_renewed_certificates_are_taken_up(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """Files are replaced one by one. Until certificate and key match, the server keeps the old ones."""
    mine = Tls(*(str(tmp_path / name) for name in ("tls.crt", "tls.key")))
    before, after = authority.certify("server"), stranger.certify("server")
    shutil.copy(before.certificate, mine.certificate)
    shutil.copy(before.key, mine.key)
    async with listening(mine) as port:
        address = f"localhost:{port}"
        assert await greet(address, Tls(ca=authority.ca)) == "welcome"
        shutil.copy(after.certificate, mine.certificate)
        assert await greet(address, Tls(ca=authority.ca)) == "welcome"
        shutil.copy(after.key, mine.key)
        assert await greet(address, Tls(ca=stranger.ca)) == "welcome"
        with pytest.raises(ConfigError, match="does not vouch"):
            await greet(address, Tls(ca=authority.ca))


async def test_wrong_files_are_named(authority: Authority, tmp_path: Path) -> None:
    one, two = authority.certify("one"), authority.certify("two")
    torn = tmp_path / "torn.pem"
    torn.write_text("-----BEGIN CERTIFICATE-----\n")
    for tls, message in (
        (Tls("no.pem", one.key), r'tls\.certificate = "no\.pem": cannot be read \(No such file'),
        (Tls(one.certificate, "no.key"), r'tls\.key = "no\.key": cannot be read'),
        (Tls(one.certificate, one.key, "no.pem"), r'tls\.ca = "no\.pem": cannot be read'),
        (Tls(one.certificate, two.key), r"tls\.certificate = .*tls\.key = .* and its key"),
        (Tls(str(torn), one.key), r"tls\.certificate = .*torn\.pem"),
        (Tls(one.certificate, one.key, str(torn)), r'tls\.ca = ".*torn\.pem": is no certificate'),
        (Tls(ca=one.ca), r"a side that listens needs tls\.certificate and tls\.key"),
    ):
        with pytest.raises(ConfigError, match=message):
            async with listening(tls):
                pass
    with pytest.raises(ConfigError, match=r"a side that connects needs tls\.ca"):
        await greet("127.0.0.1:1", Tls(one.certificate, one.key))
    for name, other in (("certificate", "key"), ("key", "certificate")):
        with pytest.raises(ConfigError, match=rf'tls\.{name} = "a\.pem": needs tls\.{other} as well'):
            Tls(**{name: "a.pem"})


def run_of(folder: Path, tls: Tls) -> list[str]:
    """The words of a command that plays two rounds with these files."""
    files = [f"--set=tls.{name}={getattr(tls, name)}" for name in ("certificate", "key", "ca")]
    return ["run", str(synthetic(folder, rounds=2)), *files, "--run-dir", str(folder / "run")]


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
def test_a_whole_run_with_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    main(run_of(tmp_path, authority.certify("server")))
    assert summary_of(tmp_path / "run")["rounds"] == 2


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", ["server", "evaluator"])
def test_a_peer_that_speaks_no_tls_leaves_no_line(
    authority: Authority, tmp_path: Path, background: Background, command: str
) -> None:
    """Any peer may try as often as the network allows: a line per try would fill the disk."""
    tls, output = authority.certify("server"), tmp_path / "output"
    files = [f"--set=tls.{name}={getattr(tls, name)}" for name in ("certificate", "key", "ca")]
    config = synthetic(tmp_path, rounds=2, clients=2) if command == "server" else "demo"
    place = ["--run-dir", tmp_path / "run"] if command == "server" else []
    process = background(command, config, *files, *place)
    wait_for(lambda: b'"ready"' in output.read_bytes(), "it to listen", running=process)
    ready = next(line for line in output.read_text().splitlines() if '"ready"' in line)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", json.loads(ready)["port"]), timeout=30) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while peer.recv(1 << 12):
                pass
    process.terminate()
    process.wait(60)
    assert "ssl_transport" not in output.read_text()


@pytest.mark.parametrize("name", ["no", "{client_id}"])
def test_a_file_that_is_missing_is_bad_input(
    authority: Authority, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a server, which has no client id, reported "clients/.pem" instead of "clients/{client_id}.pem"."""
    monkeypatch.chdir(tmp_path)
    said = complaint(capsys, *run_of(tmp_path, Tls(f"{name}.pem", f"{name}.key", authority.ca)))
    assert said == f'tls.certificate = "{name}.pem": cannot be read (No such file or directory)'
    assert not (tmp_path / "run").exists()
