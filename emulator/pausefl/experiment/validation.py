"""Validates TOML values as typed records, and explains each mistake in one line that names its key."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pausefl.experiment.reference import keys_of
from pausefl_process.plugins import where_raised, with_place
from pausefl_proto.errors import ConfigError
from pausefl_proto.excerpts import excerpt

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class TomlTable(BaseModel):
    """A TOML table: immutable, strictly typed, without unknown keys."""

    # Without "constants", JSON would turn an infinite parameter of a policy into null.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(f"{name} = {value!r:.80}: an experiment does not change; Experiment.replace makes another")


def of_record(error: BaseException, table: str) -> str:
    """The error that a record raised, as one line that names its table.

    Records say "name = value: must be ..." in a ValueError. Any other error of a user's code gets its type and place.
    """
    is_of_key = isinstance(error, ValueError) and (not where_raised(error) or re.match(r"[\w.]+ = ", str(error)))
    return f"{table}.{error}" if is_of_key else f"{table}: {with_place(error)}"


def as_json(values: Mapping[str, Any]) -> str:
    """TOML values as JSON, from which pydantic's strict mode accepts a list for a tuple and a table for a record."""
    return json.dumps(values, default=str)


def explain(error: ValidationError, model: type[BaseModel] | None, table: str = "") -> str:
    """The first mistake as one line. If the value is no record of a pydantic model, `table` is its key."""
    mistakes = error.errors(include_url=False)
    mistake, path = mistakes[0], _path(mistakes[0])
    key = ".".join([table, *path] if table else path)
    if mistake["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return unknown_key(key, [] if model is None else _keys_of(model, path[:-1]))
    if mistake["type"] in {"value_error", "assertion_error"}:
        return of_record(mistake["ctx"]["error"], key)
    if mistake["type"] == "missing":
        return f"{key}: is missing"
    if mistake["type"] == "string_pattern_mismatch":
        within = ".".join(path[:-1])
        return f"{within}: {mistake['input']!r} is no name; letters, digits, _ and - make one, - not as its first"
    # There is one mistake for each member of a union.
    allowed = [_allowed(other) for other in mistakes if _path(other) == path]
    return f"{key} = {excerpt(repr(mistake['input']))}: must be {' or '.join(dict.fromkeys(allowed))}"


def _path(mistake: "ErrorDetails") -> list[str]:
    within = ("constrained-", "literal[", "function-", "tuple[", "[key]")
    path = [str(part) for part in mistake["loc"] if not str(part).startswith(within)]
    # The path of a union ends with the type of a member, which is no part of the key.
    while path and path[-1] in {"float", "int", "str", "bool"}:
        path.pop()
    return path


_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_WORDS = {
    "an object": "a table",
    "a valid array": "a list",
    "a valid list": "a list",
    "a valid boolean": "true or false",
    "string should match pattern '^cuda:[0-9]+$'": "'cuda:N'",
}


def _allowed(mistake: "ErrorDetails") -> str:
    """The values that pydantic accepts, in TOML's terms."""
    for bound, limit in mistake.get("ctx", {}).items():
        if bound in _BOUNDS:
            return f"{_BOUNDS[bound]} {limit:.12g}"
    message = mistake["msg"]
    said = (message[0].lower() + message[1:]).removeprefix("input ").removeprefix("should be ")
    for pydantics, ours in _WORDS.items():
        said = said.replace(pydantics, ours)
    return said


def _keys_of(model: type[Any], path: Sequence[str]) -> list[str]:
    for part in path:  # some are an index into a list of tables, or a table that users name
        model = next((table_in(key.annotation) for key in keys_of(model) if key.name == part), None) or model
    return sorted(key.name for key in keys_of(model))


def is_table(record: object) -> bool:
    """Whether this class is the record of a table."""
    return isinstance(record, type) and (is_dataclass(record) or issubclass(record, BaseModel))


def table_in(annotation: Any) -> type[Any] | None:
    """The record of a table within an annotation, the first one of a union. None if there is no such record."""
    if is_table(annotation):
        record: type[Any] = annotation
        return record
    return next(filter(None, map(table_in, get_args(annotation))), None)


def check_finite(value: object, key: str = "") -> None:
    """Raise ConfigError for the first number that is not finite, also within tables and lists. It names the key."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} = {value}: must be a finite number")
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for name, part in parts:
        check_finite(part, f"{key}.{name}" if key else str(name))


def check_address(key: str, address: str) -> None:
    """Raise ConfigError unless `address`, the value of this option or key, is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not (re.fullmatch(r"\[[^/]+\]|[^:/\[\]]+", host) and port.isdecimal() and int(port) < 1 << 16):
        said = f"{key} {address}" if key.startswith("--") else f'{key} = "{address}"'
        raise ConfigError(f"{said}: must be HOST:PORT, an IPv6 address in brackets")


def unknown_key(key: str, known: Sequence[str]) -> str:
    """The message for an unknown key, with the keys that may have been meant: those it begins, or else the closest."""
    table, _, name = key.rpartition(".")
    if close := [k for k in known if len(name) > 2 and k.startswith(name)] or difflib.get_close_matches(name, known, 1):
        return f"{key}: unknown key; did you mean {' or '.join(close)}?"
    known_keys = f"known keys: {', '.join(known)}" if known else f"{table} takes no parameters"
    return f"{key}: unknown key; {known_keys}"
