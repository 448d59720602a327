"""TOML values into typed records: their base, the numbers in them, and each mistake as one line that names its key."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pausefl_process.plugins import OWN_CODE_ERRORS, where_raised, with_place
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
# Each client costs memory before anything is checked further: a slip of the key must not take all of it.
ClientCount = Annotated[int, Field(ge=1, le=1_000_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class TomlTable(BaseModel):
    """A TOML table: immutable, strictly typed, without unknown keys."""

    # An infinite parameter of a policy stays one where the table is written down.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


def build(record: type[Any], table: str, values: Mapping[str, Any]) -> Any:
    """Make a frozen dataclass from a TOML table: types checked strictly, unknown keys refused; ConfigError."""
    try:
        return TypeAdapter(record).validate_json(as_json(values), strict=True, extra="forbid")
    except ValidationError as error:
        keys = [f.name for f in fields(record) if f.name != "m"]
        raise ConfigError(explain(error, None, table, keys)) from None
    except ConfigError:
        raise
    except OWN_CODE_ERRORS as error:  # the record may be a user's own
        raise ConfigError(of_record(error, table)) from error


def of_record(error: BaseException, table: str) -> str:
    """A record's own error as one line that names its table.

    Records say "name = value: must be ..." themselves; whatever else a user's own says has its type and place.
    """
    is_of_key = isinstance(error, ValueError) and (not where_raised(error) or re.match(r"[\w.]+ = ", str(error)))
    return f"{table}.{error}" if is_of_key else f"{table}: {with_place(error)}"


def as_json(values: Mapping[str, Any]) -> str:
    """TOML's values as JSON, whose strict types are TOML's: a list is a tuple there, a table is a record."""
    return json.dumps(values, default=str)


def explain(error: ValidationError, model: type[BaseModel] | None, table: str = "", keys: Sequence[str] = ()) -> str:
    """The first mistake as one line; `table` and its `keys` where the record is no model of its own."""
    mistakes = error.errors(include_url=False)
    mistake, path = mistakes[0], _path(mistakes[0])
    key = ".".join([table, *path] if table else path)
    if mistake["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return unknown_key(key, keys if model is None else _keys_of(model, path[:-1]))
    if mistake["type"] in {"value_error", "assertion_error"}:
        return of_record(mistake["ctx"]["error"], key)
    if mistake["type"] == "missing":
        return f"{key}: is missing"
    if mistake["type"] == "string_pattern_mismatch" and path[-1] == "[key]":
        return f"{'.'.join(path[:-2])}: {mistake['input']!r} is no name; letters, digits, - and _ make one"
    # Each member of a union says what it would take.
    allowed = [_allowed(other["msg"]) for other in mistakes if _path(other) == path]
    return f"{key} = {mistake['input']!r}: should be {' or '.join(dict.fromkeys(allowed))}"


def _path(mistake: "ErrorDetails") -> list[str]:
    path = [str(part) for part in mistake["loc"] if not str(part).startswith(("constrained-", "literal[", "function-"))]
    # A union reports each of its members; their names are no part of the key.
    while path and path[-1] in {"float", "int", "str", "bool"}:
        path.pop()
    return path


def _allowed(message: str) -> str:
    """What pydantic would take, in TOML's words."""
    said = message[0].lower() + message[1:]
    return (
        said.removeprefix("input ")
        .removeprefix("should be ")
        .replace("an object", "a table")
        .replace("a valid array", "a list")
        .replace("a valid list", "a list")
    )


def _keys_of(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        if part not in model.model_fields:  # a table in a list of them, or one that users name
            continue
        annotation = model.model_fields[part].annotation
        members = [getattr(a, "__origin__", a) for a in get_args(annotation)]  # of a union, Annotated or not
        inner = [a for a in (annotation, *members) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return sorted(model.model_fields)


def check_finite(value: object, key: str = "") -> None:
    """ConfigError with the key of the first number, in tables and lists within, that is not finite."""
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
    """ConfigError unless an address, the value of an option or a key, is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 1 << 16):
        said = f"{key} {address}" if key.startswith("--") else f'{key} = "{address}"'
        raise ConfigError(f"{said}: must be HOST:PORT")


def unknown_key(key: str, known: Sequence[str]) -> str:
    """What is wrong with a key that is none, and which one may have been meant."""
    table, _, name = key.rpartition(".")
    if close := difflib.get_close_matches(name, known, 1):
        return f"{key}: unknown key; did you mean {close[0]}?"
    known_keys = f"known keys: {', '.join(known)}" if known else f"{table} takes no parameters"
    return f"{key}: unknown key; {known_keys}"
