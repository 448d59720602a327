"""Tables with a `kind`, such as behaviours, availability, simulated drifts and latency laws: which kinds, and reading.

A pydantic union would need a schema of every record, and put its members' names into errors. It took more code.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, core_schema

from pausefl.experiment.validation import as_json, explain, of_record, unknown_key
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_process.registry import Registry
from pausefl_proto.errors import ConfigError

ReadValue = Callable[[Any, Any, str], Any]
"""(annotation, TOML value, key) -> the value of this type."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """In a key's annotation: the kinds that its table may name. A kind alone stands for a table with its defaults."""

    registry: Registry
    unless_said: str = ""
    """The kind of a table that names none."""
    defaults: Mapping[str, Mapping[str, Any]] | None = None
    """Defaults by kind, where an import would take torch or the keys stand elsewhere. None: kinds tell their own."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._as_table, handler(source))

    def _as_table(self, said: Any) -> Any:
        if isinstance(said, str):
            return {"kind": said}
        return {"kind": self.unless_said, **said} if self.unless_said and said and isinstance(said, dict) else said


def kinds_in(annotation: Any) -> Kinds | None:
    """The kinds of a table, or of each table of a list, with this annotation. None if it has no `kind`."""
    own = [said for said in getattr(annotation, "__metadata__", ()) if isinstance(said, Kinds)]
    return own[0] if own else next(filter(None, map(kinds_in, get_args(annotation))), None)


def plain_value(annotation: Any, value: Any, key: str) -> Any:
    """A TOML value, checked strictly against its annotation. ConfigError names the key."""
    try:
        return adapter_of(annotation).validate_json(as_json(value), strict=True)
    except ValidationError as error:
        raise ConfigError(explain(error, None, key)) from None
    except PydanticUserError as error:  # the annotation is of the user's own code
        raise ConfigError(f"{key}: must be annotated with a type of TOML values, not {annotation}") from error


def read_kind(
    kinds: Registry, table: object, key: str, *, read_value: ReadValue = plain_value, other_keys: Sequence[str] = ()
) -> Any:
    """Make the record that a table's `kind` names from the table's other keys, as `read_record` does.

    `kinds` holds classes and functions. A string in place of the table is a kind with default parameters.
    """
    if isinstance(table, str):
        make, table = kinds.find(table, key), {}
    elif isinstance(table, dict):
        if not isinstance(kind := table.get("kind"), str):
            said = f" = {kind!r}:" if "kind" in table else ": is missing;"
            raise ConfigError(f"{key}.kind{said} must be one of {', '.join(kinds)}")
        make = kinds.find(kind, f"{key}.kind")
    else:
        raise ConfigError(f'{key} = {table!r}: must be a table such as {{ kind = "{next(iter(kinds))}" }}')
    return read_record(make, table, key, read_value, ["kind", *other_keys])


def read_record(
    make: Callable[..., Any],
    table: Mapping[str, Any],
    key: str,
    read_value: ReadValue = plain_value,
    other_keys: Sequence[str] = (),
    **given: Any,
) -> Any:
    """Make a record from a table, whose keys are the parameters of `make` that are not `given`. ConfigError names one.

    `other_keys` are allowed too; the caller reads them.
    """
    try:
        parameters = {name: parameter for name, parameter in _parameters(make).items() if name not in given}
    except OWN_CODE_ERRORS as error:  # such as a name that is imported for type checkers only
        raise ConfigError(f"{key}: its parameters cannot be read ({with_place(error)})") from error
    for name in table:
        if name not in (known := [*other_keys, *parameters]):
            raise ConfigError(unknown_key(f"{key}.{name}", list(dict.fromkeys(known))))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in table:
            raise ConfigError(f"{key}.{name}: is missing")
    values = {n: read_value(p.annotation, table[n], f"{key}.{n}") for n, p in parameters.items() if n in table}
    return made(make, {**given, **values}, key)


def made(make: Callable[..., Any], values: Mapping[str, Any], key: str) -> Any:
    """Make a record of these values. Its own error becomes a ConfigError that begins with the table's key."""
    try:
        return make(**values)
    except ConfigError:
        raise
    except OWN_CODE_ERRORS as error:  # `make` may be the user's own code
        raise ConfigError(of_record(error, key)) from error


@cache
def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(make, eval_str=True).parameters


@cache
def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """The checker of a type. It is cached: making it takes a hundred times as long as using it."""
    return TypeAdapter(Any if annotation is inspect.Parameter.empty else annotation)
