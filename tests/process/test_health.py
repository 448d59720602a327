"""What probes are told: `/healthz` and `/readyz` of servers and of client processes."""

import asyncio
import signal
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_clients_over_grpc
from pausefl_process.health import health_routes
from pausefl_process.http_server import WebServer
from pausefl_proto.wire import Vector
from pausefl_server.monitoring import probes
from pausefl_server.records import Evaluation
from pausefl_server.selection.policies.everyone import All
from pausefl_server.settings import MetricsSettings
from rigs.federation import Federation, answer_of, clients, federation, hello, raw_stream, take_a_job
from rigs.waiting import wait_for

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
    """(status, text)."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, str(answer.read(), "utf-8").strip()
    except urllib.error.HTTPError as error:
        return error.code, str(error.read(), "utf-8").strip()


async def told(url: str, wanted: tuple[int, str]) -> None:
    """Return once the probe says this."""
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


@pytest.mark.slow
async def test_a_server_without_a_working_store_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_WRITES_WITHIN_S", 0.0)
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
    with closing(WebServer("127.0.0.1", 0, routes, key="metrics.port")) as web:
        said: list[tuple[int, str]] = []
        asking = threading.Thread(target=lambda: said.append(ask(f"http://{web.address}/healthz")))
        asking.start()
        asking.join(20)  # on the event loop's thread
    assert said == [(503, "the event loop has not turned for 2 s")]


async def test_a_client_process_is_ready_while_a_client_is_connected(tmp_path: Path) -> None:
    plan = client_plan(parse_experiment(CLIENT))
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with federation(tmp_path / "server", All(1), minimum_clients=2, rounds=100_000) as run:
        address = f"127.0.0.1:{await run.port}"
        playing = asyncio.ensure_future(
            run_clients_over_grpc(plan, ["client-000"], address, tmp_path / "ledgers", on_metrics=heard.put_nowait)
        )
        base = f"http://{await heard.get()}"
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
