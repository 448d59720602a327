"""Describes every configuration key by its type and sentence, read from the records themselves."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from pydantic import BaseModel


@dataclass(frozen=True)
class Key:
    """One key of a table."""

    name: str
    annotation: Any
    sentence: str


def keys_of(make: Callable[..., Any]) -> list[Key]:
    """The keys of a record, or the parameters of a function, in order."""
    hints = get_type_hints(make, include_extras=True)
    record: Any = make if isinstance(make, type) else hints["return"]
    said = attribute_docstrings(record)
    names = record.model_fields if issubclass(record, BaseModel) else inspect.signature(make).parameters
    return [Key(name, hints[name], said.get(name, "")) for name in names]


def sentence_of(make: Callable[..., Any]) -> str:
    """The docstring of a record or a function, up to the first empty line, in one line."""
    return " ".join((inspect.getdoc(make) or "").split("\n\n")[0].split())


def parameter_defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """The default of each parameter of a class or a function, by name; `Parameter.empty` if it must be given."""
    found = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
    record = fields(make) if isinstance(make, type) and is_dataclass(make) else ()
    return found | {f.name: f.default_factory() for f in record if f.default_factory is not MISSING}


@cache
def attribute_docstrings(record: type[Any]) -> dict[str, str]:
    """Field -> the docstring below it, in one line. A subclass's docstring replaces that of its base class."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if inspect.get_annotations(base) and base.__module__ != BaseModel.__module__:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(node, ast.ClassDef)
            for field, said in pairwise(node.body):
                match field, said:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = " ".join(text.split())
    return found
