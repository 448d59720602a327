"""A client process tries to reach its server as often as its sessions mean to, not as seldom as gRPC would."""

import asyncio
from contextlib import suppress

from pausefl_client.transport import connect

TRIES = 12


async def knock(port: int) -> None:
    """Try again and again, as a session does that finds no server; but with a constant wait."""
    while True:
        with suppress(OSError):
            async with connect(f"127.0.0.1:{port}") as stream:
                await stream.write(b"")
                await stream.read()
        await asyncio.sleep(1.0)


async def test_clients_of_one_process_do_not_wait_ever_longer_for_a_server_that_is_gone() -> None:
    """gRPC keeps one connection for all clients of a process, and waits for up to two minutes between its tries."""
    knocks = asyncio.Semaphore(0)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocks.release()
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    clients = [asyncio.ensure_future(knock(server.sockets[0].getsockname()[1])) for _ in range(2)]
    async with asyncio.timeout(12):  # the waits of gRPC itself add up to more than a minute
        for _ in range(TRIES):
            await knocks.acquire()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    server.close()
