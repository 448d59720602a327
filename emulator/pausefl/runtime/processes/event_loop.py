"""The event loop of processes that use gRPC: it takes one turn for all pending gRPC events, not one for each."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Arguments = TypeVarTuple("Arguments")

_MOST_BYTES = 4096


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
            super().add_reader(fd, _once_for_all(fd, callback), *args)
        else:
            super().add_reader(fd, callback, *args)


def _once_for_all(
    signals: socket.socket, handle_events: Callable[[Unpack[Arguments]], Any]
) -> Callable[[Unpack[Arguments]], None]:
    """A function that lets gRPC take all pending bytes one by one. It polls after each byte, so no event is missed."""

    def handle(*args: *Arguments) -> None:
        with suppress(BlockingIOError):  # another thread's loop may take bytes meanwhile
            for _ in signals.recv(_MOST_BYTES, socket.MSG_PEEK) or b"\0":  # at the end of the file, gRPC is called once
                handle_events(*args)

    return handle
