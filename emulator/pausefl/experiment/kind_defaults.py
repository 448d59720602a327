"""The defaults of the kinds that tables name, such as those of a partition. Servers' modules are not imported here."""

from typing import Any, get_type_hints

from pausefl.experiment.kinds import Kinds, kinds_in
from pausefl.experiment.objects import plain
from pausefl.experiment.reference import parameter_defaults
from pausefl.experiment.tables import Workload
from pausefl_client.registries import OPTIMIZER_DEFAULTS
from pausefl_proto.errors import ConfigError


def fill_workload(workload: dict[str, Any]) -> None:
    """Fill in the defaults of the kinds that the table [workload] names, and of its optimizer."""
    fill_kinds(workload, Workload)
    of_optimizer = OPTIMIZER_DEFAULTS.get(workload["optimizer"], {})
    workload["optimizer_options"] = {**of_optimizer, **workload["optimizer_options"]}


def fill_kinds(table: dict[str, Any], record: type[Any]) -> None:
    """Fill in the defaults of the kinds that a table's keys name. `record` is the record of the table."""
    for name, annotation in get_type_hints(record, include_extras=True).items():
        if (kinds := kinds_in(annotation)) is not None:
            table[name] = filled(kinds, table[name])


def filled(kinds: Kinds, said: Any) -> Any:
    """A table with a kind, or a list of such tables, with the defaults of their kinds, also within them.

    A table is unchanged if its kind has no defaults, or cannot be imported here.
    """
    if isinstance(said, list):
        return [filled(kinds, part) for part in said]
    if not (isinstance(said, dict) and "kind" in said):
        return said
    if kinds.defaults is not None:
        defaults = kinds.defaults.get(said["kind"], {})
        return said | {name: value for name, value in defaults.items() if name not in said}
    try:
        make = kinds.registry.find(said["kind"], "kind")
    except ConfigError:  # the user's own code is not on this machine
        return said
    own = {name: plain(stated) for name, stated in parameter_defaults(make).items() if name not in said}
    within = {name: filled(kinds, value) for name, value in said.items()}
    return within | {name: value for name, value in own.items() if value is not None}
