"""Settings of a client's session: who the client is, its way to the server, and what its process shares."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from pausefl_client.answered_job import OnAnswered
from pausefl_client.jobs import Expecting
from pausefl_client.reconnection import RETRY_EVERY_S
from pausefl_process.host_monitor import UNWATCHED, HostWatch
from pausefl_proto.endpoint import HELLOS_AT_ONCE


class StreamToServer(Protocol):
    """The bidirectional stream to the server, one message a call; OSError when it breaks."""

    async def read(self) -> bytes | None:
        """The next message's bytes, None when the server has closed the stream."""

    async def write(self, message: bytes) -> None:
        """Send one message."""


# Entered for every job, so made once.
_NOTHING = contextlib.nullcontext()

Connect = Callable[[], contextlib.AbstractAsyncContextManager[StreamToServer]]
"""Opens a fresh stream; OSError when the server does not answer."""


@dataclass(frozen=True)
class ClientSettings:
    """A client's identity and behaviour."""

    client_id: str
    schedule: str
    """The privacy it agreed to (`release.schedule_key`), empty in a run without privacy."""
    agreement: Mapping[str, str] = field(default_factory=dict)
    """Values that the run must share with this client: key of the experiment -> value as JSON."""
    discloses_loss: bool = False
    statistics: Mapping[str, float] = field(default_factory=dict)
    """More that it was told to disclose, un-noised, with every update."""
    run_id: str = ""
    """The run that it is made for; empty: whichever the server plays."""
    give_up_after_s: float = 60.0
    """How long to keep trying to reach the server before leaving."""
    welcome_within_s: float = 30.0
    """How long one try may take, from opening a stream to the server's welcome."""
    retry_every_s: float = RETRY_EVERY_S
    """The first wait between two tries, give or take a half; each further one is twice as long, up to some seconds."""


@dataclass(frozen=True)
class HostResources:
    """Resources that the sessions of one process share."""

    executor: Executor | None
    """Trains, adds noise and checks great models, away from the event loop; None: on it, for work that is shorter than
    the way to a thread and back (0.1 ms)."""
    clock: Callable[[], float] = time.monotonic
    """The time in seconds."""
    monitor: HostWatch = UNWATCHED
    on_answered: OnAnswered = lambda _: None
    hello_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HELLOS_AT_ONCE))
    """Held from opening a stream to its welcome: a server sends those away that come to it in a crowd."""
    expecting: Expecting = lambda *_: _NOTHING
