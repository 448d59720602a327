"""Latency laws from TOML tables: `{ kind = "lognormal", mean_s = 0.2, sd_s = 0.1 }` and what is built of such tables.

Wherever a law takes a number, a table may stand instead: the number is then drawn once per client from that law.
"""

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from pausefl import delays
from pausefl.delays import Delay, Empirical, Floor, MarkovDelay
from pausefl_proto.errors import ConfigError

KINDS: Mapping[str, type[Any]] = {
    "none": delays.NoDelay,
    "constant": delays.Constant,
    "normal": delays.Normal,
    "lognormal": delays.LogNormal,
    "exponential": delays.Exponential,
    "gamma": delays.Gamma,
    "weibull": delays.Weibull,
    "pareto": delays.Pareto,
    "empirical": Empirical,
    "sum": delays.Sum,
    "mixture": delays.Mixture,
    "floor": Floor,
    "scale": delays.Scale,
    "schedule": delays.Schedule,
    "drift": delays.DelayDrift,
    "day": delays.DayCycle,
    "outage": delays.Outage,
    "markov": MarkovDelay,
}
"""The `kind` of a table -> the record its other keys make. Any kind also takes `floor_s`."""

RngFor = Callable[[str], np.random.Generator]
"""key -> the generator of what is drawn once for that key of one client's link."""


def read_delay(table: Mapping[str, Any], key: str, rng_for: RngFor) -> Delay:
    """The law a table describes; ConfigError naming the key. Draws of the whole must not be negative."""
    law = _read(table, key, rng_for)
    if not _is_numbers(law):
        raise ConfigError(f"{key}: draws delays too great to be numbers; its parameters are out of proportion")
    if law.minimum_s < 0:
        raise ConfigError(f"{key}: can draw a negative delay; floor_s = 0.0 (or more) keeps it from that")
    return law


def _read(table: object, key: str, rng_for: RngFor) -> Delay:
    if not isinstance(table, dict):
        raise ConfigError(f'{key} = {table!r}: must be a table such as {{ kind = "exponential", mean_s = 0.1 }}')
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{key}.kind = {kind!r}: must be one of {', '.join(KINDS)}")
    values = {name: value for name, value in table.items() if name != "kind"}
    floor_s = values.pop("floor_s", None) if kind != "floor" else None
    law: Delay = _read_csv(values, key) if kind == "empirical" else make_record(KINDS[kind], values, key, rng_for)
    if floor_s is None:
        return law
    floored: Delay = _checked(Floor, {"of": law, "floor_s": _value(float, floor_s, f"{key}.floor_s", rng_for)}, key)
    return floored


def _is_numbers(law: Delay) -> bool:
    """Whether a few draws are finite: parameters may be sound one by one, and absurd together."""
    try:
        return bool(np.isfinite(law.sample(np.random.default_rng(0), 16)).all())
    except OverflowError:
        return False


def make_record(record: type[Any], values: Mapping[str, Any], key: str, rng_for: RngFor) -> Any:
    """Build a record from a table's values, each read as its field's type says."""
    known = {f.name: f for f in fields(record) if f.init and f.name != "path"}
    for name in values:
        if name not in known:
            raise ConfigError(f"{key}.{name}: unknown key; known keys: {', '.join(dict.fromkeys((*known, 'floor_s')))}")
    hints = get_type_hints(record)
    given = {
        name: _value(hints[name], values[name], f"{key}.{name}", rng_for)
        for name, f in known.items()
        if name in values or _required(f, f"{key}.{name}")
    }
    if record is MarkovDelay:
        given["path"] = int(rng_for(f"{key}.path").integers(1 << 63))
    return _checked(record, given, key)


def _checked(record: type[Any], values: Mapping[str, Any], key: str) -> Any:
    """A record, whose own ValueError says "name = value: must be ...", with the table's key in front."""
    try:
        return record(**values)
    except ValueError as error:
        raise ConfigError(f"{key}.{error}") from None


def _required(field: "Field[Any]", key: str) -> bool:
    """False for a key that has a default; ConfigError for one that is missing."""
    if field.default is MISSING:
        raise ConfigError(f"{key}: is missing")
    return False


def _value(hint: Any, value: Any, key: str, rng_for: RngFor) -> Any:
    if hint is Delay:
        return _read(value, key, rng_for)
    if hint == tuple[Delay, ...] and isinstance(value, list):
        return tuple(_read(part, f"{key}.{i}", rng_for) for i, part in enumerate(value))
    if hint is float and isinstance(value, dict):
        return float(_read(value, key, rng_for).sample(rng_for(key), 1)[0])
    if hint == tuple[Delay, ...]:
        raise ConfigError(f"{key} = {value!r}: must be a list of tables")
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Input ")
        raise ConfigError(f"{key} = {value!r}: {message[0].lower()}{message[1:]}") from None


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _read_csv(values: Mapping[str, Any], key: str) -> Delay:
    for name in values:
        if name not in {"file", "column"}:
            raise ConfigError(f"{key}.{name}: unknown key; known keys: file, column, floor_s")
    for name in ("file", "column"):
        if not isinstance(values.get(name), str):
            raise ConfigError(f"{key}.{name}: must name the {name} with the measured delays, in seconds")
    return _empirical(values["file"], values["column"], key)


@cache  # every client of a group has the same
def _empirical(file: str, column: str, key: str) -> Empirical:
    try:
        # A spreadsheet may have put a byte order mark first.
        with Path(file).open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f'{key}.file = "{file}": cannot be read ({error})') from error
    if column not in header:
        raise ConfigError(f'{key}.column = "{column}": {file} has no such column (it has: {", ".join(header)})')
    while rows and not rows[-1][1]:  # blank lines at the end are no holes
        rows.pop()
    place = header.index(column)
    values_s = tuple(_number(row[place : place + 1], f"{key}.file", file, line) for line, row in rows)
    if not values_s:
        raise ConfigError(f'{key}.file = "{file}": holds no values')
    return Empirical(values_s)


def _number(cell: list[str], key: str, file: str, line: int) -> float:
    """The delay in a row's cell; an empty list is a row that ends before it."""
    text = cell[0] if cell else ""
    try:
        value_s = float(text)
    except ValueError:
        value_s = math.nan
    if not (math.isfinite(value_s) and value_s >= 0):
        found = json.dumps(text) if text else "a hole"
        raise ConfigError(f'{key} = "{file}": line {line} has {found} where a delay in seconds was due')
    return value_s
