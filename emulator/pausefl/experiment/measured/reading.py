"""Reads files of measured latencies: the client, time and unit of each, and which probes were lost."""

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pausefl.experiment.measured.formats import FORMATS, Format, Row, Unit, bytes_of, csv_table
from pausefl_proto.arrays import BoolArray, FloatArray
from pausefl_proto.number_types import Bounded, Positive

_SECONDS: Mapping[Unit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
# Few links have so great a median in seconds; files in milliseconds nearly always do.
_DOUBTFUL_MEDIAN_S = 10.0
_LOOKS = {
    b"PING": "ping",
    b"[{": "ripe-atlas",
    b"[": "ping",
    b'{"status"': "prometheus",
    b'{"fw"': "ripe-atlas",
    b"{": "iperf3",
    b"\x80": "fedscale",
}
"""The first bytes, without white space, of files that are no CSV files, and the format of these files."""

Spelling = Callable[[str, str], str]
"""(name, value) -> the option as the caller's user writes it: on the command line or in TOML."""


def as_option(name: str, value: str) -> str:
    """An option for reading files as text of the command line: its name and its value."""
    return shlex.join([f"--{name.replace('_', '-')}", value])


Probe = tuple[float, float, bool]
"""A row of a file: when, the latency in seconds, and whether it was lost. It then lasts until the sender gave up."""


def in_order(probes: Sequence[Probe]) -> tuple[FloatArray, BoolArray]:
    """(n,) seconds, and (n,) whether the probe was lost, both in the order of time."""
    ordered = sorted(probes, key=lambda probe: probe[0])
    return np.array([seconds for _, seconds, _ in ordered]), np.array([lost for *_, lost in ordered], np.bool_)


@dataclass(frozen=True, kw_only=True)
class Reading(Bounded):
    """Options for reading a file of latencies: its format, its columns and its rows."""

    format: str = "csv"
    """The format of the file: "csv", "ping" (`ping -D`), "ripe-atlas", "iperf3" (`-J`), "prometheus" (`query_range`),
    "k6", "locust", "ndt", "wondernetwork" or "fedscale". Other keys may be left out if the format defines them."""
    column: str | None = None
    """The column that holds the delays. The default for a CSV file is "seconds"."""
    unit: Unit | None = None
    """The unit of the delays. By default the format's, or else seconds; values like milliseconds are then refused."""
    client_column: str | None = None
    """The column that names the client of each row."""
    time_column: str | None = None
    """The column of times, as numbers or ISO 8601 dates. By default the format's; without one, rows are in order."""
    filter: tuple[str, ...] = ()
    """The conditions that a row must meet to count, as texts "column=value"."""
    lost: tuple[str, ...] = ()
    """The texts in place of the delay of a lost probe, or one that timed out. It counts as longer than `timeout_s`."""
    timeout_s: Positive | None = None
    """How long the sender waited for the answer to a lost probe."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f'format = "{self.format}": must be one of {", ".join(FORMATS)}')
        if self.unit not in (None, *_SECONDS):
            raise ValueError(f'unit = "{self.unit}": must be one of {", ".join(_SECONDS)}')
        super().__post_init__()

    def measured(self, file: Path, spelt: Spelling, *, by_client: bool, above_zero: bool) -> dict[str, list[Probe]]:
        """The rows of each client in a file, by the client's name there. All rows are under "" unless `by_client`.

        A ValueError names the line and the column, and the option that helps, but not the file.
        """
        data = bytes_of(file)
        try:
            return self._measured(data, spelt, by_client=by_client, above_zero=above_zero)
        except ValueError as error:
            looks = _format_seen(data)
            is_other = looks != self.format and (self.format == "csv" or isinstance(error, _OtherFormatError))
            raise ValueError(f"{error}; try {spelt('format', looks)}" if is_other else str(error)) from error

    def _measured(self, data: bytes, spelt: Spelling, *, by_client: bool, above_zero: bool) -> dict[str, list[Probe]]:
        form = FORMATS[self.format]
        header, rows = self._table(data, form)

        def place_of(column: str, option: str) -> int:
            return _place(header, column, f"{form.counted} 1", spelt(option, "NAME"))

        value = place_of(self.column or form.column, "column")
        client = place_of(self.client_column or form.client, "client_column") if by_client else None
        time = self.time_column or (form.time if form.time.casefold() in map(str.casefold, header) else None)
        when = None if time is None else place_of(time, "time_column")
        asked = {each.partition("=")[0].strip() for each in self.filter}
        own = [each for each in form.filter if each.partition("=")[0] not in asked]
        conditions = [_condition(each, place_of, spelt) for each in (*self.filter, *own)]
        unit = self.unit or form.unit
        found: dict[str, list[Probe]] = {}
        first = ""
        for number, row in rows:
            cells = row + [""] * (len(header) - len(row))
            if cells[value] in form.skipped or any(cells[place] != wanted for place, wanted in conditions):
                continue
            at = f"{form.counted} {number}"
            if client is not None and not cells[client]:
                raise ValueError(f"{at} does not say whose latency it is (column {header[client]})")
            of_client = found.setdefault("" if client is None else cells[client], [])
            is_lost = cells[value] in (self.lost or form.lost)
            if is_lost and self.timeout_s is None:
                raise ValueError(f"{at} is a lost probe; say how long it was waited for: {spelt('timeout_s', '5.0')}")
            place = f"{at} has {quoted(cells[value])} for {header[value]}"
            first = first or ("" if is_lost else place)
            seconds = 0.0 if is_lost else _number(cells[value], place, spelt, above_zero=above_zero)
            lasted_s = self.timeout_s or 0.0 if is_lost else _SECONDS[unit or "s"] * seconds
            told = number if when is None else _time(cells[when], f"{at} has {quoted(cells[when])} for {time}", spelt)
            of_client.append((told, lasted_s, is_lost))
        if rows and not found and self.filter:
            held = sorted({cell for _, row in rows for cell in row[conditions[0][0] :][:1]})
            held[8:] = ["…"] * (len(held) > 8)
            raise ValueError(f"no row passes {spelt('filter', self.filter[0])} (there is: {', '.join(held)})")
        if len(found) > 1:
            found.pop(form.summed, None)
        if unit is None:
            _question(found.values(), first, spelt)
        return found

    def _table(self, data: bytes, form: Format) -> tuple[list[str], list[Row]]:
        if form.table is csv_table and FORMATS[_format_seen(data)].table is not csv_table:
            raise _OtherFormatError("line 1 is no header of a CSV file")
        try:
            header, rows = form.table(data)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            if form.table is csv_table:
                raise
            raise _OtherFormatError(f'is not of the format "{self.format}" ({_in_words(error)})') from error
        if form.table is not csv_table and not rows:
            raise _OtherFormatError(f'holds nothing of the format "{self.format}"')
        return header, rows


def _question(found: Iterable[list[Probe]], first: str, spelt: Spelling) -> None:
    """Raise ValueError if seconds look like milliseconds. `first` describes the first value."""
    values = [seconds for each in found for _, seconds, is_lost in each if not is_lost]
    if values and (median := float(np.median(values))) > _DOUBTFUL_MEDIAN_S:
        raise ValueError(
            f"{first}, and the median is {median:g}, which looks like milliseconds; add {spelt('unit', 'ms')}, or"
            f" {spelt('unit', 's')} if they are seconds"
        )


class _OtherFormatError(ValueError):
    """The file does not have the format that the user named."""


def _format_seen(data: bytes) -> str:
    """The format that a file seems to have, by its first bytes or by the columns in its first line."""
    start = b"".join(data[:100].split())
    if begun := next((name for magic, name in _LOOKS.items() if start.startswith(magic)), ""):
        return begun
    names = {name.strip(' "\r') for name in data.lstrip().partition(b"\n")[0].decode("utf-8", "ignore").split(",")}
    columns = {name: {form.column, form.client, form.time} for name, form in FORMATS.items() if form.table is csv_table}
    return next((name for name, needed in columns.items() if needed <= names), "csv")


def _place(header: list[str], column: str, line: str, option: str) -> int:
    """The index of the column of this name; case does not matter. Raises ValueError unless there is exactly one."""
    for names, name in ((header, column), ([each.casefold() for each in header], column.casefold())):
        if (times := names.count(name)) > 1:
            raise ValueError(f'{line} has {times} columns "{column}"')
        if times:
            return names.index(name)
    raise ValueError(f'{line} has no column "{column}" (it has: {", ".join(header)}); say which: {option}')


def quoted(text: str) -> str:
    """The content of a cell as error messages show it."""
    return json.dumps(text[:80], ensure_ascii=False) if text else "nothing"


def _in_words(error: Exception) -> str:
    """A few words on where a file departs from its format."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, KeyError):
        return f'no "{error.args[0]}" where one was due'
    return str(error) if isinstance(error, ValueError) else "its parts are of other kinds"


def _condition(text: str, place_of: Callable[[str, str], int], spelt: Spelling) -> tuple[int, str]:
    column, equals, wanted = text.partition("=")
    if not equals:
        raise ValueError(f"{spelt('filter', text)}: must be COLUMN=VALUE")
    return place_of(column.strip(), "filter"), wanted.strip()


def _number(text: str, place: str, spelt: Spelling, *, above_zero: bool) -> float:
    value = math.nan
    with suppress(ValueError):
        value = float(text)
    if math.isfinite(value) and (value > 0 or (value == 0 and not above_zero)):
        return value
    options = f"{spelt('lost', text)} and {spelt('timeout_s', '5.0')}"
    hint = f"; if its probe was lost, add {options}, how long it was waited for" if text.isprintable() else ""
    if re.fullmatch(r"[\d.]*,[\d.,]*", text):
        hint = "; decimals need a point, and thousands no mark"
    raise ValueError(f"{place}: must be a number {'above 0' if above_zero else 'of at least 0'}{hint}")


def _time(text: str, place: str, spelt: Spelling) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    with suppress(ValueError):
        time = datetime.fromisoformat(text.removesuffix(" UTC"))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    due = "must be a number or an ISO 8601 date, such as 2026-03-01T10:00:00Z"
    raise ValueError(f"{place}: {due}; rows in order need no {spelt('time_column', 'NAME')}, and no column time")
