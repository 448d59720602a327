"""Writes the pages in docs/reference from the code: `python docs/write_reference.py`.

A test writes them again and compares.
"""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typing_extensions import get_type_hints

sys.path.insert(0, str(Path(__file__).parents[1]))

import pausefl
from docs.key_types import tables, type_in_words, unit_of
from pausefl import cli
from pausefl.experiment.delays.laws import EXCHANGE_DELAYS
from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl.experiment.reference import attribute_docstrings, keys_of, parameter_defaults, sentence_of
from pausefl.experiment.validation import is_table
from pausefl.results.stored_summary import Summary
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.registries import TRAINING_METHODS
from pausefl_process.events import EVENT_TYPES
from pausefl_process.registry import Registry
from pausefl_server.clients import ClientTable
from pausefl_server.model.staleness import STALENESS_RULES
from pausefl_server.records import Miss
from pausefl_server.selection import (
    POLICIES,
    Context,
    Inspection,
    Oracle,
    Policy,
    PolicyObservation,
    PolicyRound,
    Selection,
)

FOLDER = Path(__file__).parent / "reference"

_CONFIGURATION = """# Configuration reference

This page is written from the code: `python docs/write_reference.py` writes it, and a test compares it. An experiment is
a TOML file of these tables. Every key may be left out unless it is marked *required*. `pausefl validate CONFIG` prints
an experiment with every default filled in, and the same sentences.

"Not set" means that the key has no value by default; its sentence says what then happens. A key with a unit in its name
(`_s`, `_bytes`) has that unit. Times are in seconds at the emulated scale, before `latency.time_scale`, where they are
drawn; timeouts are in real seconds. Where a table with a `kind` is taken, a kind alone is one with its defaults.
"""

_LAWS = """`latency.delay`, `latency.down` and `latency.up` take a table with one of these kinds. So do the same keys of
`[[latency.groups]]`. Any kind also takes `floor_s`: no draw lies below it. Any decimal key of a law also accepts a law,
sampled once per client. `halves` goes with `latency.delay` only. [More on delays](../network.md)."""
_BEHAVIOURS = """`clients.groups.NAME.behaviours` takes a list of tables with one of these kinds.
[More on groups](../behaviours.md)."""
_AVAILABILITY = """`clients.groups.NAME.availability` takes a table with one of these kinds.
[More on groups](../behaviours.md)."""
_PARTITIONS = """`workload.partition` takes a table with one of these kinds.
[More on partitions](../partitions.md)."""
_TRAINING = """`workload.training` takes a table with one of these kinds.
[More on training methods](../training.md)."""
_STALENESS = """`asynchronous.staleness` takes a table with one of these kinds.
[More on steps without rounds](../asynchronous.md)."""
_DRIFTS = """`clients.groups.NAME.drift` takes a table with one of these kinds. Only `pausefl simulate` reads it."""
_POLICIES = """The parameters of policy NAME stand in `[selection.NAME]`. [More on policies](../selection.md)."""

KINDS: tuple[tuple[str, str, Registry], ...] = (
    ("Delay laws", _LAWS, EXCHANGE_DELAYS),
    ("Behaviours", _BEHAVIOURS, BEHAVIOURS),
    ("Availability", _AVAILABILITY, AVAILABILITIES),
    ("Partitions", _PARTITIONS, PARTITIONERS),
    ("Training methods", _TRAINING, TRAINING_METHODS),
    ("Staleness rules", _STALENESS, STALENESS_RULES),
    ("Drifts in simulations", _DRIFTS, DRIFTS),
)
"""The kinds of tables whose keys have a section of their own, each with its title and first words. Policies do, too."""


_API = """# Python API reference

This page is written from the docstrings. [The Python library](../library.md) shows the names in use. These are all
public names of `import pausefl`; a test holds them to this page. What is not listed here may change in any version.

"""

_COMMANDS = """# Command reference

This page is written from the code, as is `pausefl COMMAND --help`. How commands end is described in
[events.md](../events.md#exit-statuses).
"""

_SUMMARY = """# Reference of summary.json

This page is written from the code: `python docs/write_reference.py` writes it, and a test compares it. A run writes
`summary.json` into its directory when it ends; in Python, `Run.summary` reads it. Latencies are in seconds at the
emulated scale. Every ε is in the unit that `privacy_unit` names. Without privacy, the keys about ε are null.
"""

