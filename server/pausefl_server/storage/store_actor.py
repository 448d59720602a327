"""The actor that writes run.db and the checkpoint in its own thread, and the messages it takes."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pausefl_process.databases import unharmed
from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import Vector
from pausefl_server.actor import Actor
from pausefl_server.pings import Ping
from pausefl_server.records import Evaluation, LogEvent, RoundRecord
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


@dataclass(frozen=True, slots=True)
class SaveFailedAttempt:
    """Write an attempt at the next round that no client answered."""

    record: RoundRecord
    pings: tuple[Ping, ...] = ()
    later_events: tuple[LogEvent, ...] = ()
    """Events that belong to the next attempt."""


@dataclass(frozen=True, slots=True)
class SaveEvaluations:
    """Write evaluations of θ_t."""

    round: int
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True)
class SaveLateEvents:
    """Write the events since the last round."""

    round: int
    events: tuple[LogEvent, ...]
    is_end: bool = False
    """Whether the server ends here, so that the log knows of every job that a client still has."""


Write = CommitRound | SaveFailedAttempt | SaveEvaluations | SaveLateEvents


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
        """Write the message's data, and return when they are durable. PauseflError if they cannot be written."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, message)
        except (sqlite3.Error, OSError) as error:
            raise PauseflError(f"the run's log cannot be written: {unharmed(error) or error}") from error

    async def on_stop(self) -> None:
        """Wait for the last write to end."""
        self._thread.shutdown(wait=True)

    def _write(self, message: Write) -> None:
        match message:
            case CommitRound(record, theta, pings, optimizer_state, later_events):
                self._checkpoint.write(record.round, theta)
                made_durable = partial(self._make_durable, record.round, theta, optimizer_state)
                self._store.commit_round(record, pings, optimizer_state, later_events, before_commit=made_durable)
            case SaveFailedAttempt(record, pings, later_events):
                self._store.save_failed_attempt(record, pings, later_events)
            case SaveEvaluations(round_, evaluations):
                self._store.save_evaluations(round_, evaluations)
            case SaveLateEvents(round_, events, is_end):
                self._store.save_late_events(round_, events, is_end=is_end)

    def _make_durable(self, round: int, theta: Vector, optimizer_state: Vector | None) -> None:
        self._checkpoint.sync(round)
        if self._keep_every and round % self._keep_every == 0:
            self._checkpoint.keep(round, theta, optimizer_state)
