"""Measured delays: a column of a CSV file as a law, one for all clients or one for each."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from pausefl.config.delays.rows import NumberedRows, place_of, read_measurements
from pausefl.delays import Empirical, Recorded

Unit = Literal["s", "ms"]
_SECONDS: Mapping[Unit, float] = {"s": 1.0, "ms": 1e-3}
# Few links take so long in the median; a file of milliseconds always seems to.
_DOUBTFUL_MEDIAN_S = 10.0


@dataclass(frozen=True)
class ClientPlace:
    """A client among all of its experiment."""

    client_id: str
    place: int
    """Its position among the experiment's clients, from 0."""
    client_ids: frozenset[str]


@dataclass(frozen=True)
class MeasuredDelays:
    """Measured delays from a column of a CSV file: one law for all clients, or one for each."""

    file: str
    """The CSV file, relative to the experiment's file."""
    column: str
    """The column that holds the delays."""
    client_column: str | None = None
    """The column that says whose delay a row holds. Without it, all clients have one law."""
    unit: Unit | None = None
    """The unit of the delays. Without it seconds, and values that look like milliseconds are questioned."""
    order: Literal["drawn", "recorded"] = "drawn"
    """ "drawn": values are drawn with replacement. "recorded": round t has the t-th value, and after the last comes
    the first."""

    def law(self, client: ClientPlace) -> Empirical | Recorded:
        """The law of one client; ValueError that names the key, or the file and line.

        Clients are looked up by id where the file names any of the experiment's. Where it has names of its own, the
        experiment's k-th client has the delays of the k-th name in the file.
        """
        by_client = _by_client(self.file, self.column, self.client_column, self.unit)
        values_s = by_client[self._name(client, list(by_client))]
        return Empirical(values_s) if self.order == "drawn" else Recorded(values_s)

    def _name(self, client: ClientPlace, names: Sequence[str]) -> str:
        if self.client_column is None:
            return ""
        if _names_any(self.file, self.client_column, client.client_ids):
            if client.client_id not in names:
                raise ValueError(f'client_column = "{self.client_column}": {self.file} has no {client.client_id}')
            return client.client_id
        if client.place >= len(names):
            raise ValueError(
                f'client_column = "{self.client_column}": {self.file} has {len(names)} clients, the experiment'
                f" {len(client.client_ids)}"
            )
        return names[client.place]


@cache  # read once for all clients
def _by_client(file: str, column: str, client_column: str | None, unit: Unit | None) -> Mapping[str, tuple[float, ...]]:
    """The delays of each client in seconds, in the order of the file; all under "" without a column of clients."""
    header, rows = _table(file)
    place = _place(header, "column", column, file)
    owner = None if client_column is None else _place(header, "client_column", client_column, file)
    found: dict[str, list[float]] = {}
    for line, row in rows:
        value = _number(row[place : place + 1], file, line)
        name = "" if owner is None else _owner(row[owner : owner + 1], file, line)
        found.setdefault(name, []).append(value * _SECONDS[unit or "s"])
    if not found:
        raise ValueError(f'file = "{file}": holds no values')
    if unit is None:
        _doubt(found, file)
    return {name: tuple(values_s) for name, values_s in found.items()}


@cache
def _names_any(file: str, client_column: str, client_ids: frozenset[str]) -> bool:
    """Whether the file names a client of the experiment."""
    header, rows = _table(file)
    place = header.index(client_column)
    return any(row[place] in client_ids for _, row in rows)


def _table(file: str) -> tuple[list[str], NumberedRows]:
    """The header and the rows."""
    try:
        return read_measurements(Path(file))
    except ValueError as error:
        raise ValueError(f'file = "{file}": {error}') from error


def _place(header: list[str], key: str, column: str, file: str) -> int:
    try:
        return place_of(column, header)
    except ValueError as error:
        raise ValueError(f'{key} = "{column}": {file}: {error}') from None


def _number(cell: list[str], file: str, line: int) -> float:
    """The delay in a row's cell; an empty list is a row that ends before it."""
    text = cell[0] if cell else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        found = json.dumps(text) if text else "a hole"
        raise ValueError(f'file = "{file}": line {line} has {found} where a delay was due')
    return value


def _owner(cell: list[str], file: str, line: int) -> str:
    if not cell or not cell[0]:
        raise ValueError(f'file = "{file}": line {line} does not say whose delay it is')
    return cell[0]


def _doubt(found: Mapping[str, Sequence[float]], file: str) -> None:
    """ValueError where nothing says that the values are seconds, and they hardly can be."""
    median = float(np.median(np.concatenate([np.asarray(values) for values in found.values()])))
    if median > _DOUBTFUL_MEDIAN_S:
        raise ValueError(
            f'file = "{file}": its median is {median:g}, which looks like milliseconds; add unit = "ms", or unit = "s"'
            " if they are seconds"
        )
