"""The keys of a table, read from the record or the function that takes them."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from pausefl.delays import Delay
from pausefl.reference.types import type_in_words

MISSING = inspect.Parameter.empty
"""The default of a key that must be given."""

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


@dataclass(frozen=True)
class Key:
    """One key of a table."""

    name: str
    annotation: Any
    default: Any
    sentence: str

    @property
    def type(self) -> str:
        """The values that the key takes, in words."""
        return type_in_words(self.annotation)

    @property
    def unit(self) -> str:
        """The unit of its values; empty for a key without one."""
        counted = next((unit for unit, names in _COUNTED.items() if self.name in names), "")
        return counted or next((unit for suffix, unit in _UNITS.items() if self.name.endswith(suffix)), "")


def keys_of(make: Callable[..., Any]) -> list[Key]:
    """The keys that a record or a function takes, in order."""
    hints = get_type_hints(make.func if isinstance(make, partial) else make, include_extras=True)
    record = make if isinstance(make, type) else hints["return"]
    said = attribute_docstrings(record)
    defaults = _model_defaults(record) if issubclass(record, BaseModel) else _parameter_defaults(make)
    return [Key(n, hints[n], default, said.get(n) or _description(hints[n])) for n, default in defaults.items()]


def sentence_of(make: Callable[..., Any]) -> str:
    """What a record or a function says of itself, up to the first empty line, in one line."""
    text = inspect.getdoc(make.func if isinstance(make, partial) else make) or ""
    return " ".join(text.split("\n\n")[0].split())


def _model_defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {
        name: MISSING if field.is_required() else None if field.default is PydanticUndefined else field.default
        for name, field in model.model_fields.items()
    }


def _parameter_defaults(make: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}


def _description(hint: Any) -> str:
    """The description in an annotation's metadata, for parameters of functions."""
    has_schema = hint is not Delay and hint != tuple[Delay, ...]
    return str(TypeAdapter(hint).json_schema().get("description", "")) if has_schema else ""


@cache
def attribute_docstrings(record: type[Any]) -> dict[str, str]:
    """Field -> the docstring under it, in one line; a subclass's own says more than its base's."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if inspect.get_annotations(base) and base.__module__ != BaseModel.__module__:
            found |= _docstrings_of_class(base)
    return found


def _docstrings_of_class(record: type[Any]) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, said in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(said):
            assert isinstance(said, ast.Expr)
            found[field.target.id] = " ".join(ast.literal_eval(said.value).split())
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
