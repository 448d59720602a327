"""One client's actor on the server. The test plays both its stream and its coordinator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from pausefl_process.host_monitor import HostWatch
from pausefl_proto.budget import Budget
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector, cut, digest, pack, pack_job
from pausefl_server.actor import Actor
from pausefl_server.connections.client_actor import ClientActor
from pausefl_server.connections.peer_limits import ClientRateLimit
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.rounds.messages import Dispatch, Refusal, Update
from pausefl_server.settings import PrivacySettings
from rigs.clock import Clock, FakeStream
from rigs.settings import server_settings


class FakeCoordinator(Actor[Any]):
    """Keeps the messages it receives."""

    def __init__(self) -> None:
        super().__init__("coordinator")
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self, message: Any) -> None:
        self.told.put_nowait(message)


class ClientActorRig:
    """Runs a client's actor; the test plays the client and reads what the coordinator receives."""

    def __init__(self, size: int = 5, budget: Budget | None = None, norm_bound: NormBound | None = None) -> None:
        self.size = size
        self.clock = Clock()
        self.watch = HostWatch(self.clock)
        self.stream = FakeStream(self.clock)
        self.coordinator = FakeCoordinator()
        privacy = norm_bound and PrivacySettings(Budget(10.0, 0.04), norm_bound.unit, "", norm_bound=norm_bound)
        self._settings, self._budget = server_settings(size, privacy=privacy), budget
        self.actor = self.actor_of()
        self.reason: asyncio.Task[str] | None = None

    def actor_of(self, rate_limit: ClientRateLimit | None = None) -> ClientActor:
        """An actor for one stream of the client."""
        told: dict[str, Any] = {"released": 2, "budget": self._budget, "rate_limit": rate_limit}
        return ClientActor("client-1", self.stream, self.coordinator, self._settings, self.watch, **told)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ClientActorRig"]:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.coordinator.run())
            group.create_task(self.actor.run())
            self.reason = group.create_task(self.actor.listen())
            yield self
            self.stream.give(None)
            await self.reason
            self.actor.stop()
            self.coordinator.stop()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator["ClientActorRig"]:
        """The actor runs, and has received the job of round 1."""
        async with self.running():
            await self.dispatch()
            yield self

    async def dispatch(self, round: int = 1, attempt: int = 1, handed_over_s: float | None = None) -> None:
        """Give the actor a job, and wait until the whole job is written to the stream."""
        model = np.zeros(self.size, np.float32)
        job = pack_job(round, attempt, model, digest(model))
        await self.actor.ask(Dispatch(round, attempt, job, 0.0, self.clock(), handed_over_s))

    async def told(self) -> Any:
        """The next message that the coordinator receives."""
        async with asyncio.timeout(20):
            return await self.coordinator.told.get()

    async def refused(self) -> Refusal:
        message = await self.told()
        assert isinstance(message, Refusal), message
        return message

    async def updated(self) -> Update:
        message = await self.told()
        assert isinstance(message, Update), message
        return message

    def say(self, **kind: Any) -> None:
        """Let the client send this message."""
        self.stream.give(pb.ClientMessage(**kind).SerializeToString())

    def answer(self, round: int = 1, after_s: float = 0.0, **fields: Any) -> None:
        """Let the client send a valid update, except for the given fields of its result."""
        for number, data in enumerate(upload(vector(self.size), round, **fields)):
            self.stream.give(data, 0.0 if number else after_s)

    async def accepts_the_next_job(self) -> None:
        """Assert that the actor is still alive: a valid answer to one more job is accepted."""
        assert self.actor.handed_over_s is None, "it owes no answer"
        await self.dispatch(round=77)
        self.answer(77)
        assert (await self.updated()).round == 77


def vector(size: int) -> Vector:
    return np.random.default_rng(size).standard_normal(size, np.float32)


def upload(vector: Vector, /, round: int = 1, attempt: int = 1, **fields: Any) -> list[bytes]:
    """A client's answer as the bytes of its messages."""
    header, frames = cut(vector, digest(vector))
    result = pb.Result(round=round, attempt=attempt, status=pb.STATUS_OK, **({"update": header} | fields))
    messages = [pb.ClientMessage(result=result)]
    messages += [pb.ClientMessage(frame=pb.Frame(index=i)) for i in range(1, len(frames))]
    return [pack(message, frame) for message, frame in zip(messages, frames, strict=True)]
