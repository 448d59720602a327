"""Settings of a client's session: the client's identity, its connection, and what the sessions of a process share."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from pausefl_client.jobs import Expecting, OnAnswered
from pausefl_client.reconnection import RETRY_EVERY_S
from pausefl_process.host_monitor import UNWATCHED, HostWatch
from pausefl_proto.endpoint import HELLOS_AT_ONCE
from pausefl_proto.wire import MessageStream

Connect = Callable[[], contextlib.AbstractAsyncContextManager[MessageStream]]
"""Opens a new stream to the server. Raises OSError if the server does not answer."""


@dataclass(frozen=True)
class ClientSettings:
    """A client's identity and behaviour."""

    client_id: str
    schedule: str
    """The privacy schedule that the client agreed to (`release.schedule_key`). Empty in a run without privacy."""
    agreement: Mapping[str, str] = field(default_factory=dict)
    """Settings that must be equal at the server and this client: key of the experiment -> value as JSON."""
    own_code: str = ""
    """The user's own modules that the client's part needs, with digests of their source: "module digest; ..."."""
    discloses_loss: bool = False
    """Whether results carry the training loss, without noise."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Statistics to send with every update, without noise: name -> value."""
    run_id: str = ""
    """The only run that the client takes part in. Empty: any run that the server plays."""
    give_up_after_s: float = 60.0
    """How long to keep trying to reach the server before giving up."""
    welcome_within_s: float = 30.0
    """How long one try may take, from opening a stream to the server's welcome."""
    retry_every_s: float = RETRY_EVERY_S
    """The first wait between two tries, randomly varied by up to half. Each further wait doubles, up to 5 s."""


@dataclass(frozen=True)
class HostResources:
    """Resources that the sessions of one process share."""

    executor: Executor | None
    """Runs training, noise and checks of large models off the event loop. None: they run on the event loop, for work
    shorter than the 0.1 ms that a thread switch takes."""
    monitor: HostWatch = UNWATCHED
    """Watches the host, and provides the clock of all sessions."""
    on_answered: OnAnswered = lambda _: None
    hello_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HELLOS_AT_ONCE))
    """Held from opening a stream to its welcome. A server turns clients away if too many say hello at once."""
    expecting: Expecting = lambda *_: contextlib.nullcontext()
