"""Published figures and tables by name: the experiment that repeats each, its series, and the published values."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
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


class _FigureTable(BaseModel):
    """A reproduction as its table states it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    figures: tuple[str, ...] = ()
    preset: str
    series: tuple[str, ...]
    seeds: int
    leakage_over: Literal["round", "latency"] = "round"
    drawing: Drawing = "latency"
    training_s: float = 0.02
    quick: Quick
    set: dict[str, Any] = Field(default={})
    published: dict[str, PublishedValues] | str = Field(default={})
    """The published values by series, or the name of the reproduction that repeats the same runs and states them."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """One experiment of a paper: a preset, what is changed in it, and the series that its figures show."""

    name: str
    figures: tuple[str, ...]
    """The figures drawn from its runs; any of them names it, too."""
    title: str
    preset: str
    overrides: Mapping[str, Any]
    """Changes to the preset, by dotted key."""
    series: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Each series' preset and what it changes beyond `overrides`, by name."""
    seeds: int
    """How many are run in full."""
    leakage_over: Literal["round", "latency"]
    """The axis against which leakage is drawn, as in the paper."""
    drawing: Drawing
    training_s: float
    """Processor time of one client's training in one round, for estimates."""
    quick: Quick
    published: Mapping[str, PublishedValues]
    """By series; empty where figures are printed without numbers."""
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
        for found in read_reproductions(_text(file))
    )


def read_reproductions(text: str) -> list[Reproduction]:
    """The reproductions that a TOML text states."""
    tables = tomllib.loads(text)
    series = {name: _Series.model_validate(table) for name, table in tables.pop("series", {}).items()}
    entries = {name: _FigureTable.model_validate(table) for name, table in tables.items()}
    return [_made(name, entry, series, _published(entry, entries)) for name, entry in entries.items()]


def _published(entry: _FigureTable, entries: Mapping[str, _FigureTable]) -> Mapping[str, PublishedValues]:
    if not isinstance(entry.published, str):
        return entry.published
    stated = _published(entries[entry.published], entries)
    return {name: stated[name] for name in entry.series if name in stated}


def _made(
    name: str, entry: _FigureTable, known: Mapping[str, _Series], published: Mapping[str, PublishedValues]
) -> Reproduction:
    series = {}
    for each in entry.series:
        own = known.get(each, _Series(set={"selection.policy": each}))
        series[each] = (own.preset or entry.preset, own.set)
    return Reproduction(
        name=name,
        figures=entry.figures or (name,),
        title=entry.title,
        preset=entry.preset,
        overrides=entry.set,
        series=series,
        seeds=entry.seeds,
        leakage_over=entry.leakage_over,
        drawing=entry.drawing,
        training_s=entry.training_s,
        quick=entry.quick,
        published=published,
        remarks=entry.remarks,
    )


@cache
def _by_name() -> Mapping[str, Reproduction]:
    named = {figure: each for each in reproductions() for figure in each.figures}
    return {**named, **{each.name: each for each in reproductions()}}


def _text(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text("utf-8")