_EVENTS = """# Reference of progress events

This page is written from the docstrings: `python docs/write_reference.py` writes it, and a test compares it.
[Progress events](../events.md) says which command prints which of them. The field `kind` names the event.
"""

_OF_POLICIES = """# What a policy gets and returns

This page is written from the docstrings. [A policy of your own](../selection.md#a-policy-of-your-own) shows the names
in use. `pausefl_server.selection` has all of them but `ClientTable` (`pausefl_server.clients`) and `Miss`
(`pausefl_server.records`). ε is in the unit that `privacy.unit` names, and latencies are at the emulated scale.
"""
# The methods of the other classes change them, which policies must not do.
_WITH_METHODS = (Policy,)
_RECORDS_OF_POLICIES = (
    *_WITH_METHODS, Context, ClientTable, PolicyRound, PolicyObservation, Miss, Selection, Inspection, Oracle,
)  # fmt: skip


def pages() -> dict[str, str]:
    """The pages for the current code, by file name."""
    return {
        "configuration.md": configuration(),
        "commands.md": commands(),
        "api.md": api(),
        "summary.md": summary(),
        "events.md": events(),
        "policies.md": of_policies(),
    }


def of_policies() -> str:
    """The page of the arguments and results of a policy's methods."""
    parts = (_record(record, methods=record in _WITH_METHODS) for record in _RECORDS_OF_POLICIES)
    return "\n".join((_OF_POLICIES, *(line for part in parts for line in part)))


def _record(record: type[Any], *, methods: bool) -> Iterator[str]:
    yield f"## `{record.__name__}`\n\n{_outside_code(inspect.getdoc(record) or '')}\n"
    yield from _attributes(_members(record, methods=methods))


def summary() -> str:
    """The page of the keys of summary.json."""
    said = attribute_docstrings(Summary)
    hints = get_type_hints(Summary)
    rows = (f"| `{key}` | {_cell(_json_type(hint))} | {_cell(said.get(key, ''))} |" for key, hint in hints.items())
    return "\n".join((_SUMMARY, "| key | type | meaning |\n|---|---|---|", *rows, ""))


def _json_type(annotation: Any) -> str:
    """The JSON name of a type."""
    may_be_null = " or null" if type(None) in get_args(annotation) else ""
    return type_in_words(annotation).replace("table", "object") + may_be_null


def events() -> str:
    """The page of progress events, each with its fields."""
    return "\n".join((_EVENTS, *(line for kind, record in EVENT_TYPES.items() for line in _event(kind, record))))


def _event(kind: str, record: Any) -> Iterator[str]:
    yield f"## `{kind}`\n\n{_outside_code(inspect.getdoc(record) or '')}\n"
    types, said = get_type_hints(record), attribute_docstrings(record)
    if rows := [f"| `{f.name}` | {_json_type(types[f.name])} | {_cell(said[f.name])} |" for f in fields(record)]:
        yield "| field | type | meaning |\n|---|---|---|"
        yield from rows
        yield ""


def commands() -> str:
    """The page of commands and their options."""
    return "\n".join((_COMMANDS, *(line for name, parser in subparsers() for line in _command(name, parser))))


def api() -> str:
    """The page of the library's public names."""
    names = sorted(pausefl.__all__, key=lambda name: (isinstance(getattr(pausefl, name), type), name))
    return "\n".join((_API, *(line for name in names for line in _public(name, getattr(pausefl, name)))))


def _public(name: str, value: Any) -> Iterator[str]:
    yield f"## `pausefl.{name}`\n"
    if not isinstance(value, type):
        yield f"```text\n{_signature(name, value)}\n```\n"
    yield f"{_outside_code(inspect.getdoc(value) or '')}\n"
    if isinstance(value, type):
        yield from _attributes(_members(value))


def _attributes(members: Iterable[str]) -> Iterator[str]:
    if rows := list(members):
        yield "| attribute | what it is |\n|---|---|"
        yield from rows
        yield ""


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A function's signature as in its source, with one parameter per line."""
    signature = inspect.signature(function)
    parameters = "".join(f"    {p},\n" for p in _parameters(signature))
    return f"{name}(\n{parameters}) -> {_annotation(signature.return_annotation)}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    keyword_only = False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        default = "" if p.default is p.empty else f" = {p.default!r}"
        yield f"{p.name}: {_annotation(p.annotation)}{default}"


