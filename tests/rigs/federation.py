"""Both ends over real gRPC on loopback, in one process: a running server, and clients that join and leave."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pausefl_client.link import Link
from pausefl_client.privacy.mechanism import Mechanism
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_client.session import ClientSession
from pausefl_client.session_settings import ClientSettings, HostResources
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.transport import connect
from pausefl_process.events import ProgressEvent, Ready, to_json
from pausefl_proto.budget import Budget
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, SERVICE, Manifest, MessageStream, TensorSpec, unpack
from pausefl_server.connections.endpoints import Endpoints
from pausefl_server.records import RoundRecord
from pausefl_server.selection.base import Policy
from pausefl_server.selection.policies.baselines import All
from pausefl_server.service import Platform, RunOutputs, RunResult, serve
from pausefl_server.settings import PrivacySettings, ServerSettings
from pausefl_server.storage.store import Store
from rigs.databases import open_ledger
from rigs.settings import server_settings

SIZE = 500
BUDGET = Budget(epsilon_budget=10.0, eta=0.1)
PRIVATE = PrivacySettings(BUDGET, "coordinate", "agreed")
BIG = MAX_FRAME_BYTES // 4 * 5 // 2  # two frames and a half


def network_settings(size: int = SIZE, **changes: Any) -> ServerSettings:
    """Settings that match the synthetic model of the clients."""
    return server_settings(size, **{"manifest": Manifest((TensorSpec("synthetic", (size,)),)), **changes})


class Federation:
    """A running server and the events it reports."""

    def __init__(self) -> None:
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.rejected = 0  # up to the last round reported
        self.task: asyncio.Task[RunResult]

    def tell(self, event: ProgressEvent) -> None:
        if isinstance(event, Ready):
            self.port.set_result(event.port)
        else:
            self.events.put_nowait(to_json(event))
            self.rejected = getattr(event, "rejected", self.rejected)

    async def event(self, kind: str, containing: str = "") -> dict[str, Any]:
        """Wait for the next event of this kind whose message contains the text, and return it."""
        async with asyncio.timeout(20):
            while True:
                event = await self.events.get()
                if event["kind"] == kind and containing in str(event.get("message", "")):
                    return event

    async def finished(self) -> RunResult:
        async with asyncio.timeout(30):
            return await self.task


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


@asynccontextmanager
async def federation(folder: Path, policy: Policy | None = None, **changes: Any) -> AsyncIterator[Federation]:
    """Serve in `folder`. The server is stopped at the end of the block."""
    make(folder)
    evaluate, keep = changes.pop("evaluate", None), changes.pop("keep", lambda _: None)
    told = {key: changes.pop(key) for key in ("offer", "admission") if key in changes}
    endpoints = Endpoints("127.0.0.1", changes.pop("port", 0), changes.pop("metrics", None), **told)
    back_to, oracle = changes.pop("back_to", None), changes.pop("oracle", None)
    best_model = changes.pop("best_model", None)
    settings, run = network_settings(**changes), Federation()
    theta_0 = np.zeros(settings.manifest.size, np.float32)
    run.task = asyncio.ensure_future(
        serve(
            settings,
            policy or All(1),
            theta_0,
            evaluate,
            endpoints,
            folder,
            run.tell,
            RunOutputs(keep, best_model=best_model),
            oracle=oracle,
            back_to=back_to,
            platform=Platform(closes_within_s=0.0),  # clients share this process; do not wait for their connections
        )
    )
    started: list[asyncio.Future[Any]] = [run.task, run.port]
    await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
    if not run.port.done():
        await run.task  # raises the reason why the server does not listen
    try:
        yield run
    finally:
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)


Connect = Callable[[], AbstractAsyncContextManager[MessageStream]]


class Clients:
    """Client sessions that share a trainer thread, as in a host process."""

    def __init__(self, group: asyncio.TaskGroup, executor: ThreadPoolExecutor) -> None:
        self._group = group
        self._executor = executor

    def start(
        self,
        client_id: str,
        port: int,
        size: int = SIZE,
        privacy: ReleasePrivacy | None = None,
        connecting: Connect | None = None,
        trainer: Any = None,
    ) -> "asyncio.Task[str]":
        session = ClientSession(
            ClientSettings(client_id, "agreed" if privacy else "", give_up_after_s=10.0, retry_every_s=0.02),
            trainer or SyntheticTrainer(size, seed=1, client_id=client_id),
            Releaser(privacy),
            Link(),
            connecting or partial(connect, f"127.0.0.1:{port}"),
            HostResources(self._executor),
        )
        return self._group.create_task(session.run())

    def start_all(self, client_ids: str, port: int, size: int = SIZE) -> "list[asyncio.Task[str]]":
        """Start several clients, one letter an id."""
        return [self.start(client_id, port, size) for client_id in client_ids]


@asynccontextmanager
async def clients(threads: int = 1) -> AsyncIterator[Clients]:
    with ThreadPoolExecutor(threads) as executor:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            yield Clients(group, executor)


def private(folder: Path, client_id: str) -> ReleasePrivacy:
    ledger = open_ledger(folder, client_id, BUDGET)
    return ReleasePrivacy(Mechanism("coordinate", 0.01), ledger, lambda _: np.random.default_rng())


def log_of(folder: Path) -> list[RoundRecord]:
    with closing(Store(folder / "run.db")) as store:
        return store.rounds()


@asynccontextmanager
async def raw_stream(
    port: int, token: str = "", method: str = "Join", compression: Any = None
) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
    """Yield a bare gRPC stream, without our client's code and without its message limits."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options, compression) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{method}")(
            metadata=(("authorization", f"Bearer {token}"),) if token else None
        )
        try:
            yield call
        finally:
            call.cancel()


async def take_a_job(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
    """Play a client by hand until the first message of its first job has arrived."""
    await call.write(hello())
    assert (await answer_of(call)).WhichOneof("kind") == "welcome"
    assert (await answer_of(call)).WhichOneof("kind") == "job"


def hello(client_id: str = "raw", size: int = SIZE, run_id: str = "") -> bytes:
    manifest = Manifest((TensorSpec("synthetic", (size,)),)).to_message()
    greeting = pb.Hello(
        protocol_version=PROTOCOL_VERSION, client_id=client_id, n_examples=1, manifest=manifest, run_id=run_id
    )
    return pb.ClientMessage(hello=greeting).SerializeToString()


async def answer_of(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> pb.ServerMessage:
    async with asyncio.timeout(20):
        data = await call.read()
    assert isinstance(data, bytes)
    return pb.ServerMessage.FromString(unpack(data)[0])


def errors_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The logged errors. Warnings are left out: gRPC warns of streams that end while the server stops."""
    return [record for record in caplog.records if record.levelno >= logging.ERROR]
