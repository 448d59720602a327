"""Latencies to fit laws to: of a run's log, or of a CSV file with a row per exchange."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from pausefl.config.delays.rows import place_of, read_measurements
from pausefl.results.reading import open_database
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import ConfigError
from pausefl_server.records import Miss, RoundRecord
from pausefl_server.storage.round_log import RoundLog
from pausefl_server.storage.seals import check_seals

COLUMNS = ("client", "time", "seconds")
"""The columns that a CSV file must have: whose exchange, when, and how long it took."""
_BOUNDING = ("unneeded", "timeout")


@dataclass(frozen=True)
class ClientLatencies:
    """One client's latencies in the order they were measured."""

    seconds: FloatArray
    """(n,) all above 0."""
    round: IntArray
    """(n,) ascending: the round of each, or its place where rounds are not known."""
    bounds_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """(k,) lower bounds of further latencies: of answers that were not waited for, or not in time."""
    missed: int = 0
    """How many other jobs had no answer: these say nothing of a latency."""


@dataclass(frozen=True)
class _MeasuredRows:
    when: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bounds_s: list[float] = field(default_factory=list)
    others: list[Miss] = field(default_factory=list)


def latencies_of(source: Path) -> Mapping[str, ClientLatencies]:
    """The latencies of a run directory or a CSV file, by client; ConfigError, with the line, for what is neither."""
    found = _of_run(source) if source.is_dir() else _of_csv(source)
    if not found:
        raise ConfigError(f"{source}: holds no latencies")
    return found


def _of_run(run_dir: Path) -> dict[str, ClientLatencies]:
    """The signal that the policy saw, `latency.signal`, at the emulated scale."""
    rows: dict[str, _MeasuredRows] = {}
    with open_database(run_dir) as database:
        check_seals(run_dir / "run.db", database)
    for record in RoundLog(partial(open_database, run_dir)):
        for o in record.observations:
            of_client = rows.setdefault(o.client_id, _MeasuredRows())
            of_client.when.append(record.round)
            of_client.seconds.append(o.latency_s)
        for miss in _misses(record.attempts):
            of_client = rows.setdefault(miss.client_id, _MeasuredRows())
            if miss.kind in _BOUNDING and miss.latency_s > 0:
                of_client.bounds_s.append(miss.latency_s)
            else:
                of_client.others.append(miss)
    return {
        client_id: ClientLatencies(np.array(r.seconds), np.array(r.when, np.int64), np.array(r.bounds_s), len(r.others))
        for client_id, r in sorted(rows.items())
        if r.seconds or r.bounds_s
    }


def _misses(attempts: Sequence[RoundRecord]) -> list[Miss]:
    return [miss for attempt in attempts for miss in attempt.misses]


def _of_csv(file: Path) -> dict[str, ClientLatencies]:
    rows: dict[str, _MeasuredRows] = {}
    try:
        header, numbered = read_measurements(file)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    places = [_place(file, header, name) for name in COLUMNS]
    for line, cells in numbered:
        if cells:
            _take(rows, file, line, [cells[p].strip() if p < len(cells) else "" for p in places])
    return {client_id: _in_order(of_client) for client_id, of_client in rows.items()}


def _place(file: Path, header: list[str], name: str) -> int:
    try:
        return place_of(name, header)
    except ValueError as error:
        raise ConfigError(f"{file}: column {name} (of {', '.join(COLUMNS)}): {error}") from None


def _take(rows: dict[str, _MeasuredRows], file: Path, line: int, cells: Sequence[str]) -> None:
    client, time, seconds = cells
    if not client:
        raise ConfigError(f"{file}: line {line} does not say whose latency it is")
    of_client = rows.setdefault(client, _MeasuredRows())
    of_client.when.append(_number(file, line, "time", time, least=-math.inf))
    of_client.seconds.append(_number(file, line, "seconds", seconds, least=0.0))


def _number(file: Path, line: int, column: str, text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > least):
        must = "a number" if least < 0 else "a number above 0"
        raise ConfigError(f"{file}: line {line} has {text or 'nothing'} for {column}: must be {must}")
    return value


def _in_order(rows: _MeasuredRows) -> ClientLatencies:
    order = np.argsort(rows.when, kind="stable")
    return ClientLatencies(np.array(rows.seconds)[order], np.arange(1, len(order) + 1))
