"""The small web server: its answers, the host names it answers to, a timely end, and the health probes."""

import asyncio
import errno
import http.client
import signal
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_clients_over_grpc
from pausefl_process.events import MetricsServed, ProgressEvent
from pausefl_process.health import health_routes
from pausefl_process.http_server import Response, WebServer
from pausefl_proto.addresses import is_loopback
from pausefl_proto.endpoint import listen, make_server
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Vector
from pausefl_server.records import Evaluation
from pausefl_server.selection.policies.baselines import All
from pausefl_server.settings import MetricsSettings
from rigs.federation import Federation, answer_of, clients, federation, hello, raw_stream, take_a_job
from rigs.waiting import wait_for


def hello_route(headers: Mapping[str, str]) -> Response:
    return Response("text/plain", [b"hello ", headers.get("Accept", "nobody").encode()], {"X-Extra": "yes"})


@pytest.fixture
def server() -> Iterator[WebServer]:
    with closing(WebServer("127.0.0.1", 0, {"/hello": hello_route}, key="metrics.port")) as server:
        yield server


def get(server: WebServer, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_a_route_is_answered_chunk_by_chunk_and_head_without_the_body(server: WebServer) -> None:
    response = get(server, "/hello?any=query", accept="world")  # proxies write names in lower case
    assert (response.status, response.read()) == (200, b"hello world")
    headers = [response.headers[name] for name in ("X-Extra", "X-Content-Type-Options", "Cache-Control")]
    assert headers == ["yes", "nosniff", "no-store"]
    assert "Python" not in response.headers["Server"]
    with line_to(server) as line:  # http.client would read no body, whether or not one comes
        line.sendall(b"HEAD /hello HTTP/1.0\r\n\r\n")
        said = line.makefile("rb").read()
    status, *_, extra, end, body = said.split(b"\r\n")
    assert (status, extra, end, body) == (b"HTTP/1.0 200 OK", b"X-Extra: yes", b"", b"")


def test_other_paths_and_methods_are_refused(server: WebServer) -> None:
    response = get(server, "/../etc/passwd")
    assert (response.status, response.read()) == (404, b"try /hello\n")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(f"http://{server.address}/hello", data=b"change", timeout=10)


OWN_NAMES = ["127.0.0.1", "127.0.0.1:80", "localhost:9464", "LOCALHOST", "[::1]:1"]
OTHER_NAMES = ["rebound.example", "rebound.example:9464", "127.0.0.1.rebound.example", "", "[::1"]


@pytest.mark.parametrize("name", [*OWN_NAMES, *OTHER_NAMES])
def test_on_loopback_it_answers_to_names_of_loopback_alone(server: WebServer, name: str) -> None:
    assert get(server, "/hello", Host=name).status == (200 if name in OWN_NAMES else 403)


def test_elsewhere_it_answers_to_any_name() -> None:
    with closing(WebServer("0.0.0.0", 0, {"/hello": hello_route}, key="metrics.port")) as server:
        assert get(server, "/hello", Host="server.federation.svc").status == 200


@pytest.mark.parametrize(
    ("hosts", "known"),
    [(("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"), True), (("0.0.0.0", "::", "10.0.0.1", "a.org"), False)],
)
def test_loopback_addresses_are_known_and_no_others(hosts: tuple[str, ...], known: bool) -> None:
    assert [is_loopback(host) for host in hosts] == [known] * len(hosts)


def test_whoever_is_being_answered_gets_the_rest_before_it_closes_and_frees_its_port() -> None:
    asked, closing = threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        yield b"first "
        asked.set()
        closing.wait(10)
        yield b"last"

    server = WebServer("127.0.0.1", 0, {"/": lambda _: Response("text/plain", chunks())}, key="metrics.port")
    response = get(server, "/")
    assert asked.wait(10)
    closer = threading.Thread(target=server.close)
    closer.start()
    closing.set()
    assert response.read() == b"first last"
    closer.join(10)
    assert not closer.is_alive()
    with pytest.raises(OSError):
        line_to(server)


def test_a_path_that_is_none_is_a_bad_request(server: WebServer) -> None:
    with line_to(server) as line:
        line.sendall(b"GET http://[/x HTTP/1.0\r\n\r\n")
        assert line.makefile("rb").readline().split()[1] == b"400"


def line_to(server: WebServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def closed_within(server: WebServer, timeout_s: float) -> bool:
    closer = threading.Thread(target=server.close)
    closer.start()
    closer.join(timeout_s)
    return not closer.is_alive()


def test_whoever_asks_byte_by_byte_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    """Each byte arrives well within the time limit, which holds for the whole request."""
    server = WebServer("127.0.0.1", 0, {"/hello": hello_route}, key="metrics.port")
    done = threading.Event()
    with line_to(server) as line:

        def drip() -> None:
            with suppress(OSError):
                while not done.wait(0.1):
                    line.sendall(b"G")

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert line.recv(1) == b""
        assert closed_within(server, 10)
        done.set()
        dripping.join()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("request_begun", [b"GET /hello HTTP/1.1\r\nHo", b"NONSENSE\r\n\r\n" * 1000])
def test_a_broken_connection_leaves_no_traceback(request_begun: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    server = WebServer("127.0.0.1", 0, {"/hello": hello_route}, key="metrics.port")
    with line_to(server) as reader:
        reader.sendall(request_begun)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it closes with a reset
    assert get(server, "/hello").status == 200
    server.close()  # waits for the server's threads
    assert capsys.readouterr().err == ""


def test_a_route_that_fails_leaves_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: Mapping[str, str]) -> Response:
        raise ZeroDivisionError

    failing = WebServer("127.0.0.1", 0, {"/fail": fail}, key="metrics.port")
    with closing(failing), pytest.raises(http.client.RemoteDisconnected):
        get(failing, "/fail")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_answer_without_end_keeps_nobody_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk has a time limit. Closing waits for that time once, not once for each chunk."""
    monkeypatch.setattr("pausefl_process.http_server._TAKE_WITHIN_S", 0.2)
    begun, enough = threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        while not enough.wait(0.01):
            yield b"x"
            begun.set()

    server = WebServer("127.0.0.1", 0, {"/": lambda _: Response("text/plain", chunks())}, key="metrics.port")
    response = get(server, "/")
    assert begun.wait(10)
    closed = closed_within(server, 10)
    enough.set()
    assert (closed, response.read(1)) == (True, b"x")


def test_there_are_only_so_many_connections_at_once(monkeypatch: pytest.MonkeyPatch, server: WebServer) -> None:
    monkeypatch.setattr("pausefl_process.http_server._CONNECTIONS_MAX", 2)
    monkeypatch.setattr("pausefl_process.http_server._ASK_WITHIN_S", 5.0)
    with line_to(server), line_to(server), line_to(server) as third:
        assert third.recv(1) == b""
    wait_for(lambda: ask(f"http://{server.address}/hello")[0] == 200, "an answer again")


def test_it_does_not_spin_where_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch, server: WebServer) -> None:
    """A connection that cannot be accepted stays ready, so a plain loop would spin."""
    accept, tried_s = socket.socket.accept, list[float]()

    def full(listening: socket.socket) -> tuple[socket.socket, object]:
        tried_s.append(time.monotonic())
        if len(tried_s) <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", full)
    assert get(server, "/hello").status == 200
    assert all(later - earlier > 0.1 for earlier, later in pairwise(tried_s))


async def test_a_taken_port_is_bad_input() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"\.port = {port}: cannot listen on 127\.0\.0\.1:{port} \("
        with pytest.raises(ConfigError, match=f"^metrics{said}"):
            WebServer("127.0.0.1", port, {}, key="metrics.port")
        with pytest.raises(ConfigError, match=f"^server{said}"):
            listen(make_server(), "server", "127.0.0.1", port, None)
    with pytest.raises(ConfigError, match=r"^metrics\.port = 0: cannot listen on 192\.0\.2\.1:0 \("):
        WebServer("192.0.2.1", 0, {}, key="metrics.port")  # an address of no machine


@pytest.mark.parametrize("host", ["no such host", "127.0..1"])
async def test_an_unknown_host_is_bad_input(host: str) -> None:
    with pytest.raises(ConfigError, match=rf'^metrics\.client_host = "{host}": no such host$'):
        WebServer(host, 0, {}, key="metrics.client_port")
    with pytest.raises(ConfigError, match=rf'^server\.host = "{host}": no such host$'):
        listen(make_server(), "server", host, 0, None)


CLIENT = """
[privacy]
enabled = false
[workload]
model = "synthetic"
model_bytes = 2000
[metrics]
client_port = 0
"""


def ask(url: str) -> tuple[int, str]:
    """(status, text) of the answer; the status is 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, str(answer.read(), "utf-8").strip()
    except urllib.error.HTTPError as error:
        return error.code, str(error.read(), "utf-8").strip()
    except OSError as error:
        return 0, str(error)


async def told(url: str, wanted: tuple[int, str]) -> None:
    """Wait until the probe answers `wanted`."""
    await asyncio.to_thread(wait_for, lambda: ask(url) == wanted, f"{wanted} at {url}", 20)


async def base_of(run: Federation) -> str:
    return str((await run.event("metrics"))["url"]).removesuffix("/metrics")


async def test_a_server_is_ready_while_it_plays_rounds(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        if not subset:
            await waiting.wait()
        return ()

    served = {"metrics": MetricsSettings(linger_s=0.0), "evaluate": evaluate}
    async with federation(tmp_path, All(1), rounds=100_000, **served) as run, clients() as some:
        base = await base_of(run)
        await told(f"{base}/readyz", (503, "waiting for clients (0 connected)"))
        await told(f"{base}/healthz", (200, "ok"))
        some.start_all("ab", await run.port)
        await told(f"{base}/readyz", (200, "ok"))
        signal.raise_signal(signal.SIGTERM)
        await told(f"{base}/readyz", (503, "the run was asked to end"))
        waiting.set()
        await run.finished()


async def test_a_server_is_ready_from_its_first_round_on(tmp_path: Path) -> None:
    served = {"metrics": MetricsSettings(linger_s=0.0), "minimum_clients": 2}
    async with federation(tmp_path, All(2), rounds=1, **served) as run:
        base = await base_of(run)
        async with raw_stream(await run.port) as first, raw_stream(await run.port) as second:
            await first.write(hello("first"))
            assert (await answer_of(first)).WhichOneof("kind") == "welcome"
            await told(f"{base}/readyz", (503, "waiting for clients (1 connected)"))
            await take_a_job(second)
            await told(f"{base}/readyz", (200, "ok"))
        await told(f"{base}/readyz", (503, "no client is connected"))


@pytest.mark.slow
async def test_a_server_without_a_working_store_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl_server.service._WRITES_WITHIN_S", 0.0)
    stuck = threading.Event()
    monkeypatch.setattr("pausefl_server.storage.checkpoint.Checkpoint.sync", lambda *_: stuck.wait(30))
    async with federation(tmp_path, All(1), metrics=MetricsSettings(linger_s=0.0)) as run, clients() as some:
        base = await base_of(run)
        some.start_all("ab", await run.port)
        await told(f"{base}/healthz", (503, "a write takes 0 s so far"))
        stuck.set()
        await run.finished()


async def test_a_process_whose_event_loop_stands_still_is_not_healthy() -> None:
    routes = health_routes(asyncio.get_running_loop(), lambda: "", lambda: "")
    with closing(WebServer("127.0.0.1", 0, routes, key="metrics.port")) as web, ThreadPoolExecutor(1) as thread:
        said = thread.submit(ask, f"http://{web.address}/healthz").result(20)  # blocks the event loop's thread
    assert said == (503, "the event loop has not turned for 2 s")


async def test_a_client_process_is_ready_while_a_client_is_connected(tmp_path: Path) -> None:
    plan = client_plan(parse_experiment(CLIENT))
    heard: asyncio.Queue[ProgressEvent] = asyncio.Queue()
    async with federation(tmp_path / "server", All(1), minimum_clients=2, rounds=100_000) as run:
        address = f"127.0.0.1:{await run.port}"
        playing = asyncio.ensure_future(
            run_clients_over_grpc(plan, ["client-000"], address, tmp_path / "ledgers", heard.put_nowait)
        )
        served = await heard.get()
        assert isinstance(served, MetricsServed)
        base = served.url.removesuffix("/metrics")
        await told(f"{base}/readyz", (200, "ok"))
        await told(f"{base}/healthz", (200, "ok"))
        run.task.cancel()
        await told(f"{base}/readyz", (503, "no client of this process is connected"))
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def test_an_event_loop_that_has_ended_is_not_healthy() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    response = health_routes(loop, lambda: "", lambda: "")["/healthz"]({})
    began_s = time.monotonic()
    assert (response.status, list(response.body)) == (503, [b"the event loop has ended\n"])
    assert time.monotonic() - began_s < 1.0
