"""All tables of an experiment, and all tables with a `kind`, by where they stand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from pausefl.config.delays.laws import EXCHANGE_DELAYS
from pausefl.config.experiment import Experiment
from pausefl.population.availability import AVAILABILITIES
from pausefl.population.behaviours import BEHAVIOURS
from pausefl.population.simulated_drifts import DRIFTS
from pausefl_client.data.partition import PARTITIONERS

Makers = Mapping[str, Callable[..., Any]]

KINDS_OF_KEY: Mapping[str, Makers] = {
    "delay": EXCHANGE_DELAYS,
    "down": EXCHANGE_DELAYS,
    "up": EXCHANGE_DELAYS,
    "behaviours": BEHAVIOURS,
    "availability": AVAILABILITIES,
    "drift": DRIFTS,
    "partition": PARTITIONERS,
}
"""The kinds that the table, or the list of tables, under a key of this name takes."""


@dataclass(frozen=True)
class Table:
    """One table of an experiment's file."""

    header: str
    """As a file has it: "[latency.bandwidth]", or "[[latency.groups]]" for each of a list."""
    record: type[BaseModel]


def tables() -> Iterator[Table]:
    """Every table of an experiment, parents first."""
    for name, field in Experiment.model_fields.items():
        assert isinstance(field.annotation, type)
        yield from _with_subtables(name, field.annotation, is_list=False)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The record of the tables that an annotation holds; None where it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)


def _with_subtables(path: str, record: type[BaseModel], *, is_list: bool) -> Iterator[Table]:
    yield Table(f"[[{path}]]" if is_list else f"[{path}]", record)
    for name, field in record.model_fields.items():
        inner = model_in(field.annotation)
        if inner is not None:
            is_named = getattr(field.annotation, "__origin__", None) is dict
            is_inner_list = getattr(field.annotation, "__origin__", None) is tuple
            yield from _with_subtables(f"{path}.{name}{'.NAME' if is_named else ''}", inner, is_list=is_inner_list)
