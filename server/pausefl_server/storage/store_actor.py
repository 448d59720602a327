"""The actor that writes run.db and the checkpoint from a thread of its own."""

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
    """Make θ_t durable, then the round's row. Answered when both are on disk."""

    record: RoundRecord
    theta: Vector
    pings: tuple[Ping, ...] = ()
    optimizer_state: Vector | None = None
    later_events: tuple[LogEvent, ...] = ()
    """Events that belong to the next round."""


@dataclass(frozen=True, slots=True)
class SaveFailedAttempt:
    """Write down an attempt at the next round that no client answered."""

    record: RoundRecord
    pings: tuple[Ping, ...] = ()
    later_events: tuple[LogEvent, ...] = ()
    """Events that belong to the next attempt."""


@dataclass(frozen=True, slots=True)
class SaveEvaluations:
    """Write down how good θ_t is."""

    round: int
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True)
class SaveLateEvents:
    """Write down what happened after the last round."""

    round: int
    events: tuple[LogEvent, ...]
    is_end: bool = False
    """Whether the server ends here: no job is out that the log does not tell of."""


Write = CommitRound | SaveFailedAttempt | SaveEvaluations | SaveLateEvents


class StoreActor(Actor[Write]):
    """Owns run.db and the checkpoint; every write runs on one thread of its own, never on the event loop."""

    def __init__(self, store: Store, checkpoint: Checkpoint, keep_every: int = 0) -> None:
        """`keep_every`: keep the model of every so many rounds for good, to go back to; 0: of none."""
        super().__init__("store")
        self._keep_every = keep_every
        self._store = store
        self._checkpoint = checkpoint
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def receive(self, message: Write) -> None:
        """Write, and return once it is durable; PauseflError when the disk does not take it."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, message)
        except (sqlite3.Error, OSError) as error:
            raise PauseflError(f"the run's log cannot be written: {unharmed(error) or error}") from error

    async def on_stop(self) -> None:
        """Wait for the last write."""
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
