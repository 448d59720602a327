"""The actor that writes run.db and the checkpoint in its own thread, and the messages it takes."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pausefl_process.databases import unharmed
from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import Vector
from pausefl_server.actor import Actor
from pausefl_server.pings import Ping
from pausefl_server.records import LogEvent, RoundRecord
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store


@dataclass(frozen=True, slots=True)
class CommitRound:
    """Write θ_t, then the round. The answer comes when both are on disk."""

    record: RoundRecord
    theta: Vector
    pings: tuple[Ping, ...] = ()
    optimizer_state: Vector | None = None
    later_events: tuple[LogEvent, ...] = ()
    """Events that belong to the next round."""


Write = CommitRound | Callable[[Store], None]
"""A round with its model, or any other write to run.db, as a function of the store."""


class StoreActor(Actor[Write]):
    """Owns run.db and the checkpoint. Every write runs in the actor's own thread, never on the event loop."""

    def __init__(self, store: Store, checkpoint: Checkpoint, keep_every: int = 0) -> None:
        """`keep_every`: keep every n-th round's model, so that the run can go back to it. 0: keep none."""
        super().__init__("store")
        self._keep_every = keep_every
        self._store = store
        self._checkpoint = checkpoint
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def receive(self, message: Write) -> None:
        """Write, and return when the data are durable. PauseflError if they cannot be written."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, message)
        except (sqlite3.Error, OSError) as error:
            raise PauseflError(f"the run's log cannot be written: {unharmed(error) or error}") from error

    async def on_stop(self) -> None:
        self._thread.shutdown(wait=True)

    def _write(self, message: Write) -> None:
        if not isinstance(message, CommitRound):
            message(self._store)
            return
        record, theta, state = message.record, message.theta, message.optimizer_state
        self._checkpoint.write(record.round, theta)
        made_durable = partial(self._make_durable, record.round, theta, state)
        self._store.commit_round(record, message.pings, state, message.later_events, before_commit=made_durable)

    def _make_durable(self, round: int, theta: Vector, optimizer_state: Vector | None) -> None:
        self._checkpoint.sync(round)
        if self._keep_every and round % self._keep_every == 0:
            self._checkpoint.keep(round, theta, optimizer_state)
