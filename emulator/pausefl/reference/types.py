"""The type of a key in words, as a TOML file has it."""

import json
from typing import Any

from pydantic import TypeAdapter

from pausefl.delays import Delay

_SIMPLE = {"integer": "integer", "number": "number", "string": "string", "boolean": "true or false", "object": "table"}
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
}


def type_in_words(annotation: Any) -> str:
    """The values that an annotation allows; a key that may be left out is not said to be null."""
    if annotation is Delay:
        return "law"
    if annotation == tuple[Delay, ...]:
        return "list of laws"
    return _in_words(TypeAdapter(annotation).json_schema())


def _in_words(schema: dict[str, Any]) -> str:
    if members := schema.get("anyOf") or schema.get("oneOf"):
        parts = [_in_words(part) for part in members if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"({', '.join(_in_words(part) for part in schema['prefixItems'])})"
        items = _in_words(schema["items"])
        return f"list of {items}s" if items in _SIMPLE.values() else f"list of {items}"
    if "$ref" in schema:
        return "table"
    bounds = " and ".join(f"{sign} {schema[name]}" for name, sign in _BOUNDS.items() if name in schema)
    return f"{_SIMPLE[schema['type']]} {bounds}".strip()
