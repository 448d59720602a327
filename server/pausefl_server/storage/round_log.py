"""The log's records as rows of run.db's tables, and the log read back one round at a time."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from pausefl_process.host_monitor import HostReport
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing

_NOT_IN_ITS_ROW = {"observations", "events", "host", "misses", "failed_attempts"}
_ROUND = tuple(f.name for f in fields(RoundRecord) if f.name not in _NOT_IN_ITS_ROW)
EVENT_COLUMNS = tuple(f.name for f in fields(LogEvent))
MISS_COLUMNS = tuple(f.name for f in fields(Miss))
_TIMING = tuple(f.name for f in fields(Timing))
_HOST = tuple(f.name for f in fields(HostReport))
_SCALARS = tuple(f.name for f in fields(Observation) if f.name not in {"timing", "host", "suspect", "statistics"})
ATTEMPT_COLUMNS = (*_ROUND, *_HOST)
OBSERVATION_COLUMNS = (*_SCALARS, *_TIMING, *_HOST, "suspect", "statistics")

event_values = attrgetter(*EVENT_COLUMNS)
miss_values = attrgetter(*MISS_COLUMNS)
_scalar_values = attrgetter(*_SCALARS)
_timing_values = attrgetter(*_TIMING)
_host_values = attrgetter(*_HOST)
_json = json.JSONEncoder(default=dict).encode  # takes any mapping


def round_row(record: RoundRecord) -> tuple[Any, ...]:
    """The row of `rounds` or `failed_attempts` for a round."""
    values = (getattr(record, name) for name in _ROUND)
    return (*(_json(v) if isinstance(v, tuple | Mapping) else v for v in values), *_host_values(record.host))


def observation_row(round: int, o: Observation) -> tuple[Any, ...]:
    """The row of `observations` for an observation."""
    statistics = _json(o.statistics) if o.statistics else "{}"  # at once: most observations have none
    return (round, *_scalar_values(o), *_timing_values(o.timing), *_host_values(o.host), _json(o.suspect), statistics)


def _observation_of(row: tuple[Any, ...]) -> Observation:
    """The observation from its row, without the round's column."""
    n, m = len(_SCALARS), len(_SCALARS) + len(_TIMING)
    scalars = dict(zip(_SCALARS, row[:n], strict=True)) | {"suspect": tuple(json.loads(row[-2]))}
    scalars["teaches"] = bool(scalars["teaches"])
    timing, host = Timing(*row[n:m]), HostReport(*row[m:-2])
    return Observation(timing=timing, host=host, statistics=json.loads(row[-1]), **scalars)


OpenDatabase = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Returns a context manager that opens a run's database for a block, possibly read-only."""


class RoundLog(Iterable[RoundRecord]):
    """The committed rounds, in order, as of the time the object is made. Each iteration reads them from the database.

    No list of them is kept, because an observation takes a kilobyte as an object: memory does not grow with the log.
    """

    def __init__(self, database: OpenDatabase) -> None:
        self._database = database
        self.last: int
        """The last round to read; 0 if there is none."""
        with database() as opened:
            self._length, self.last = opened.execute(_COUNT_ROUNDS).fetchone()

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
                observed = tuple(map(_observation_of, database.execute(SELECT_OBSERVATIONS, row[:1])))
                yield _record(database, row, observed, failed)


def _attempts(database: sqlite3.Connection, round: int) -> Iterator[RoundRecord]:
    for row in database.execute(SELECT_FAILED, (round,)):
        yield _record(database, row)


def _record(
    database: sqlite3.Connection,
    row: tuple[Any, ...],
    observations: tuple[Observation, ...] = (),
    failed_attempts: tuple[RoundRecord, ...] = (),
) -> RoundRecord:
    """The record of an attempt from its row, with its events and misses from the other tables."""
    values = dict(zip(_ROUND, row[: len(_ROUND)], strict=True))
    values["chosen"] = tuple(json.loads(values["chosen"]))
    values["weights"] = None if values["weights"] is None else tuple(json.loads(values["weights"]))
    values["details"] = json.loads(values["details"])
    values["suspect"] = tuple(json.loads(values["suspect"]))
    return RoundRecord(
        observations=observations,
        events=tuple(LogEvent(*event) for event in database.execute(SELECT_EVENTS, row[:2])),
        misses=tuple(replace(Miss(*m), teaches=bool(m[-1])) for m in database.execute(_SELECT_MISSES, row[:2])),
        failed_attempts=failed_attempts,
        host=HostReport(*row[len(_ROUND) :]),
        **values,
    )


_COUNT_ROUNDS = "SELECT count(*), coalesce(max(round), 0) FROM rounds"
_ATTEMPT = ", ".join(ATTEMPT_COLUMNS)
_SELECT_COMMITTED = f"SELECT {_ATTEMPT} FROM rounds WHERE round <= ? ORDER BY round"
SELECT_FAILED = f"SELECT {_ATTEMPT} FROM failed_attempts WHERE round = ? ORDER BY attempt"
SELECT_OBSERVATIONS = f"SELECT {', '.join(OBSERVATION_COLUMNS)} FROM observations WHERE round = ? ORDER BY client_id"
SELECT_EVENTS = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE round = ? AND attempt = ? ORDER BY sequence"
_SELECT_MISSES = f"SELECT {', '.join(MISS_COLUMNS)} FROM misses WHERE round = ? AND attempt = ? ORDER BY client_id"
