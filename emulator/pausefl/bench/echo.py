"""The baseline of `bench rounds`: a bare grpc.aio server that sends bytes to N client processes and waits for them all.

It uses nothing but gRPC: no checks, no aggregation, no log. Payloads are sent in messages of at most 1 MiB, like ours.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import grpc

from pausefl.runtime.forks import forked_client, spawned
from pausefl.runtime.processes.lifetime import die_with_parent, start
from pausefl_proto.wire import MAX_FRAME_BYTES

_METHOD = "Echo"
_SERVICE = "pausefl.bench"


def time_echo(clients: int, payload_bytes: int, rounds: int) -> list[float]:
    """The seconds of each of `rounds` rounds, from sending to all clients until all echoes are back."""
    ours, theirs = multiprocessing.Pipe()
    with ExitStack() as ending:

        def begin(process: BaseProcess) -> None:
            ending.callback(_end, process)
            start(process)

        begin(spawned("echo-server", _run, _serve, theirs, clients, payload_bytes, rounds))
        theirs.close()
        port = ours.recv()
        for _ in range(clients):
            begin(forked_client("echo", _run, _echo, port, needs_torch=False))
        durations_s: list[float] = ours.recv()
    return durations_s


def _end(process: BaseProcess) -> None:
    """Kill a process if it was started. It may wait for processes that an interrupt kept from starting."""
    if process.pid is not None:
        process.kill()
        process.join()


def _run(work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    die_with_parent()
    asyncio.run(work(*arguments))


async def _serve(results: "Connection[Any, Any]", clients: int, payload_bytes: int, rounds: int) -> None:
    contexts: asyncio.Queue[Any] = asyncio.Queue()
    finished = asyncio.Event()

    async def echo(_: Any, context: Any) -> None:
        await context.read()  # the client's greeting opens its stream
        contexts.put_nowait(context)
        await finished.wait()

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
    results.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    streams = [await contexts.get() for _ in range(clients)]
    payload = bytes(payload_bytes)
    messages = [payload[i : i + MAX_FRAME_BYTES] for i in range(0, payload_bytes, MAX_FRAME_BYTES)]
    durations_s = []
    for _ in range(rounds):
        started_s = time.monotonic()
        await asyncio.gather(*(_exchange(stream, messages) for stream in streams))
        durations_s.append(time.monotonic() - started_s)
    finished.set()
    await server.stop(1.0)
    results.send(durations_s)


async def _exchange(stream: Any, messages: list[bytes]) -> None:
    """Send the messages and read as many. A client answers once it has all of them, as one that trains must."""
    for message in messages:
        await stream.write(message)
    for _ in messages:
        await stream.read()


async def _echo(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
        await call.write(b"hello")
        whole: list[bytes] = []
        while (message := await call.read()) is not grpc.aio.EOF:
            whole.append(message)
            if len(message) < MAX_FRAME_BYTES:
                for part in whole:
                    await call.write(part)
                whole.clear()
