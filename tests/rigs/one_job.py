"""A coordinator that welcomes every client and gives it one job, and a server for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pausefl_proto.tls import Tls
from pausefl_proto.wire import digest, pack_job
from pausefl_server.actor import Actor
from pausefl_server.connections.endpoints import Endpoints
from pausefl_server.connections.stream_handler import ClientStreamHandler
from pausefl_server.connections.transport import FederationServer
from pausefl_server.rounds.messages import Dispatch, Lost, Register
from rigs.federation import SIZE
from rigs.settings import server_settings

ENDPOINTS = Endpoints("127.0.0.1", 0)


class OneJob(Actor[Any]):
    """Welcomes every client with one job. Keeps the streams that ended in `lost` and all other messages in `told`."""

    def __init__(self, size: int) -> None:
        super().__init__("coordinator")
        self.lost: asyncio.Queue[Lost] = asyncio.Queue()
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        model = np.zeros(size, np.float32)
        self._messages = pack_job(1, 1, model, digest(model))

    async def receive(self, message: Any) -> None:
        match message:
            case Register():
                message.peer.offer(Dispatch(1, 1, self._messages, 0.0, 0.0))
            case Lost():
                self.lost.put_nowait(message)
            case _:
                self.told.put_nowait(message)


@asynccontextmanager
async def stream_handler(
    coordinator: Actor[Any] | None = None, endpoints: Endpoints = ENDPOINTS, size: int = SIZE
) -> AsyncIterator[ClientStreamHandler]:
    """Yield a handler for this coordinator; by default one that gives every client a job."""
    coordinator = coordinator or OneJob(size)
    running = asyncio.ensure_future(coordinator.run())
    try:
        yield ClientStreamHandler(coordinator, server_settings(size), endpoints)  # type: ignore[arg-type]  # a stand-in
    finally:
        coordinator.stop()
        await running


@asynccontextmanager
async def listening(
    tls: Tls | None = None,
    coordinator: Actor[Any] | None = None,
    size: int = SIZE,
    most_clients: int = 1000,
    **told: Any,
) -> AsyncIterator[int]:
    """Yield the port of a server with such a handler."""
    endpoints = replace(ENDPOINTS, tls=tls, **told)
    async with stream_handler(coordinator, endpoints, size) as handler:
        server = FederationServer(handler, endpoints, most_clients)
        try:
            yield await server.start("127.0.0.1", 0)
        finally:
            await server.stop(0)
