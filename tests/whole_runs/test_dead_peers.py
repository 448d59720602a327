"""A peer whose process is stopped still acknowledges TCP; both ends must find it dead within `dead_after_s`."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pausefl_client.transport import connect
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import unpack
from pausefl_server.connections.hello_limits import ConnectionBounds
from rigs.federation import BIG, hello
from rigs.one_job import OneJob, listening
from rigs.places import TESTS

DEAD_AFTER_S = 3.0
# A loaded machine schedules a timer late; without the fix a peer stays undiscovered for 60 s.
TOLERANCE_S = 2.0

CLIENT = """
import asyncio, sys
from pausefl_client.transport import connect
from rigs.federation import BIG, hello

async def main():
    async with connect("127.0.0.1:" + sys.argv[1]) as stream:
        await stream.write(hello("stopped", BIG))
        await stream.read()
        await stream.read()
        print("in a round", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""

SERVER = """
import asyncio
from rigs.federation import BIG
from rigs.one_job import listening

async def main():
    async with listening(size=BIG) as port:
        print(port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def python(program: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs this program with the tests' rigs; killed with the block."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    return line.decode().strip()


async def test_a_client_that_is_stopped_in_a_round_is_found_dead() -> None:
    coordinator, bounds = OneJob(BIG), ConnectionBounds(dead_after_s=DEAD_AFTER_S)
    async with listening(bounds=bounds, coordinator=coordinator, size=BIG) as port, python(CLIENT, port) as client:
        assert await line_of(client) == "in a round"
        stopped_s = time.monotonic()
        client.send_signal(signal.SIGSTOP)
        await asyncio.wait_for(coordinator.lost.get(), 90)
        assert time.monotonic() - stopped_s < DEAD_AFTER_S + TOLERANCE_S


async def test_a_server_that_is_stopped_in_a_round_is_found_dead() -> None:
    async with python(SERVER) as server:
        address = f"127.0.0.1:{await line_of(server)}"
        async with connect(address, dead_after_s=DEAD_AFTER_S) as stream:
            await stream.write(hello("a", BIG))
            kinds = []
            for _ in range(2):
                data = await asyncio.wait_for(stream.read(), 20)
                assert data is not None
                kinds.append(pb.ServerMessage.FromString(unpack(data)[0]).WhichOneof("kind"))
            assert kinds == ["welcome", "job"]
            stopped_s = time.monotonic()
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(OSError):
                while await asyncio.wait_for(stream.read(), 90) is not None:
                    pass
            assert time.monotonic() - stopped_s < DEAD_AFTER_S + TOLERANCE_S
