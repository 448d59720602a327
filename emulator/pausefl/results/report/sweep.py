"""Writes the results of a sweep: a CSV file with one row per run, and a figure over the varied keys."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pausefl.results.reading import EPSILON_LABELS, TIME_LABELS, latency_unit, time_axis
from pausefl.results.report.comparison.figure import ONE_SEED, seeds_note
from pausefl.results.report.style import INK, KINDS, SERIES, shortened, write_picture
from pausefl.results.statistics import FEWEST_SEEDS, mean_band, three_digits
from pausefl.results.stored_summary import unequal_starts
from pausefl.results.tables import write_records
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_server.records import ACCURACY

ResultRows = Sequence[Mapping[str, Any]]
_Panel = tuple[str, str, float]
"""A drawn measure: its key in summary.json, the label, and the factor that converts to the label's unit."""


def write_sweep(rows: ResultRows, varied: Sequence[str], folder: Path) -> None:
    """Write sweep.csv and, if one or two keys were varied, a figure as sweep.svg, sweep.png and sweep.pdf.

    In the table, the columns of accuracies have the name of the task's score: `final_R²` for `final_accuracy`.
    """
    metric = next(iter(scores)) if len(scores := _scores(rows)) == 1 else ACCURACY
    own = {"final_accuracy": f"final_{metric}", "best_accuracy": f"best_{metric}"}
    write_records(folder / "sweep.csv", [{own.get(name, name): row[name] for name in row} for row in rows])
    if len(varied) in (1, 2):
        write_picture(folder / "sweep", lambda: draw_sweep(rows, varied), kinds=tuple(KINDS))


def caveats(rows: ResultRows) -> str:
    """Reasons against comparing the runs, such as fewer rounds, unequal machines or one seed. Empty without reasons."""
    planned, rows = len(rows), [row for row in rows if "rounds" in row]  # rows without "rounds" have no results
    early = sum(row.get("outcome", "completed") != "completed" for row in rows)
    played = sorted({row["rounds"] for row in rows}) if early else []
    found = []
    if lost := planned - len(rows):
        found.append(f"{lost} of {planned} runs have no results; below {FEWEST_SEEDS} seeds, ranges are shown")
    if len(played) > 1:
        found.append(f"{early} of {len(rows)} runs ended early")
        found.append(f"runs have {played[0]} to {played[-1]} rounds: their totals do not compare")
    if uneven := unequal_starts(rows):
        found.append(uneven)
    if len({row.get("seed") for row in rows}) == 1:
        found.append(ONE_SEED)
    return "; ".join(found)


def draw_sweep(rows: ResultRows, varied: Sequence[str]) -> Figure:
    """A figure with a panel per measure: means over seeds with intervals, as a line over one key or a map over two."""
    measures = [measure for measure in _measures(rows) if any(row.get(measure[0]) is not None for row in rows)]
    n_seeds = len({row.get("seed") for row in rows})
    width, height = 4.2, 3.6
    if len(varied) == 2:  # a cell holds its text
        down, across = (len(_levels(rows, key)) for key in varied)
        width, height = max(width, 2.4 + (1.3 if n_seeds > 1 else 0.6) * across), max(height, 1.2 + 0.45 * down)
    figure = Figure(figsize=(width * len(measures), height), layout="constrained")
    for i, (name, label, factor) in enumerate(measures, start=1):
        axes = figure.add_subplot(1, len(measures), i)
        draw = _draw_line if len(varied) == 1 else _draw_map
        draw(axes, rows, varied, name, factor)
        axes.set_title(label)
    means = seeds_note(n_seeds, "bars" if len(varied) == 1 else "brackets") if n_seeds > 1 else ""
    if note := "; ".join(filter(None, [means, caveats(rows)])):
        figure.supxlabel(textwrap.fill(note, 60 * len(measures)), fontsize=9)
    return figure


