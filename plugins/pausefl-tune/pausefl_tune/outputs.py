"""Writes the results of a search: the front as a table, as CSV, as a picture, and as experiments that run."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from pausefl.results.in_words import number
from pausefl.results.report.comparison.figure import legend_above
from pausefl.results.report.style import LIMIT, MUTED, RC, SERIES, write_picture
from pausefl.results.statistics import FEWEST_SEEDS
from pausefl.results.tables import write_records
from pausefl_process.files import write_durably
from pausefl_tune.front import FrontPoint
from pausefl_tune.plan import Objective, Point
from pausefl_tune.tuning import Tuning

SUMMARY = "tuning.json"


def write_tuning(tuning: Tuning) -> None:
    """Write front.csv, front.png, trials.csv, tuning.json and a TOML file for every setting of the front."""
    plan, found, folder = tuning.plan, tuning.tried, tuning.folder
    names = [objective.name for objective in plan.objectives]
    write_records(folder / "front.csv", [_row(tuning, point) for point in tuning.front])
    write_records(folder / "trials.csv", [{**t.point, **dict(zip(names, t.values, strict=True))} for t in found.trials])
    summary = {
        "command": plan.command,
        "by": plan.by,
        "clock": plan.experiment.experiment.clock,
        "keys": list(plan.space),
        "objectives": [asdict(objective) for objective in plan.objectives],
        "trials": [list(trial.values) for trial in found.trials],
        "pruned": found.pruned,
        "refused": len(found.refused),
        "refusals": list(dict.fromkeys(found.refused)),
        "trial_seeds": list(plan.trial_seeds),
        "fresh_seeds": list(plan.unseen_seeds),
        "front": [asdict(point) for point in tuning.front],
        "real_seeds": list(plan.real_clock_seeds),
        "confirmed_objectives": [asdict(objective) for objective in plan.confirmed_objectives],
        "confirmed": [asdict(point) for point in tuning.confirmed],
    }
    write_durably(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    for point in tuning.front:
        write_durably(folder / f"{point.name}.toml", plan.experiment_at(point.point).to_toml())
    write_picture(folder / "front", lambda: draw_front(tuning))


def tables(tuning: Tuning) -> Iterator[Table]:
    """Yield the table of the front on fresh seeds, with changes from the published setting; then the real clock's."""
    plan, found = tuning.plan, tuning.tried
    counts = f"{len(found.trials)} settings tried, {found.pruned} pruned, {len(found.refused)} refused"
    title = f"Pareto front on fresh {_seeds(plan.unseen_seeds)} ({counts})"
    yield _table(tuning, tuning.front, plan.objectives, len(plan.unseen_seeds), title)
    if tuning.confirmed:
        title = f"On the real clock, fresh {_seeds(plan.real_clock_seeds)}"
        yield _table(tuning, tuning.confirmed, plan.confirmed_objectives, len(plan.real_clock_seeds), title)


def _table(
    tuning: Tuning, points: Sequence[FrontPoint], objectives: Sequence[Objective], n_seeds: int, title: str
) -> Table:
    spread = f"without an interval, which needs {FEWEST_SEEDS} seeds"
    if n_seeds >= FEWEST_SEEDS:
        spread = "and the 95 % interval of that"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.caption, table.caption_justify = f"below each figure: its change from the published one, {spread}", "left"
    table.add_column("setting", no_wrap=True)  # the key to front.csv
    for heading in (*(key.rpartition(".")[2] for key in tuning.plan.space), *(o.label for o in objectives)):
        table.add_column(heading, justify="right")
    for point in points:
        cells = (_cell(point, objective.name, n_seeds) for objective in objectives)
        table.add_row(point.name, *(_short(value) for value in _values(tuning, point).values()), *cells)
    if any("→" in str(cell) for column in table.columns for cell in column.cells):
        table.caption += "\n0 → x: x where the published figure is 0, of which no change is a share"
    return table


def _cell(point: FrontPoint, name: str, n_seeds: int) -> str:
    """The mean, its change with the interval, and with how many seeds a target was reached, one a line."""
    lines, change = [number(point.figures[name])], point.changes.get(name)
    if change is None and point.name != "published":
        lines = [f"0 → {lines[0]}"]
    if change is not None:
        lines.append(f"{change.mean:+.1%}")
        lines += [] if change.low is None else [f"{change.low:+.1%} to {change.high:+.1%}"]
    if name == "latency_to_target_s":
        lines.append(f"reached by {point.reached} of {n_seeds} seeds")
    return "\n".join(lines)


def draw_front(tuning: Tuning) -> Figure:
    """A panel for each pair of objectives: every trial, the front, and the published setting on fresh seeds."""
    objectives = tuning.plan.objectives
    pairs = [(x, y) for x in range(len(objectives)) for y in range(x + 1, len(objectives))]
    tried = np.array([trial.values for trial in tuning.tried.trials])
    front = np.array([[point.figures[o.name] for o in objectives] for point in tuning.front])
    with mpl.rc_context(RC):
        figure = Figure(figsize=(4.2 * len(pairs), 3.8), layout="constrained")
        for place, (x, y) in enumerate(pairs, start=1):
            axes = figure.add_subplot(1, len(pairs), place)
            axes.scatter(tried[:, x], tried[:, y], s=12, color=MUTED.light, label="tried")
            axes.scatter(front[:-1, x], front[:-1, y], s=28, color=SERIES[0].light, label="front, fresh seeds")
            edge = SERIES[1].light
            axes.scatter(front[:1, x], front[:1, y], s=90, facecolor="none", edgecolor=edge, label="recommended")
            axes.scatter(front[-1:, x], front[-1:, y], s=90, marker="*", color=LIMIT.light, label="published")
            axes.set(xlabel=objectives[x].label, ylabel=objectives[y].label)
        legend_above(figure)
    return figure


def _values(tuning: Tuning, point: FrontPoint) -> Point:
    """The values of the searched keys. The published setting has no point, so they are the experiment's own."""
    return point.point or tuning.plan.own_point


def _row(tuning: Tuning, point: FrontPoint) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": point.name, **_values(tuning, point)}
    if point.reached is not None:
        row["seeds_reached"] = point.reached
    for name, figure in point.figures.items():
        row[name] = figure
        if change := point.changes.get(name):
            row |= {f"{name}_change": change.mean, f"{name}_change_low": change.low, f"{name}_change_high": change.high}
    return row


def _seeds(seeds: range) -> str:
    return f"seed {seeds.start}" if len(seeds) == 1 else f"seeds {seeds.start} to {seeds.stop - 1}"


def _short(value: Any) -> str:
    return number(value) if value is None or isinstance(value, float) else str(value)