def _annotation(annotation: Any) -> str:
    """A type's name without its module."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+", "", text)


def _members(record: Any, *, methods: bool = True) -> Iterator[str]:
    """Yields a row with the docstring of each public field, property and, with `methods`, method of a record itself."""
    fields = attribute_docstrings(record)
    for name, value in {**dict.fromkeys(inspect.get_annotations(record)), **vars(record)}.items():
        said = fields.get(name) or (value and inspect.getdoc(value)) or ""
        is_method = inspect.isfunction(value)
        if not name.startswith("_") and name != "model_config" and said and (methods or not is_method):
            call = "()" if is_method else ""
            yield f"| `{name}{call}` | {_cell(' '.join(said.split()))} |"


def subparsers() -> Iterable[tuple[str, argparse.ArgumentParser]]:
    """The subcommands of `pausefl`, in the order of its help."""
    (action,) = (a for a in cli.whole_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices.items()


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `pausefl {name}`\n\n{_sentence(parser.description)}\n"
    yield "| argument | meaning |\n|---|---|"
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            yield f"| `{_argument(action)}` | {_cell(_sentence(action.help))} |"
    yield ""


def _argument(action: argparse.Action) -> str:
    """An argument as it is written on a command line."""
    value = action.metavar if action.nargs != 0 else None
    words = [*action.option_strings[-1:], *([str(value)] if value else [])]
    return _cell(" ".join(words) + (" ..." if action.nargs == "+" else ""))


def _sentence(text: str | None) -> str:
    """A help text as a sentence."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def configuration() -> str:
    """The page of configuration keys."""
    return "\n".join(
        (_CONFIGURATION, *_tables(), *_policies(), *(line for part in KINDS for line in _kinds(*part)), "")
    )


def _tables() -> Iterator[str]:
    for table in tables():
        level = "##" if "." not in table.header else "###"
        yield f"{level} `{table.header}`\n\n{sentence_of(table.record)}\n"
        yield from _rows(table.record)


def _policies() -> Iterator[str]:
    yield f"## Policies\n\n{_POLICIES}\n"
    for name, policy in POLICIES.items():
        yield f"### Policy `{name}`\n\n{sentence_of(policy)}\n"
        yield from _rows(policy, without="m")


def _kinds(title: str, text: str, kinds: Registry) -> Iterator[str]:
    yield f"## {title}\n\n{text}\n"
    for name, make in kinds.items():
        yield f"### {title}: `{name}`\n\n{sentence_of(make)}\n"
        yield from _rows(make)


def _rows(make: Callable[..., Any], without: str = "") -> Iterator[str]:
    defaults = _defaults_of(make)
    rows = [
        f"| `{key.name}` | {_cell(kind)} | {_default(default)} | {unit_of(key.name)} | {_cell(key.sentence)} |"
        for key in keys_of(make)
        for kind, default in [(type_in_words(key.annotation), defaults[key.name])]
        if key.name != without
    ]
    if rows:
        yield "| key | type | default | unit | meaning |\n|---|---|---|---|---|"
        yield from rows
        yield ""


def _defaults_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The default of each key of a record or a function, by name; `Parameter.empty` if it must be given."""
    if not (isinstance(make, type) and issubclass(make, BaseModel)):
        return parameter_defaults(make)
    return {
        name: inspect.Parameter.empty
        if field.is_required()
        else None
        if field.default is PydanticUndefined
        else field.default
        for name, field in make.model_fields.items()
    }


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "*required*"
    if is_table(type(value)):
        return "its own defaults"
    if value is None or value in ("", {}):
        return "not set"
    if isinstance(value, dict) and [*value] == ["kind"]:
        value = value["kind"]
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("Infinity", "inf")


def _cell(text: str) -> str:
    return _outside_code(text).replace("|", r"\|")


def _outside_code(text: str) -> str:
    """The text with `<` escaped outside code, so that Markdown shows it unchanged."""
    return "`".join(part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(text.split("`")))


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")
