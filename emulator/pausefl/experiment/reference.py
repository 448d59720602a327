"""Describes every configuration key by its type, default and sentence, read from the records themselves."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING as FACTORY_MISSING
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

import tomli_w
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pausefl.experiment.delays.laws import EXCHANGE_DELAYS
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl.experiment.server_records import selected_policy
from pausefl.experiment.tables import SelectionTable
from pausefl.experiment.toml_source import bare_or_quoted
from pausefl.experiment.validation import is_table
from pausefl_client.data.partition import PARTITIONERS
from pausefl_process.registry import Registry
from pausefl_server.selection import Policy

_COLUMNS = 80

Makers = Mapping[str, Callable[..., Any]]
MISSING = inspect.Parameter.empty
"""The default of a key that must be given."""

KINDS_OF_KEY: Mapping[str, Registry] = {
    "delay": EXCHANGE_DELAYS,
    "down": EXCHANGE_DELAYS,
    "up": EXCHANGE_DELAYS,
    "training_time": EXCHANGE_DELAYS,
    "behaviours": BEHAVIOURS,
    "availability": AVAILABILITIES,
    "drift": DRIFTS,
    "partition": PARTITIONERS,
}
"""Key -> the kinds that the table under this key, or each table of its list, may name."""


@dataclass(frozen=True)
class Key:
    """One key of a table."""

    name: str
    annotation: Any
    default: Any
    sentence: str


def keys_of(make: Callable[..., Any]) -> list[Key]:
    """The keys of a record, or the parameters of a function, in order."""
    hints = get_type_hints(make, include_extras=True)
    record = make if isinstance(make, type) else hints["return"]
    said = attribute_docstrings(record)
    defaults = _model_defaults(record) if issubclass(record, BaseModel) else parameter_defaults(make)
    return [Key(name, hints[name], default, said.get(name, "")) for name, default in defaults.items()]


def sentence_of(make: Callable[..., Any]) -> str:
    """The docstring of a record or a function, up to the first empty line, in one line."""
    return " ".join((inspect.getdoc(make) or "").split("\n\n")[0].split())


def _model_defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {
        name: MISSING if field.is_required() else None if field.default is PydanticUndefined else field.default
        for name, field in model.model_fields.items()
    }


def parameter_defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """The default of each parameter of a class or a function, by name; `MISSING` if it must be given."""
    found = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
    record = fields(make) if isinstance(make, type) and is_dataclass(make) else ()
    return found | {f.name: f.default_factory() for f in record if f.default_factory is not FACTORY_MISSING}


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


@dataclass(frozen=True)
class _Entry:
    """One key with its value."""

    name: str
    value: Any
    sentence: str = ""
    kinds: Makers | None = None
    """The kinds that tables in the value may name. None if the value holds no such tables."""


def listing(experiment: Experiment) -> str:
    """The experiment as TOML with comments of at most 80 columns. Loading it gives the same experiment."""
    lines: list[str] = []
    for name in Experiment.model_fields:
        lines += _table(name, getattr(experiment, name))
    return "\n".join(lines[1:]) + "\n"  # each table begins with an empty line


def _table(
    path: str, value: Any, said: str = "", kinds: Makers | None = None, *, is_list: bool = False
) -> Iterator[str]:
    """The lines of one table and of the tables within it. `said` is the sentence about the table's key."""
    sentence, entries = _content(value, kinds)
    yield ""
    yield from _comment(f"{said} {sentence}")
    yield f"[[{path}]]" if is_list else f"[{path}]"
    for entry in entries:
        if not _has_tables(entry.value):
            yield ""
            yield from _comment(entry.sentence)
            yield (
                f"# {entry.name} is not set"
                if entry.value is None
                else tomli_w.dumps({entry.name: entry.value}).rstrip()
            )
    for entry in entries:
        if _has_tables(entry.value):
            of_entry, is_several = f"{path}.{bare_or_quoted(entry.name)}", isinstance(entry.value, tuple | list)
            for part in entry.value if is_several else (entry.value,):
                yield from _table(of_entry, part, entry.sentence, entry.kinds, is_list=is_several)


def _content(value: Any, kinds: Makers | None) -> tuple[str, list[_Entry]]:
    """The sentence of a table, and its entries."""
    if is_table(type(value)):
        entries = [
            _Entry(key.name, _filled(key.name, getattr(value, key.name)), key.sentence, KINDS_OF_KEY.get(key.name))
            for key in keys_of(type(value))
            if not (isinstance(value, Policy) and key.name == "m")  # all policies share selection.m
        ]
        if isinstance(value, SelectionTable):
            entries += _policies(value)
        elif isinstance(value, BaseModel):
            entries += [_Entry(name, part) for name, part in (value.__pydantic_extra__ or {}).items()]
        return sentence_of(type(value)), entries
    if kinds is not None and value.get("kind") in kinds:
        return _of_kind(value, kinds)
    return "", [_Entry(str(name), part) for name, part in value.items()]


def _filled(name: str, value: Any) -> Any:
    """A value as it is listed: the name of a kind that takes keys as a table, an empty table or list as None."""
    if isinstance(value, str) and name in KINDS_OF_KEY and (make := KINDS_OF_KEY[name].get(value)) and keys_of(make):
        return {"kind": value}
    return None if value in ({}, ()) else value


def _policies(selection: SelectionTable) -> Iterator[_Entry]:
    """The selected policy, and other policies for which the file has tables, as far as they have parameters."""
    for name in dict.fromkeys([selection.policy, *(selection.__pydantic_extra__ or {})]):
        policy = selected_policy(selection, name)
        if _content(policy, None)[1]:
            yield _Entry(name, policy)


def _of_kind(table: Mapping[str, Any], kinds: Makers) -> tuple[str, list[_Entry]]:
    make = kinds[table["kind"]]
    entries = [_Entry("kind", table["kind"])]
    for key in keys_of(make):
        value = table.get(key.name, None if key.default is MISSING else key.default)
        entries.append(_Entry(key.name, value, key.sentence, kinds))
    known = {entry.name for entry in entries}
    entries += [_Entry(name, value, kinds=kinds) for name, value in table.items() if name not in known]
    return sentence_of(make), entries


def _has_tables(value: Any) -> bool:
    is_one = isinstance(value, Mapping) or is_table(type(value))
    return is_one or (isinstance(value, tuple | list) and any(_has_tables(part) for part in value))


def _comment(sentence: str) -> Iterator[str]:
    yield from textwrap.wrap(sentence, _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
