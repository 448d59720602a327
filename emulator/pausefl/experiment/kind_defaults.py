"""The defaults of the kinds that tables name, such as those of a partition. Servers' modules are not imported here."""

from collections.abc import Mapping
from typing import Any

from pausefl.experiment.objects import plain
from pausefl.experiment.reference import KINDS_OF_KEY, parameter_defaults
from pausefl_client.registries import OPTIMIZER_DEFAULTS, SCHEDULE_DEFAULTS, TRAINING_DEFAULTS
from pausefl_process.registry import Registry
from pausefl_proto.errors import ConfigError

_KINDS_UNLESS_SAID = {"delay": "halves", "availability": "always"}
"""Key -> the kind of a table that names none."""


def fill_workload(workload: dict[str, Any]) -> None:
    """Fill in the defaults of the kinds that the table [workload] names."""
    fill_kinds(workload)
    workload["training"] = _with_defaults(TRAINING_DEFAULTS, workload["training"])
    workload["schedule"] = _with_defaults(SCHEDULE_DEFAULTS, workload["schedule"])
    of_optimizer = OPTIMIZER_DEFAULTS.get(workload["optimizer"], {})
    workload["optimizer_options"] = {**of_optimizer, **workload["optimizer_options"]}


def fill_kinds(table: dict[str, Any]) -> None:
    """Fill in the defaults of the kinds that a table's keys name."""
    for key in KINDS_OF_KEY.keys() & table.keys():
        table[key] = filled(KINDS_OF_KEY[key], table[key], _KINDS_UNLESS_SAID.get(key))


def _with_defaults(defaults: Mapping[str, Mapping[str, Any]], said: Any) -> Any:
    """A table with the listed defaults of its kind. The table is unchanged if none are listed."""
    kind = said.get("kind") if isinstance(said, dict) else None
    return {**said, **{k: v for k, v in defaults.get(kind, {}).items() if k not in said}} if kind else said


def filled(kinds: Registry, said: Any, default: str | None = None) -> Any:
    """A table with the defaults of its kind. It is unchanged if the kind has none, or cannot be imported here.

    `default` is the kind of a table that names none.
    """
    if not said or isinstance(said, list):
        return _within(kinds, said)
    table = {"kind": said} if isinstance(said, str) else said if default is None else {"kind": default, **said}
    try:
        make = kinds.find(table["kind"], "kind")
    except ConfigError:  # the user's own code is not on this machine
        return said
    within = {name: _within(kinds, value) for name, value in table.items()}
    own = parameter_defaults(make).items()
    defaults = {name: value for name, stated in own if (value := plain(stated)) is not None}
    return {**within, **{name: value for name, value in defaults.items() if name not in table}} if defaults else said


def _within(kinds: Registry, value: Any) -> Any:
    """A value of a table. If it is a table with a kind, or a list of such tables, their defaults are filled in too."""
    if isinstance(value, list):
        return [_within(kinds, part) for part in value]
    return filled(kinds, value) if isinstance(value, dict) and "kind" in value else value
