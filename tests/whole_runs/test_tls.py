"""TLS over real gRPC: who is trusted, who is not, what is said of it, and certificates that are renewed."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from pausefl.certificates import make_certificates
from pausefl_client.transport import connect
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls, is_no_servers
from pausefl_proto.v1 import federation_pb2 as pb
from rigs.authority import Authority
from rigs.command import PAUSEFL, Background, refusal, synthetic
from rigs.federation import hello
from rigs.one_job import listening
from rigs.waiting import wait_for


def test_a_certificate_in_a_form_that_others_read_is_refused_in_one_line(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["server.lab"], [])
    certificate = tmp_path / "server.pem"
    certificate.write_text(certificate.read_text().replace(" CERTIFICATE-----", " TRUSTED CERTIFICATE-----"))
    with pytest.raises(ConfigError, match=r'^tls\.certificate = ".*server\.pem", tls\.key = .* are no certificate'):
        Tls(str(certificate), f"{tmp_path}/server.key").to_listen()
    assert is_no_servers(certificate.read_bytes())


async def greet(address: str, tls: Tls | None) -> str:
    """Say hello; the kind of the answer."""
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


async def test_a_client_leaves_a_server_it_does_not_trust(authority: Authority, stranger: Authority) -> None:
    async with listening(authority.certify("server")) as port:
        with pytest.raises(
            ConfigError, match=r'tls\.ca = ".*strange.*": does not vouch for .* 127\.0\.0\.1:\d+ \(.+\)'
        ):
            await greet(f"127.0.0.1:{port}", Tls(ca=stranger.ca))


async def test_a_certificate_holds_for_its_hosts_alone(authority: Authority) -> None:
    async with listening(authority.certify("elsewhere", "DNS:elsewhere")) as port:
        with pytest.raises(ConfigError, match=r"tls\.certificate of 127\.0\.0\.1:\d+: does not name this host"):
            await greet(f"127.0.0.1:{port}", Tls(ca=authority.ca))


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
async def test_who_has_no_certificate_is_not_heard(authority: Authority, stranger: Authority, who: str) -> None:
    shown = stranger.certify("client") if who == "a stranger" else Tls()
    what = r"does it demand TLS with tls\.certificate\?"
    if who == "a stranger":
        what = rf'does its tls\.ca sign tls\.certificate = "{shown.certificate}", and do the clocks of both agree\?'
    async with listening(authority.certify("server")) as port:
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port} hangs up at once, {what} \("):
            await greet(f"127.0.0.1:{port}", Tls(shown.certificate, shown.key, authority.ca))


async def test_one_side_alone_with_tls(authority: Authority) -> None:
    async with listening(authority.certify("server")) as port:
        with pytest.raises(OSError, match=r"hangs up at once, does it demand TLS with tls\.ca\?"):
            await greet(f"127.0.0.1:{port}", None)
    async with listening(None) as port:
        with pytest.raises(ConfigError, match=r"does not speak TLS"):
            await greet(f"127.0.0.1:{port}", Tls(ca=authority.ca))


async def test_renewed_certificates_are_taken_up(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """Files replaced one after the other: until they go together, those before hold."""
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
    with pytest.raises(ConfigError, match=r'tls\.certificate = "a\.pem": needs tls\.key as well'):
        Tls(certificate="a.pem")
    with pytest.raises(ConfigError, match=r'tls\.key = "a\.key": needs tls\.certificate as well'):
        Tls(key="a.key")


def pausefl(command: str, folder: Path, tls: Tls, *arguments: object) -> "subprocess.CompletedProcess[str]":
    options = [f"--set=tls.{name}={getattr(tls, name)}" for name in ("certificate", "key", "ca")]
    line = [*PAUSEFL, command, str(synthetic(folder, rounds=2, clients=2)), *options, *map(str, arguments)]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.end_to_end
def test_a_whole_run_with_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    done = pausefl("run", tmp_path, authority.certify("server"), "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 2


@pytest.mark.end_to_end
async def test_a_client_says_whom_it_does_not_trust(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    async with listening(authority.certify("server")) as port:
        join = f"--server=127.0.0.1:{port}", "--client-id=client-000", f"--ledger-dir={tmp_path / 'ledgers'}"
        done = await asyncio.to_thread(pausefl, "client", tmp_path, Tls(ca=stranger.ca), *join)
    assert re.match(r'tls\.ca = ".* does not vouch for', refusal(done))


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", ["server", "evaluator"])
def test_a_peer_that_speaks_no_tls_leaves_no_line(
    authority: Authority, tmp_path: Path, background: Background, command: str
) -> None:
    """Anybody may try as often as the network allows: a line each would fill the disk."""
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
def test_a_file_that_is_missing_is_bad_input(authority: Authority, tmp_path: Path, name: str) -> None:
    """A server is no client: it told of "clients/.pem" where "clients/{client_id}.pem" was set."""
    done = pausefl("run", tmp_path, Tls(f"{name}.pem", f"{name}.key", authority.ca), "--run-dir", "run")
    assert refusal(done) == f'tls.certificate = "{name}.pem": cannot be read (No such file or directory)'
    assert not (tmp_path / "run").exists()
