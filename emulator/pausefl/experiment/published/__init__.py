"""Published figures and tables by name: the experiment that repeats each, its series, and the published values."""

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pausefl_proto.errors import ConfigError

Drawing = Literal["latency", "elapsed", "rounds", "selections", "newcomers", "best"]
"""The figure: accuracy against latency and leakage; both against elapsed time, and leakage by client; accuracy by
round; selections of each newcomer; newcomers chosen by round; best accuracies."""
PublishedPoint = tuple[float, float]


class PublishedValues(BaseModel):
    """Values of one series that a paper or its authors' archive states; accuracies in %."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy: tuple[PublishedPoint, ...] = ()
    """(total latency in seconds, test accuracy)."""
    best: float | None = None
    final: float | None = None
    total_s: float | None = None
    rounds: int | None = None
    """After how many `final` and `total_s` were read, where these are fewer than the figure's."""
    leak: tuple[PublishedPoint, ...] = ()
    """(round, greatest ε that a client had spent)."""


class _Series(BaseModel):
    """One line of a figure: what differs from its experiment. A series without an entry is the policy of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    preset: str = ""
    set: dict[str, Any] = Field(default={})


class Quick(BaseModel):
    """How a figure is made small."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: int = 1
    series: tuple[str, ...] = ()
    """The series that are run; empty: all of them."""
    set: dict[str, Any] = Field(default={})


class Reproduction(BaseModel):
    """One experiment of a paper: a preset, what is changed in it, and the series that its figures show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    figures: tuple[str, ...]
    """The figures drawn from its runs; any of them names it, too."""
    title: str
    preset: str
    overrides: dict[str, Any] = Field(default={}, alias="set")
    """Changes to the preset, by dotted key."""
    series: dict[str, tuple[str, dict[str, Any]]]
    """Each series' preset and what it changes beyond `overrides`, by name."""
    seeds: int
    """How many are run in full."""
    leakage_over: Literal["round", "latency"] = "round"
    """The axis against which leakage is drawn, as in the paper."""
    drawing: Drawing = "latency"
    training_s: float = 0.02
    """Processor time of one client's training in one round, for estimates."""
    quick: Quick
    published: dict[str, PublishedValues] = Field(default={})
    """By series; empty where figures are printed without numbers."""
    verdict: str = ""
    """How its figures compare with the published ones, in a line; empty: that is open."""
    remarks: tuple[str, ...] = ()
    """Why a value differs from the published one, a sentence or more each, with the evidence."""


def find_reproduction(name: str) -> Reproduction:
    """The reproduction of this name, or of this figure; ConfigError that says what may have been meant."""
    known = _by_name()
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else "pausefl reproduce --list shows them all"
        raise ConfigError(f"{name}: no such figure or table; {hint}")
    return known[name]


@cache
def reproductions() -> tuple[Reproduction, ...]:
    """All of them, in the papers' order."""
    return tuple(
        found
        for file in ("pause.toml", "fed_ts.toml", "asynchronous.toml")
        for found in read_reproductions(resources.files(__package__).joinpath(file).read_text("utf-8"))
    )


def read_reproductions(text: str) -> list[Reproduction]:
    """The reproductions that a TOML text states; `published` may name another one, which repeats the same runs."""
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


@cache
def _by_name() -> Mapping[str, Reproduction]:
    named = {figure: each for each in reproductions() for figure in each.figures}
    return {**named, **{each.name: each for each in reproductions()}}
