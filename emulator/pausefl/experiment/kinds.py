"""Tables with a `kind`: one reader for behaviours, availability, simulated drifts and latency laws.

The records themselves know nothing of pydantic. A pydantic union of them would need a schema for every record, built
at run time, and names of its members taken out of its errors again; a trial took more code than this reader.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pausefl.experiment.validation import as_json, explain, of_record, unknown_key
from pausefl_process.plugins import OWN_CODE_ERRORS
from pausefl_process.registry import Registry
from pausefl_proto.errors import ConfigError


def plain_value(annotation: Any, value: Any, key: str) -> Any:
    """A TOML value as its type says, strictly; ConfigError that names the key."""
    try:
        return _adapter(annotation).validate_json(as_json(value), strict=True)
    except ValidationError as error:
        raise ConfigError(explain(error, None, key)) from None


def read_kind(
    kinds: Registry,
    table: object,
    key: str,
    *,
    read_value: Callable[[Any, Any, str], Any] = plain_value,
    other_keys: Sequence[str] = (),
) -> Any:
    """The record that a table's `kind` names, made of its other keys; ConfigError that names the key.

    The parameters of what `kinds` holds are the table's other keys, and their annotations the keys' types.
    A text in place of the table is a kind with the defaults of its keys.
    `read_value` reads a value from its annotation, itself and its key. The caller reads `other_keys`, known as well.
    """
    if isinstance(table, str):
        make, table = kinds.find(table, key), {"kind": table}
    elif isinstance(table, dict):
        make = _kind(kinds, table, key)
    else:
        raise ConfigError(f'{key} = {table!r}: must be a table such as {{ kind = "{next(iter(kinds))}" }}')
    parameters = _parameters(make)
    for name in table:
        if name not in (known := ["kind", *parameters, *other_keys]):
            raise ConfigError(unknown_key(f"{key}.{name}", list(dict.fromkeys(known))))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in table:
            raise ConfigError(f"{key}.{name}: is missing")
    values = {n: read_value(p.annotation, table[n], f"{key}.{n}") for n, p in parameters.items() if n in table}
    return made(make, values, key)


def made(make: Callable[..., Any], values: Mapping[str, Any], key: str) -> Any:
    """A record of these values, whose own ValueError says "name = value: must be ...", with the table's key first."""
    try:
        return make(**values)
    except ConfigError:
        raise
    except OWN_CODE_ERRORS as error:  # what makes it may be a user's own
        raise ConfigError(of_record(error, key)) from error


def _kind(kinds: Registry, table: Mapping[str, Any], key: str) -> Callable[..., Any]:
    if "kind" not in table:
        raise ConfigError(f"{key}.kind: is missing; must be one of {', '.join(kinds)}")
    kind = table["kind"]
    if not isinstance(kind, str):
        raise ConfigError(f"{key}.kind = {kind!r}: must be one of {', '.join(kinds)}")
    make: Callable[..., Any] = kinds.find(kind, f"{key}.kind")
    return make


@cache
def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(make, eval_str=True).parameters


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(Any if annotation is inspect.Parameter.empty else annotation)
