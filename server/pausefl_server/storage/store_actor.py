"""The actor that writes run.db and the checkpoint in its own thread."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pausefl_process.databases import unharmed
from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import Vector
from pausefl_server.actor import Actor
from pausefl_server.records import LogEvent, Ping, RoundRecord
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store

Write = Callable[[Store], None]
"""A write to run.db, as a function of the store."""


class StoreActor(Actor[Write]):
    """Owns run.db and the checkpoint. Every write runs in the actor's own thread, never on the event loop."""

    def __init__(self, store: Store, checkpoint: Checkpoint, keep_every: int = 0) -> None:
        """`keep_every`: keep every n-th round's model, so that the run can go back to it. 0: keep none."""
        super().__init__("store")
        self._keep_every = keep_every
        self._store = store
        self._checkpoint = checkpoint
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def commit_round(
        self,
        record: RoundRecord,
        theta: Vector,
        pings: Iterable[Ping] = (),
        optimizer_state: Vector | None = None,
        later_events: Sequence[LogEvent] = (),
    ) -> None:
        """Write θ_t, then the round with events of the next one. Returns when both are on disk."""

        def make_durable() -> None:
            self._checkpoint.sync()
            if self._keep_every and record.round % self._keep_every == 0:
                self._checkpoint.keep(record.round, theta, optimizer_state)

        def write(store: Store) -> None:
            self._checkpoint.write(record.round, theta)
            store.commit_round(record, pings, optimizer_state, later_events, before_commit=make_durable)

        await self.ask(write)

    async def receive(self, message: Write) -> None:
        """Write, and return when the data are durable. PauseflError if they cannot be written."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, message, self._store)
        except (sqlite3.Error, OSError) as error:
            why = unharmed(error) or f"cannot be written ({error})"
            raise PauseflError(f"the run's log: {why}") from error

    async def on_stop(self) -> None:
        self._thread.shutdown(wait=True)
