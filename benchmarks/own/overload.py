"""Measures a server under load, its event loop's lag and its rounds: many clients join at once, or some flood it."""

import asyncio
import itertools
import multiprocessing
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pausefl.bench.runs import BARE
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.client.process import run_client_process
from pausefl.runtime.plan import plan_of
from pausefl.runtime.processes.lifetime import die_with_parent, start
from pausefl.runtime.processes.log_file import write_output_to
from pausefl.runtime.processes.resources import allow_many_files
from pausefl.runtime.server.plan import ServerPlan
from pausefl.runtime.server.process import serve_run
from pausefl_client.transport import connect
from pausefl_process.databases import open_read_only
from pausefl_process.events import ProgressEvent, Ready
from pausefl_proto.arrays import FloatArray
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MOST_ROUNDS, PROTOCOL_VERSION, Manifest, TensorSpec, unpack

_MODEL_BYTES = 4_000
_OVERRIDES = (
    f"experiment.rounds={MOST_ROUNDS}",
    "clients.groups.honest.count=30",
    "clients.minimum=30",
    "selection.m=5",
    "selection.policy=random",
    f"workload.model_bytes={_MODEL_BYTES}",
    "server.rounds_without_update_max=1000000",
    "latency.delay.kind=constant",
    "latency.delay.value_s=0.1",
)
_PROBE_EVERY_S = 0.01
_WARM_UP_S = 3.0
_PATIENCE_S = 60.0


Load = Callable[[int, list[str]], Coroutine[Any, Any, dict[str, float]]]
"""A function of (port, ids) that plays clients with these ids for a while. Returns its figures by name."""


