"""A coordinator that welcomes every client and gives it one job."""

import asyncio
from typing import Any

import numpy as np

from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, digest, pack_job
from pausefl_server.actor import Actor
from pausefl_server.rounds.messages import Dispatch, Lost, Register


class OneJob(Actor[Any]):
    """Everything else it is told is kept: `lost` the streams that ended, `told` the rest."""

    def __init__(self, size: int) -> None:
        super().__init__("coordinator")
        self.lost: asyncio.Queue[Lost] = asyncio.Queue()
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        model = np.zeros(size, np.float32)
        self._messages = pack_job(1, 1, model, digest(model))

    async def receive(self, message: Any) -> pb.Welcome | None:
        match message:
            case Register():
                message.peer.offer(Dispatch(1, 1, self._messages, 0.0, 0.0))
                return pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run")
            case Lost():
                self.lost.put_nowait(message)
            case _:
                self.told.put_nowait(message)
        return None
