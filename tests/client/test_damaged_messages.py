"""A client that reads what was damaged on the way comes back on a fresh stream, where all is said again."""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import digest, pack_job
from rigs.session import SessionRig


def damaged_model(rig: SessionRig) -> bytes:
    (damaged,) = pack_job(1, 1, rig.model + 1, digest(rig.model))
    return damaged


DAMAGES: dict[str, Callable[[SessionRig], bytes]] = {
    "no message": lambda _: b"\xff\xff\xff",
    "a payload cut off": lambda _: b"\x7a\xff\xff\xff\xff\x0f",
    "a model of another size": lambda _: pack_job(1, 1, np.zeros(7, np.float32), "")[0],
    "a model that does not fit its checksum": damaged_model,
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_what_arrives_damaged_is_asked_for_again_on_a_fresh_stream(what: str) -> None:
    rig = SessionRig()
    async with rig.welcomed() as stream:
        stream.give(DAMAGES[what](rig))
        again = await rig.server.welcome()
        assert (await again.ask(rig.model))[0].status == pb.STATUS_OK
    assert stream.is_silent()
    assert rig.trainer.rounds == [1]


async def test_a_server_of_another_protocol_version_is_left() -> None:
    rig = SessionRig()
    async with rig.running() as task:
        stream = await rig.server.accept()
        await stream.heard()
        stream.give(pb.ServerMessage(welcome=pb.Welcome(protocol_version=99, run_id="run")).SerializeToString(), 100.0)
        with pytest.raises(PauseflError, match="speaks protocol version 99, this client 1"):
            await asyncio.wait_for(task, 20)


async def test_damage_found_after_the_stream_has_ended_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    executor = LaterExecutor()
    rig = SessionRig(executor=executor)
    async with rig.welcomed() as stream:
        stream.give(damaged_model(rig))
        await executor.submitted.wait()
        stream.give(None)
        again = await rig.server.welcome()
        executor.run_all()
        executor.is_late = False
        assert (await again.ask(rig.model))[0].status == pb.STATUS_OK
        gc.collect()
    assert not [record for record in caplog.records if "never retrieved" in record.message]


class LaterExecutor(Executor):
    """Runs work when it is told to, until it is no longer late."""

    def __init__(self) -> None:
        self.submitted = asyncio.Event()
        self.is_late = True
        self._work: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        self._work.append(run)
        self.submitted.set()
        if not self.is_late:
            self.run_all()
        return future

    def run_all(self) -> None:
        while self._work:
            self._work.pop(0)()