def cases(clients: int = 1000, lasts_s: float = 20.0) -> Iterator[dict[str, Any]]:
    """Yields rounds without load, while `clients` join at once, and while a tenth of them flood; each for `lasts_s`."""
    flooders = max(1, clients // 10)
    yield _case("left alone", 1, partial(_leave_alone, lasts_s))
    yield _case(f"{clients} joins at once", clients, partial(_join, lasts_s))
    yield _case(f"{flooders} flooders", flooders, partial(_flood, lasts_s))


def _case(case: str, others: int, load: Load) -> dict[str, Any]:
    """Play rounds with honest clients under a load. Returns the event loop's lag and the pace of the rounds."""
    experiment = parse_experiment(BARE, [*_OVERRIDES, f"clients.groups.other.count={others}"])
    context = multiprocessing.get_context("spawn")
    (ours, theirs), (found_here, found_there) = context.Pipe(), context.Pipe()
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as name, ExitStack() as ending:
        folder = Path(name)

        def begin(function: Callable[..., None], *arguments: object) -> Any:
            process = context.Process(target=function, args=arguments)
            start(process)
            ending.callback(process.join)
            ending.callback(process.kill)
            return process

        plan = plan_of(experiment, folder.name)
        # The load's clients do not state this experiment's settings, so the server must not check these.
        open_plan = replace(plan.server, settings=replace(plan.server.settings, agreement=None))
        server = begin(_serve, open_plan, folder, theirs)
        port = ours.recv()
        ids = experiment.ids_by_group
        begin(run_client_process, plan.clients, ids["honest"], f"127.0.0.1:{port}", folder)
        while not _rounds(folder):
            time.sleep(0.1)
        time.sleep(_WARM_UP_S)
        rounds, began_s = _rounds(folder), time.monotonic()
        begin(_run_load, load, port, ids["other"], found_there)
        found = found_here.recv()
        ended_s, rounds = time.monotonic(), _rounds(folder) - rounds
        server.terminate()
        probes: FloatArray = np.array(ours.recv())
        disk_bytes = sum(file.stat().st_size for file in (*folder.glob("run.db*"), *folder.glob("*.log")))
    lag_s = probes[(probes[:, 0] >= began_s) & (probes[:, 0] <= ended_s), 1]
    lags = {f"lag_p{100 * q:g}_ms": 1e3 * float(np.quantile(lag_s, q)) for q in (0.5, 0.99, 1.0)}
    pace = {"rounds_per_s": rounds / (ended_s - began_s), "disk_bytes": disk_bytes}
    return {"name": "overload", "case": case, **lags, **pace, **found}


def _rounds(folder: Path) -> int:
    """The number of committed rounds."""
    try:
        with closing(open_read_only(folder / "run.db")) as db:
            return int(db.execute("SELECT count(*) FROM rounds").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # the database does not exist yet


def _serve(plan: ServerPlan, folder: Path, channel: "Connection[Any, Any]") -> None:
    """The main function of the server's process. Sends the port, and at the end all probes of its event loop."""
    die_with_parent()
    allow_many_files()
    write_output_to(folder / "server.log")
    probes: list[tuple[float, float]] = []

    def report(event: ProgressEvent) -> None:
        if isinstance(event, Ready):
            threading.Thread(target=_probe, args=(asyncio.get_running_loop(), probes), daemon=True).start()
            channel.send(event.port)

    serve_run(plan, folder, report)
    channel.send(probes)


def _probe(loop: asyncio.AbstractEventLoop, probes: list[tuple[float, float]]) -> None:
    """Append (due time, lateness), in seconds, of a callback to `probes` at a steady pace, even if the loop hangs."""

    def note(due_s: float) -> None:
        probes.append((due_s, time.monotonic() - due_s))

    with suppress(RuntimeError):  # the loop has ended
        while True:
            time.sleep(_PROBE_EVERY_S)
            loop.call_soon_threadsafe(note, time.monotonic())


# -- the loads


def _run_load(load: Load, port: int, ids: list[str], channel: "Connection[Any, Any]") -> None:
    """The main function of the process that plays a load."""
    die_with_parent()
    allow_many_files()
    channel.send(asyncio.run(load(port, ids)))


async def _leave_alone(lasts_s: float, port: int, ids: list[str]) -> dict[str, float]:
    """Play no load: only wait."""
    del port, ids
    await asyncio.sleep(lasts_s)
    return {}


async def _join(lasts_s: float, port: int, ids: list[str]) -> dict[str, float]:
    """Connect all clients at once, and refuse every job. Returns the seconds until all were welcomed, if all were."""
    began_s, all_in = time.monotonic(), asyncio.Event()
    missing = set(ids)

    async def take_part(client_id: str) -> None:
        for tries in itertools.count():
            with suppress(OSError):
                async with connect(f"127.0.0.1:{port}") as stream:
                    await stream.write(_hello(client_id))
                    while (data := await stream.read()) is not None:
                        said = pb.ServerMessage.FromString(unpack(data)[0])
                        if said.HasField("welcome"):
                            missing.discard(client_id)
                            if not missing:
                                all_in.set()
                        elif said.HasField("job"):
                            await stream.write(_refusal(said.job))
            # The same pause as in a client's session.
            await asyncio.sleep(min(0.2 * 2**tries, 5.0) * random.uniform(0.5, 1.5))

    async with _played(ids, take_part):
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await all_in.wait()
        joined_s = time.monotonic() - began_s
        await asyncio.sleep(max(0.0, began_s + lasts_s - time.monotonic()))
    return {} if missing else {"all_joined_s": joined_s}


async def _flood(lasts_s: float, port: int, ids: list[str]) -> dict[str, float]:
    """Connect, then answer jobs that do not exist, as fast as the stream accepts it, again and again."""
    sent = 0

    async def flood(client_id: str) -> None:
        nonlocal sent
        while True:
            with suppress(OSError):
                async with connect(f"127.0.0.1:{port}") as stream:
                    await stream.write(_hello(client_id))
                    await stream.read()
                    for _ in range(1000):
                        await stream.write(_refusal(pb.Job(round=1, attempt=9)))
                        sent += 1
            await asyncio.sleep(0.1)

    async with _played(ids, flood):
        await asyncio.sleep(lasts_s)
    return {"messages": sent}


@asynccontextmanager
async def _played(ids: list[str], play: Callable[[str], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run `play` for each client until the end of the block."""
    tasks = [asyncio.create_task(play(client_id)) for client_id in ids]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _hello(client_id: str) -> bytes:
    manifest = Manifest((TensorSpec("synthetic", (_MODEL_BYTES // 4,)),)).to_message()
    hello = pb.Hello(protocol_version=PROTOCOL_VERSION, client_id=client_id, n_examples=1, manifest=manifest)
    return pb.ClientMessage(hello=hello).SerializeToString()


def _refusal(job: pb.Job) -> bytes:
    result = pb.Result(round=job.round, attempt=job.attempt, status=pb.STATUS_FAILED, reason="too busy")
    return pb.ClientMessage(result=result).SerializeToString()
