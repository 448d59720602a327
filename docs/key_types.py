"""Lists the tables of an experiment's file, and words types and units of keys, for the pages of docs/reference."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic import TypeAdapter

from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.kinds import Kinds
from pausefl.experiment.reference import keys_of
from pausefl.experiment.validation import table_in

_COUNTED = {
    "rounds": (
        "rounds",
        "every",
        "checkpoint_every",
        "window",
        "pacer_window",
        "rounds_without_update_max",
        "rest_rounds_max",
    ),
    "round": ("join_round", "leave_round"),
    "clients": ("count", "m", "d", "minimum", "per_process", "trainers", "client_series_max", "client_series_top"),
    "examples": ("examples", "examples_max", "batch_size", "subset"),
    "epochs": ("epochs", "choices"),
    "steps": ("max_steps", "steps"),
    "updates": ("harmful",),
}
_UNITS = {"_bytes_per_s": "bytes/s", "_per_s": "1/s", "_s": "s", "_bytes": "bytes", "_rounds": "rounds"}
_SIMPLE = {"integer": "integer", "number": "number", "string": "string", "boolean": "true or false", "object": "table"}
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
}


@dataclass(frozen=True)
class Table:
    """One table of an experiment's file."""

    header: str
    """The header in the file: "[latency.bandwidth]", or "[[latency.groups]]" for each table of a list."""
    record: type[Any]


def tables() -> Iterator[Table]:
    """Yields every table of an experiment, parents first."""
    for key in keys_of(Experiment):
        yield from _with_subtables(key.name, key.annotation, is_list=False)


def _with_subtables(path: str, record: type[Any], *, is_list: bool) -> Iterator[Table]:
    yield Table(f"[[{path}]]" if is_list else f"[{path}]", record)
    for key in keys_of(record):
        inner = table_in(key.annotation)
        if inner is not None:
            is_named = get_origin(key.annotation) is dict
            is_inner_list = get_origin(key.annotation) is tuple
            yield from _with_subtables(f"{path}.{key.name}{'.NAME' if is_named else ''}", inner, is_list=is_inner_list)


def unit_of(key: str) -> str:
    """The unit of a key's values; empty for a key without one."""
    counted = next((unit for unit, names in _COUNTED.items() if key in names), "")
    return counted or next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")


def type_in_words(annotation: Any) -> str:
    """The values that an annotation allows, in words. None is not mentioned: it means that the key is left out."""
    if annotation is Delay:
        return "law"
    if annotation == tuple[Delay, ...]:
        return "list of laws"
    may_be_its_kind = any(isinstance(said, Kinds) for said in getattr(annotation, "__metadata__", ()))
    return "string or table" if may_be_its_kind else _in_words(TypeAdapter(annotation).json_schema())


def _in_words(schema: dict[str, Any]) -> str:
    if members := schema.get("anyOf") or schema.get("oneOf"):
        parts = [_in_words(part) for part in members if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"({', '.join(_in_words(part) for part in schema['prefixItems'])})"
        item, _, bounds = _in_words(schema["items"]).partition(" ")
        return f"list of {item}s {bounds}".strip() if item in _SIMPLE.values() else f"list of {item} {bounds}".strip()
    if "$ref" in schema:
        return "table"
    bounds = " and ".join(f"{sign} {schema[name]}" for name, sign in _BOUNDS.items() if name in schema)
    return f"{_SIMPLE.get(schema.get('type', ''), 'any value')} {bounds}".strip()