def _measures(rows: ResultRows) -> Sequence[_Panel]:
    """The measures to draw: latency, leakage, and the task's score if all runs have the same one."""
    scores = _scores(rows)
    shown = [("final_accuracy", f"final test {score} (%)", 100.0) for score in scores if len(scores) == 1]
    axis = time_axis(rows)
    return *shown, (axis, f"{TIME_LABELS[axis]} ({latency_unit(rows)})", 1.0), _leakage(rows)


def _scores(rows: ResultRows) -> set[str]:
    """The names of the runs' scores. A run whose last model was not evaluated has none, whatever its `metric` says."""
    return {row.get("metric", ACCURACY) for row in rows if row.get("final_accuracy") is not None}


def _leakage(rows: ResultRows) -> _Panel:
    """The measure of ε: in the runs' privacy unit or, if their units differ, for whole upload vectors."""
    units: set[PrivacyUnit] = {row["privacy_unit"] for row in rows if row.get("privacy_unit")}
    if len(units) == 1:
        return "max_epsilon_spent", f"greatest {EPSILON_LABELS[units.pop()]}", 1.0
    return "vector_epsilon_max", f"greatest {EPSILON_LABELS['vector']}\n(privacy.unit differs)", 1.0


def _draw_line(axes: Axes, rows: ResultRows, varied: Sequence[str], name: str, factor: float) -> None:
    (key,) = varied
    values = _levels(rows, key)
    groups = [_of(rows, {key: value}, name) * factor for value in values]
    at = np.arange(len(values), dtype=np.float64)
    means = [group.mean() if group.size else np.nan for group in groups]
    axes.plot(at, means, color=SERIES[0].light, marker="o")
    for x, group in zip(at, groups, strict=True):
        if group.size > 1:
            axes.plot([x, x], mean_band(group)[1:], color=SERIES[0].light, linewidth=1)
    _name_levels(axes.xaxis, values)
    axes.set_xlabel(key)


def _draw_map(axes: Axes, rows: ResultRows, varied: Sequence[str], name: str, factor: float) -> None:
    down, across = varied
    table = np.full((len(_levels(rows, down)), len(_levels(rows, across))), np.nan)
    for i, row_value in enumerate(_levels(rows, down)):
        for j, column_value in enumerate(_levels(rows, across)):
            group = _of(rows, {down: row_value, across: column_value}, name) * factor
            table[i, j] = group.mean() if group.size else np.nan
            ends = [three_digits(float(end)) for end in mean_band(group)[1:]] if group.size > 1 else []
            text = three_digits(table[i, j]) + (f"\n[{', '.join(ends)}]" if ends else "")
            axes.text(j, i, text, ha="center", va="center", color=INK.light, backgroundcolor=(1, 1, 1, 0.7))
    axes.imshow(table, aspect="auto", cmap="cividis")
    axes.grid(visible=False)  # the grid would lie over the cells
    _name_levels(axes.yaxis, _levels(rows, down))
    _name_levels(axes.xaxis, _levels(rows, across))
    axes.set(xlabel=across, ylabel=down)


def _levels(rows: ResultRows, key: str) -> list[Any]:
    """The different values of a key, in order of appearance. No set is used: lists and tables are not hashable."""
    levels: list[Any] = []
    for row in rows:
        if row[key] not in levels:
            levels.append(row[key])
    return levels


def _name_levels(axis: Axis, values: Sequence[Any]) -> None:
    """Label positions 0, 1, ... of an axis with values, or with some of many. Below it they are wrapped, or upright."""
    step = -(-len(values) // 20)
    names = [shortened(str(value)) for value in values[::step]]
    upright = isinstance(axis, XAxis) and sum(map(len, names)) > 36
    if upright and len(names) <= 4:
        names, upright = [textwrap.fill(name, 40 // len(names)) for name in names], False
    axis.set_ticks(range(0, len(values), step), names, rotation=90 if upright else 0)


def _of(rows: ResultRows, point: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    found = [row.get(name) for row in rows if all(row[key] == value for key, value in point.items())]
    return np.array([value for value in found if value is not None], dtype=np.float64)
