"""Draws runs with groups of clients: how often each was chosen (as Fed-TS's Fig. 5), and accuracy as groups join."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pausefl.results.in_words import turn
from pausefl.results.reading import RunData
from pausefl.results.report.style import (
    DASHES,
    INK,
    MUTED,
    SERIES,
    Colour,
    Look,
    capitalised,
    make_room,
    name_places,
    new_figure,
    percent_axis,
)
from pausefl.results.selections import GroupChoices
from pausefl_server.records import Split

ChoicesByGroup = Mapping[str, GroupChoices]
DRAWN_SPLITS: tuple[Split, ...] = ("test", "validation")
NO_GROUP = Look(MUTED.light, "-")
MOST_NAMED = 30
"""With more clients than this, a panel of half the width numbers them instead of naming each."""

_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY, _GREY = SERIES


def group_looks(groups: ChoicesByGroup) -> Mapping[str, Look]:
    """The look of each group by name: relevant newcomers blue, other newcomers in warm colours, originals in cool ones.

    Groups whose names differ only by a final number share a colour. Groups of one colour have different dashes.
    """
    families: dict[str, list[str]] = defaultdict(list)
    for name in groups:
        families[name.rstrip("0123456789")].append(name)
    palettes = {"original": [_GREY, _SKY, _GREEN], "relevant": [_BLUE], "other": [_VERMILION, _ORANGE, _PURPLE]}
    looks: dict[str, Look] = {}
    for members in families.values():
        first = groups[members[0]]
        kind = "original" if first.join_round == 1 else "relevant" if first.role == "relevant" else "other"
        palette: list[Colour] = palettes[kind]
        colour = palette[0].light
        for name in members:
            alike = sum(look.colour == colour for look in looks.values())
            looks[name] = Look(colour, DASHES[alike % len(DASHES)])
        palette.append(palette.pop(0))
    return looks


def group_of_client(groups: ChoicesByGroup) -> Mapping[str, str]:
    """The name of each client's group, by client id."""
    return {client_id: name for name, group in groups.items() for client_id in group.client_ids}


def joins(groups: ChoicesByGroup) -> Mapping[int, list[str]]:
    """The names of the groups of newcomers, by the round before which they joined."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, group in groups.items():
        if group.join_round is not None and group.join_round > 1:
            found[group.join_round].append(name)
    return dict(sorted(found.items()))


def mark_joins(axes: Axes, rounds: Iterable[int]) -> None:
    """Draw a dotted line before each of these rounds."""
    for join_round in rounds:
        axes.axvline(join_round - 0.5, color=MUTED.light, linewidth=1, linestyle=":", zorder=0.5)


def selections(run: RunData, groups: ChoicesByGroup) -> Figure:
    """How often clients were chosen: by round, as means of groups (and each client, if few); each client's total."""
    group_of, order = group_of_client(groups), [*groups, ""]
    ids = sorted(run.clients["client_id"].tolist(), key=lambda i: (order.index(group_of.get(i, "")), i))
    columns = {client_id: k for k, client_id in enumerate(ids)}
    indices = ([columns[client_id] for client_id in record.chosen] for record in run.records)
    chosen = np.array([np.bincount(of_round, minlength=len(ids)) for of_round in indices])
    figure = Figure(figsize=(9.2, 3.8), layout="constrained")
    by_round, by_client = figure.subplots(1, 2, width_ratios=(1.25, 1))
    mark_joins(by_round, joins(groups))
    looks = group_looks(groups)
    colours = [looks.get(group_of.get(client_id, ""), NO_GROUP).colour for client_id in ids]
    if len(ids) <= MOST_NAMED:
        for times, colour in zip(chosen.T, colours, strict=True):
            by_round.plot(*so_far(times), color=colour, linewidth=0.6, alpha=0.35)
    for name, group in groups.items():
        if group.join_round:
            mean = so_far(group.chosen / group.clients, group.join_round)
            by_round.plot(*mean, color=looks[name].colour, linestyle=looks[name].dash, label=name, linewidth=2.2)
    by_round.set(title="Selections", xlabel=turn(run.summary), ylabel="times chosen so far")
    by_round.set(xlim=(0, None), ylim=(0, None))
    width = 0.76 if len(ids) <= MOST_NAMED else 1.0
    by_client.bar(range(len(ids)), chosen.sum(axis=0), width=width, color=colours, linewidth=0)
    by_client.set(title="Each client, at the end", xlabel="client", ylabel="times chosen", xlim=(-0.8, len(ids) - 0.2))
    by_client.locator_params(axis="y", integer=True)
    name_places(by_client.xaxis, ids, MOST_NAMED, rotation=90, fontsize=7)
    figure.legend(*by_round.get_legend_handles_labels(), loc="outside right center", handlelength=2.6)
    return figure


def accuracy_around_joins(run: RunData, groups: ChoicesByGroup) -> Figure:
    """Accuracy after each evaluated round, with a line at each round before which groups joined."""
    figure, axes = new_figure(f"{capitalised(run.metric)} around the joins", turn(run.summary), run.metric)
    for split, colour, dash in zip(DRAWN_SPLITS, SERIES, DASHES, strict=False):
        rounds, values = run.curve(split, "round")
        if values.size:
            axes.plot(rounds, values, color=colour.light, linestyle=dash, label=split)
    axes.set_xlim(0, len(run.records))
    percent_axis(axes)
    name_joins(axes, groups, turn(run.summary))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return figure


def name_joins(axes: Axes, groups: ChoicesByGroup, of: str) -> None:
    """Draw a dotted line before each round (`of`) in which groups joined, and above it a line with their names."""
    found = joins(groups)
    mark_joins(axes, found)
    make_room(axes, len(found))
    for below, (join_round, names) in enumerate(sorted(found.items(), reverse=True)):
        axes.annotate(
            f"{of} {join_round}: {', '.join(names)}", (join_round - 0.5, 1), xycoords=("data", "axes fraction"),
            xytext=(0, 3 + 11 * below), textcoords="offset points", fontsize=8, color=INK.light, va="bottom",
        )  # fmt: skip


def so_far(chosen: NDArray[Any], join_round: int = 1) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Two arrays from the round before a group joined: round numbers, and how often it was chosen up to each."""
    rounds = np.arange(join_round - 1, len(chosen) + 1)
    return rounds, np.concatenate([[0.0], chosen.cumsum()])[rounds]
