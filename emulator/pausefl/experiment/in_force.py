"""All values of an experiment that are in force, with the defaults of the records that its kinds name; as TOML, too.

An experiment keeps a table such as `{ kind = "lognormal", mean_s = 0.2 }` as it was written. A run's config.toml also
has the defaults. So it says how the run was played, even after a default has changed, such as one of torch. Tables of
the user's own optimizers, schedules and training methods stay as written: their defaults need torch.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

import tomli_w

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.kind_defaults import fill_kinds, fill_workload, filled
from pausefl.experiment.kinds import Kinds, kinds_in
from pausefl.experiment.links import LatencyTable, LinkGroup
from pausefl.experiment.reference import keys_of, sentence_of
from pausefl.experiment.server_records import parameters_of, selected_policy
from pausefl.experiment.tables import AsynchronousTable, ClientGroup
from pausefl.experiment.toml_source import bare_or_quoted
from pausefl.experiment.validation import table_in
from pausefl_server.model.aggregation import RULES, Aggregation
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from pausefl_server.selection import Policy

# Keys that may change when a run is resumed: places of processes, admission, waiting times. So a run can continue on
# other machines, or without a client that is no longer trusted.
_OF_THE_PLACE = re.compile(
    r"(metrics|tls|admission)\.|experiment\.(python_path$|by_value\.)|clients\.(connect_timeout_s|minimum)$"
    r"|evaluation\.(address|host|port|metrics_port|insecure|connect_timeout_s|answer_timeout_s)$"
    r"|server\.(host|port|insecure|hello_timeout_s|dead_after_s)$"
)

_COLUMNS = 80

Tables = Mapping[str, Any]
"""An experiment as data: its tables by name, as `in_force` makes them and a run's config.toml holds them."""


def config_toml(tables: Tables) -> str:
    """The tables as TOML, which is a run's config.toml."""
    document, header = _without_none(tables), "[experiment.by_value]\n"
    code, document["experiment"]["by_value"] = document["experiment"]["by_value"], {}
    # Code may hold all data of a notebook. Literal texts are read at once, others letter by letter.
    literal = "".join(f"{name} = '{text}'\n" for name, text in code.items())
    return tomli_w.dumps(document).replace(header, header + literal, 1)


def in_force(experiment: Experiment) -> Tables:
    """The experiment's tables with every value in force; None for a key without a value."""
    document = experiment.model_dump(mode="json")
    selection, aggregation = document["selection"], document["aggregation"]
    selection[selection["policy"]] = _parameters(selected_policy(experiment.selection))
    fill_kinds(document["latency"], LatencyTable)
    fill_kinds(document["asynchronous"], AsynchronousTable)
    for group in document["latency"]["groups"]:
        fill_kinds(group, LinkGroup)
    for group in document["clients"]["groups"].values():
        fill_kinds(group, ClientGroup)
    fill_workload(document["workload"])
    for name, kinds in (("rule", RULES), ("optimizer", SERVER_OPTIMIZERS)):
        if kinds.get(aggregation[name]["kind"]) not in (Aggregation, ServerOptimizer):
            aggregation[name] = filled(Kinds(kinds), aggregation[name])  # others' parameters are keys of their tables
    return document


def what_is_played(tables: Tables) -> dict[str, Any]:
    """The values in an experiment's tables that its results depend on, by dotted key."""
    return {key: value for key, value in _values(tables, "") if not _OF_THE_PLACE.match(key)}


def _values(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields each value of a table and of its nested tables, with its dotted key."""
    if not isinstance(value, Mapping):
        yield key, value
        return
    for name, part in value.items():
        yield from _values(part, f"{key}.{bare_or_quoted(name)}" if key else name)


def _without_none(value: Any) -> Any:
    """A value whose tables lack the keys that are None, as TOML cannot write these."""
    if isinstance(value, dict):
        return {name: _without_none(part) for name, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list) else value


def _parameters(policy: Policy) -> dict[str, Any]:
    """The policy's parameters by name, without m, which all policies share."""
    return {name: value for name, value in parameters_of(policy).items() if name != "m"}


def listing(experiment: Experiment) -> str:
    """The experiment as TOML, with every value in force and comments of at most 80 columns.

    Loading it gives the same experiment.
    """
    document, selection, lines = in_force(experiment), experiment.selection, list[str]()
    for name, field in Experiment.model_fields.items():
        keys = [key.name for key in keys_of(type(getattr(experiment, name)))]
        lines += _table(f"[{name}]", {key: document[name][key] for key in keys}, field.annotation)
        if name == "selection":
            for policy in dict.fromkeys([selection.policy, *(selection.__pydantic_extra__ or {})]):
                parameters = _parameters(found := selected_policy(selection, policy))
                lines += _table(f"[{name}.{bare_or_quoted(policy)}]", parameters, type(found)) if parameters else []
    return "\n".join(lines[1:]) + "\n"  # each table begins with an empty line


def _table(header: str, table: Mapping[str, Any], of: Any, said: str = "", kinds: Kinds | None = None) -> Iterator[str]:
    """The lines of one table and of those within it. `of` is its annotation, `said` the sentence about its key."""
    tells = kinds is not None and kinds.defaults is None and table.get("kind") in kinds.registry
    make = kinds.registry[table["kind"]] if kinds and tells else table_in(of)
    if not kinds and get_origin(of) is dict:  # users name the tables within it
        make, of = None, make
    keys = {key.name: key for key in keys_of(make)} if make else {}
    yield ""
    yield from _comment(f"{said} {sentence_of(make) if make else ''}".strip())
    yield header
    names = dict.fromkeys(["kind", *keys, *table] if kinds and "kind" in table else table)
    values: dict[str, Any] = {name: _short(table.get(name)) for name in names}
    for name, value in values.items():
        if not _has_tables(value):
            yield ""
            yield from _comment(keys[name].sentence if name in keys else "")
            yield f"# {name} is not set" if value is None else tomli_w.dumps({name: value}).rstrip()
    for name, value in values.items():
        if _has_tables(value):
            annotation, sentence = (keys[name].annotation, keys[name].sentence) if name in keys else (of, "")
            path = f"{header.strip('[]')}.{bare_or_quoted(name)}"
            inner, parts = (f"[[{path}]]", value) if isinstance(value, list) else (f"[{path}]", [value])
            for part in parts:
                yield from _table(inner, part, annotation, sentence, kinds_in(annotation) or kinds)


def _short(value: Any) -> Any:
    """None for an empty table or list; a kind alone for a table of it without parameters."""
    match value:
        case {"kind": kind, **others} if not others:
            return kind
    return None if value in ({}, []) else value


def _has_tables(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(part, dict) for part in value))


def _comment(sentence: str) -> Iterator[str]:
    yield from textwrap.wrap(sentence, _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
