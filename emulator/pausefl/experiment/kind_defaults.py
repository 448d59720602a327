"""The defaults of the kinds that tables name, such as those of a partition. Servers' modules are not imported here."""

from collections.abc import Mapping
from typing import Any, get_type_hints

from pausefl.experiment.kinds import Kinds, kinds_in
from pausefl.experiment.objects import plain
from pausefl.experiment.reference import parameter_defaults
from pausefl.experiment.tables import Workload
from pausefl_client.registries import OPTIMIZER_DEFAULTS
from pausefl_proto.errors import ConfigError


def fill_workload(workload: dict[str, Any], *, undo: bool = False) -> None:
    """Fill in the defaults of the kinds that the table [workload] names, and of its optimizer. `undo`: drop these."""
    fill_kinds(workload, Workload, undo=undo)
    of_optimizer = OPTIMIZER_DEFAULTS.get(workload["optimizer"], {})
    workload["optimizer_options"] = _changed(workload["optimizer_options"], of_optimizer, undo)


def fill_kinds(table: dict[str, Any], record: type[Any], *, undo: bool = False) -> None:
    """Fill in the defaults of the kinds that a table's keys name. `record` is the record of the table."""
    for name, annotation in get_type_hints(record, include_extras=True).items():
        if (kinds := kinds_in(annotation)) is not None:
            table[name] = filled(kinds, table[name], undo=undo)


def filled(kinds: Kinds, said: Any, *, undo: bool = False) -> Any:
    """A table with a kind, or a list of such tables, with the defaults of their kinds, also within them.

    A table is unchanged if its kind has no defaults, or cannot be imported here. `undo`: without what is a default.
    """
    if isinstance(said, list):
        return [filled(kinds, part, undo=undo) for part in said]
    if not (isinstance(said, dict) and isinstance(said.get("kind"), str)):
        return said
    if kinds.defaults is not None:
        return _changed(said, kinds.defaults.get(said["kind"], {}), undo)
    try:
        make = kinds.registry.find(said["kind"], "kind")
    except ConfigError:  # the user's own code is not on this machine
        return said
    own = {name: value for name, stated in parameter_defaults(make).items() if (value := plain(stated)) is not None}
    return _changed({name: filled(kinds, value, undo=undo) for name, value in said.items()}, own, undo)


def _changed(said: dict[str, Any], defaults: Mapping[str, Any], undo: bool) -> dict[str, Any]:
    if undo:
        return {name: value for name, value in said.items() if name not in defaults or value != defaults[name]}
    return said | {name: value for name, value in defaults.items() if name not in said}
