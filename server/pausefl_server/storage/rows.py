"""Converts records of the log to rows of run.db's tables, and back."""

import json
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from pausefl_process.host_monitor import HostReport
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing

_NOT_IN_ITS_ROW = {"observations", "events", "host", "misses", "failed_attempts"}
ROUND_COLUMNS = tuple(f.name for f in fields(RoundRecord) if f.name not in _NOT_IN_ITS_ROW)
EVENT_COLUMNS = tuple(f.name for f in fields(LogEvent))
MISS_COLUMNS = tuple(f.name for f in fields(Miss))
_TIMING = tuple(f.name for f in fields(Timing))
HOST_COLUMNS = tuple(f.name for f in fields(HostReport))
_SCALARS = tuple(f.name for f in fields(Observation) if f.name not in {"timing", "host", "suspect", "statistics"})
ATTEMPT_COLUMNS = (*ROUND_COLUMNS, *HOST_COLUMNS)
OBSERVATION_COLUMNS = (*_SCALARS, *_TIMING, *HOST_COLUMNS, "suspect", "statistics")

event_values = attrgetter(*EVENT_COLUMNS)
miss_values = attrgetter(*MISS_COLUMNS)
_scalar_values = attrgetter(*_SCALARS)
_timing_values = attrgetter(*_TIMING)
_host_values = attrgetter(*HOST_COLUMNS)
_json = json.JSONEncoder(default=dict).encode  # takes any mapping


def round_row(record: RoundRecord) -> tuple[Any, ...]:
    """The row of `rounds` or `failed_attempts` for a round."""
    values = (getattr(record, name) for name in ROUND_COLUMNS)
    return (*(_json(v) if isinstance(v, tuple | Mapping) else v for v in values), *_host_values(record.host))


def record_of(
    row: tuple[Any, ...],
    observations: tuple[Observation, ...],
    events: tuple[LogEvent, ...],
    misses: tuple[Miss, ...],
    failed_attempts: tuple[RoundRecord, ...],
) -> RoundRecord:
    """The record of a round, from its row and its records from the other tables."""
    values = dict(zip(ROUND_COLUMNS, row[: len(ROUND_COLUMNS)], strict=True))
    values["chosen"] = tuple(json.loads(values["chosen"]))
    values["weights"] = None if values["weights"] is None else tuple(json.loads(values["weights"]))
    values["details"] = json.loads(values["details"])
    values["suspect"] = tuple(json.loads(values["suspect"]))
    host = HostReport(*row[len(ROUND_COLUMNS) :])
    return RoundRecord(
        observations=observations, events=events, misses=misses, failed_attempts=failed_attempts, host=host, **values
    )


def observation_row(round: int, o: Observation) -> tuple[Any, ...]:
    """The row of `observations` for an observation."""
    statistics = _json(o.statistics) if o.statistics else "{}"  # at once: most observations have none
    return (round, *_scalar_values(o), *_timing_values(o.timing), *_host_values(o.host), _json(o.suspect), statistics)


def observation_of(row: tuple[Any, ...]) -> Observation:
    """The observation from its row, without the round's column."""
    n, m = len(_SCALARS), len(_SCALARS) + len(_TIMING)
    scalars = dict(zip(_SCALARS, row[:n], strict=True)) | {"suspect": tuple(json.loads(row[-2]))}
    scalars["teaches"] = bool(scalars["teaches"])
    timing, host = Timing(*row[n:m]), HostReport(*row[m:-2])
    return Observation(timing=timing, host=host, statistics=json.loads(row[-1]), **scalars)


def miss_of(row: tuple[Any, ...]) -> Miss:
    """The miss from its row, without the columns of round and attempt."""
    return Miss(**dict(zip(MISS_COLUMNS, row, strict=True)) | {"teaches": bool(row[-1])})
