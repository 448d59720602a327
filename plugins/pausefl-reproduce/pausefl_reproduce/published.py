"""Published figures and tables by name: the experiments of each, its series, and the published values."""

import difflib
import tomllib
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pausefl.experiment.published import published_texts
from pausefl_proto.errors import ConfigError

Drawing = Literal["latency", "elapsed", "rounds", "selections", "newcomers", "best"]
"""The kind of figure. latency: accuracy against latency and leakage. elapsed: both against elapsed time, and leakage by
client. rounds: accuracy by round. selections: of each newcomer. newcomers: chosen by round. best: best accuracies."""
PublishedPoint = tuple[float, float]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedValues(_Table):
    """Values of one series that a paper or its authors' archive states. Accuracies are in %."""

    accuracy: tuple[PublishedPoint, ...] = ()
    """(total latency in seconds, test accuracy)."""
    best: float | None = None
    final: float | None = None
    total_s: float | None = None
    rounds: int | None = None
    """The round after which `final` and `total_s` were read, if that is not the figure's last round."""
    leak: tuple[PublishedPoint, ...] = ()
    """(round, greatest ε that a client had spent)."""


class _Series(_Table):
    """One line of a figure: its changes to the experiment. A series without an entry is the policy of its name."""

    preset: str = ""
    set: dict[str, Any] = Field(default={})


class Quick(_Table):
    """The reduced version of a figure, which takes less time."""

    seeds: int = 1
    series: tuple[str, ...] = ()
    """The series that are run. Empty for all of them."""
    set: dict[str, Any] = Field(default={})


class Reproduction(_Table):
    """One experiment of a paper: a preset, what is changed in it, and the series that its figures show."""

    name: str
    figures: tuple[str, ...]
    """The figures drawn from its runs. Each of them is also a name of the reproduction."""
    title: str
    preset: str
    overrides: dict[str, Any] = Field(default={}, alias="set")
    """Changes to the preset, by dotted key."""
    series: dict[str, tuple[str, dict[str, Any]]]
    """By name of the series: its preset, and its changes beyond `overrides`."""
    seeds: int
    """The number of seeds of a full reproduction."""
    leakage_over: Literal["round", "latency"] = "round"
    """The axis against which leakage is drawn, as in the paper."""
    drawing: Drawing = "latency"
    training_s: float = 0.02
    """Processor time of one client's training in one round, for estimates."""
    quick: Quick
    published: dict[str, PublishedValues] = Field(default={})
    """The published values by series. Empty if the figures are printed without numbers."""
    verdict: str = ""
    """How its figures compare with the published ones, in a line. Empty if that is open."""
    remarks: tuple[str, ...] = ()
    """Reasons why a value differs from the published one, with the evidence. Each has one or more sentences."""


def find_reproduction(name: str) -> Reproduction:
    """The reproduction of this name or figure. For an unknown one, ConfigError suggests a similar name."""
    known = {figure: each for each in reproductions() for figure in each.figures}
    known |= {each.name: each for each in reproductions()}
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else "pausefl reproduce --list shows them all"
        raise ConfigError(f"{name}: no such figure or table; {hint}")
    return known[name]


@cache
def reproductions() -> tuple[Reproduction, ...]:
    """All reproductions, in the order of the papers."""
    return tuple(found for text in published_texts() for found in read_reproductions(text))


def read_reproductions(text: str) -> list[Reproduction]:
    """The reproductions in a TOML text. `published` may be the name of another one, whose values then hold here too."""
    tables = tomllib.loads(text)
    known = {name: _Series.model_validate(table) for name, table in tables.pop("series", {}).items()}
    found = []
    for name, table in tables.items():
        published, series = table.get("published", {}), {}
        if isinstance(published, str):
            stated = tables[published]["published"]
            published = {each: stated[each] for each in table["series"] if each in stated}
        for each in table["series"]:
            own = known.get(each, _Series(set={"selection.policy": each}))
            series[each] = (own.preset or table["preset"], own.set)
        named = {"name": name, "figures": (name,)}
        found.append(Reproduction.model_validate({**named, **table, "series": series, "published": published}))
    return found
