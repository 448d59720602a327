"""The event loop of processes that use gRPC, and what such a process prints on SIGUSR1: what it waits for."""

import asyncio
import gc
import inspect
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_MOST_BYTES = 4096


def run_telling_waits(work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work in a new event loop, as asyncio.run does. Each SIGUSR1 writes `waits` to standard error.

    In other threads than the main one, SIGUSR1 is not handled: Python allows signal handlers in the main thread only.
    """

    async def told() -> Result:
        with _told_on_sigusr1():
            return await work

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(told())


def waits() -> Iterator[str]:
    """A line for each task of the running event loop: its name, and where it stands, outermost call first."""
    for task in asyncio.all_tasks():
        yield f"{task.get_name()}: {' > '.join(_places(task.get_coro()))}"


@contextmanager
def _told_on_sigusr1() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former, loop = signal.getsignal(signal.SIGUSR1), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _tell)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, former)


def _tell() -> None:
    lines = [f"process {os.getpid()} waits:", *waits()]
    # In one piece: other processes write to the same log.
    print("".join(f"{line}\n" for line in lines), end="", file=sys.stderr, flush=True)


def _places(awaited: Any) -> Iterator[str]:
    """Yields "file.py:12 function" for each call that waits for the next; last, the type of the awaited object."""
    while awaited is not None:
        kind = next((kind for kind in ("cr", "ag", "gi") if getattr(awaited, f"{kind}_frame", None)), "")
        if kind:
            frame = getattr(awaited, f"{kind}_frame")
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
        elif (generator := _generator_of(awaited)) is not None:
            awaited = generator
        else:
            yield type(awaited).__name__
            return


def _generator_of(awaited: Any) -> Any:
    """The asynchronous generator whose next value is awaited, or None. `awaited` has no attribute that leads to it."""
    if not type(awaited).__name__.startswith("async_generator_"):
        return None
    return next(filter(inspect.isasyncgen, gc.get_referents(awaited)), None)


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's selector event loop, without the needless turns that gRPC causes.

    grpcio's thread writes a byte to a socket for each event. Its reader takes one byte, but handles all pending events.
    The bytes left over make the loop turn for nothing: some seventeen times in a round of ten clients, just while the
    round is written to the disk.
    """

    def add_reader(
        self, fd: "FileDescriptorLike", callback: Callable[[Unpack[Arguments]], Any], *args: *Arguments
    ) -> None:
        name = getattr(getattr(callback, "func", callback), "__name__", "")
        if isinstance(fd, socket.socket) and name == "_handle_events":
            super().add_reader(fd, _take_all, fd, callback, *args)
        else:
            super().add_reader(fd, callback, *args)


def _take_all(signals: socket.socket, handle_events: Callable[[Unpack[Arguments]], Any], *args: *Arguments) -> None:
    """Let gRPC take all pending bytes one by one. It polls after each byte, so no event is missed."""
    with suppress(BlockingIOError):  # another thread's loop may take bytes meanwhile
        for _ in signals.recv(_MOST_BYTES, socket.MSG_PEEK) or b"\0":  # at the end of the file, gRPC is called once
            handle_events(*args)
