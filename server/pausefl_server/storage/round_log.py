"""Reads the log from a run's database one round at a time, so that memory does not grow with the log."""

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

from pausefl_server.records import LogEvent, Miss, RoundRecord
from pausefl_server.storage.rows import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    MISS_COLUMNS,
    OBSERVATION_COLUMNS,
    miss_of,
    observation_of,
    record_of,
)

OpenDatabase = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Returns a context manager that opens a run's database for a block, possibly read-only."""


class RoundLog(Collection[RoundRecord]):
    """The committed rounds, in order, as of the time the object is made. Each iteration reads them from the database.

    No list of them is kept, because an observation takes a kilobyte as an object.
    """

    def __init__(self, database: OpenDatabase, last: int | None = None) -> None:
        """`last`: the last round to read. None: the last committed round."""
        self._database = database
        self.last: int
        """The last round to read; 0 if there is none."""
        with database() as opened:
            self._length, self.last = opened.execute(_COUNT_ROUNDS, (last, last)).fetchone()

    def up_to(self, round: int) -> "RoundLog":
        """The log up to and including this round."""
        return RoundLog(self._database, min(round, self.last))

    def failed_attempts(self) -> list[RoundRecord]:
        """The failed attempts at the round after the last one, in order. No client answered these."""
        with self._database() as database:
            return list(_attempts(database, self.last + 1))

    def __len__(self) -> int:
        return int(self._length)

    def __iter__(self) -> Iterator[RoundRecord]:
        with self._database() as database:
            for row in database.execute(_SELECT_COMMITTED, (self.last,)):
                failed = tuple(_attempts(database, row[0]))
                observed = tuple(map(observation_of, database.execute(SELECT_OBSERVATIONS, row[:1])))
                yield record_of(row, observed, *_told(database, row), failed)

    def __contains__(self, record: object) -> bool:
        return any(each == record for each in self)


def _attempts(database: sqlite3.Connection, round: int) -> Iterator[RoundRecord]:
    for row in database.execute(SELECT_FAILED, (round,)):
        yield record_of(row, (), *_told(database, row), ())


def _told(database: sqlite3.Connection, attempt: tuple[Any, ...]) -> tuple[tuple[LogEvent, ...], tuple[Miss, ...]]:
    """The events and misses of an attempt, given its row."""
    events, misses = database.execute(SELECT_EVENTS, attempt[:2]), database.execute(_SELECT_MISSES, attempt[:2])
    return tuple(LogEvent(*row) for row in events), tuple(map(miss_of, misses))


_COUNT_ROUNDS = "SELECT count(*), coalesce(max(round), 0) FROM rounds WHERE ? IS NULL OR round <= ?"
_ATTEMPT = ", ".join(ATTEMPT_COLUMNS)
_SELECT_COMMITTED = f"SELECT {_ATTEMPT} FROM rounds WHERE round <= ? ORDER BY round"
SELECT_FAILED = f"SELECT {_ATTEMPT} FROM failed_attempts WHERE round = ? ORDER BY attempt"
SELECT_OBSERVATIONS = f"SELECT {', '.join(OBSERVATION_COLUMNS)} FROM observations WHERE round = ? ORDER BY client_id"
SELECT_EVENTS = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE round = ? AND attempt = ? ORDER BY sequence"
_SELECT_MISSES = f"SELECT {', '.join(MISS_COLUMNS)} FROM misses WHERE round = ? AND attempt = ? ORDER BY client_id"
