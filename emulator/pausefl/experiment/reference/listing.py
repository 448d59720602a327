"""An experiment as a TOML file with every default filled in, and a sentence above each key."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w
from pydantic import BaseModel

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.reference.keys import KINDS_OF_KEY, MISSING, keys_of, sentence_of
from pausefl.experiment.server_records import selected_policy
from pausefl.experiment.tables import SelectionTable
from pausefl.experiment.toml_source import bare_or_quoted
from pausefl.experiment.validation import is_table
from pausefl_server.selection import Policy

_COLUMNS = 80

Makers = Mapping[str, Callable[..., Any]]


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
