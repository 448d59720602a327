"""What a search leaves: the front as a table, as CSV, as a picture, and as experiments that run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from pausefl.campaigns.tuning.fresh import PUBLISHED, FrontPoint
from pausefl.campaigns.tuning.plan import LATENCY_TO_TARGET, Objective
from pausefl.campaigns.tuning.space import Point, experiment_at, values_of
from pausefl.report.style import LIMIT, MUTED, RC, SERIES, save_png
from pausefl.results.csv_table import write_records
from pausefl.results.statistics import FEWEST_SEEDS, Interval
from pausefl_process.files import write_durably

if TYPE_CHECKING:
    from pausefl.campaigns.tuning import Tuning

SUMMARY = "tuning.json"


def write_tuning(tuning: "Tuning") -> None:
    """Write front.csv, front.png, trials.csv, tuning.json and a TOML file for every setting of the front."""
    objectives, plan = tuning.plan.objectives, tuning.plan
    write_records(tuning.folder / "front.csv", [_row(tuning, point) for point in tuning.front])
    names = [objective.name for objective in objectives]
    rows = [{**each.point, **dict(zip(names, each.values, strict=True))} for each in tuning.tried.trials]
    write_records(tuning.folder / "trials.csv", rows)
    write_durably(tuning.folder / SUMMARY, json.dumps(_summary(tuning), indent=1, ensure_ascii=False) + "\n")
    for point in tuning.front:
        text = experiment_at(plan.source, point.point).to_toml()
        write_durably(tuning.folder / f"{point.name}.toml", text)
    save_png(draw_front(tuning), tuning.folder / "front.png")


def front_table(tuning: "Tuning") -> Table:
    """The front on fresh seeds, each figure with its change from the published setting and the 95 % interval."""
    found = tuning.tried
    tried = f"{len(found.trials)} settings tried, {found.pruned} pruned, {len(found.refused)} refused"
    objectives = tuning.plan.objectives
    seeds = tuning.plan.unseen_seeds
    return _table(tuning, tuning.front, objectives, seeds, f"Pareto front on fresh {_seeds(seeds)} ({tried})")


def confirmation_table(tuning: "Tuning") -> Table:
    """The recommended and the published setting on the real clock, like `front_table`."""
    seeds, objectives = tuning.plan.real_clock_seeds, tuning.plan.confirmed_objectives
    return _table(tuning, tuning.confirmed, objectives, seeds, f"On the real clock, fresh {_seeds(seeds)}")


def _table(
    tuning: "Tuning", points: Sequence[FrontPoint], objectives: Sequence[Objective], seeds: range, title: str
) -> Table:
    keys = list(tuning.plan.space)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.caption, table.caption_justify = _caption(points, objectives), "left"
    table.add_column("setting", no_wrap=True)  # by which front.csv is read
    for key in keys:
        table.add_column(key.rpartition(".")[2], justify="right")
    for objective in objectives:
        table.add_column(objective.label, justify="right")
    for point in points:
        values = [_short(value) for value in _values(tuning, point).values()]
        table.add_row(point.name, *values, *(_cell(point, objective, len(seeds)) for objective in objectives))
    return table


def _caption(points: Sequence[FrontPoint], objectives: Sequence[Objective]) -> str:
    have_intervals = any(change.low is not None for point in points for change in point.changes.values())
    spread = (
        "and the 95 % interval of that" if have_intervals else f"without an interval, which needs {FEWEST_SEEDS} seeds"
    )
    notes = [f"below each figure: its change from the published one, {spread}"]
    if any(_left_zero(point, objective) for point in points for objective in objectives):
        notes.append("0 → x: x where the published figure is 0, of which no change is a share")
    return "\n".join(notes)


def _left_zero(point: FrontPoint, objective: Objective) -> bool:
    """Whether the published figure is 0, of which this setting's is no share."""
    return point.name != PUBLISHED and objective.name not in point.changes


def draw_front(tuning: "Tuning") -> Figure:
    """A panel for each pair of objectives: every trial, the front, and the published setting on fresh seeds."""
    objectives = tuning.plan.objectives
    pairs = [(x, y) for x in range(len(objectives)) for y in range(x + 1, len(objectives))]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(4.2 * len(pairs), 3.8), layout="constrained")
        for place, (x, y) in enumerate(pairs, start=1):
            axes = figure.add_subplot(1, len(pairs), place)
            values = np.array([trial.values for trial in tuning.tried.trials])
            axes.scatter(values[:, x], values[:, y], s=12, color=MUTED.light, label="tried")
            across, up = np.array([[p.figures[objectives[i].name] for i in (x, y)] for p in tuning.front]).T
            axes.scatter(across[:-1], up[:-1], s=28, color=SERIES[0].light, label="front, fresh seeds")
            edge = SERIES[1].light
            axes.scatter(across[:1], up[:1], s=90, facecolor="none", edgecolor=edge, label="recommended")
            axes.scatter(across[-1:], up[-1:], s=90, marker="*", color=LIMIT.light, label="published")
            axes.set(xlabel=objectives[x].label, ylabel=objectives[y].label)
        figure.axes[0].legend()
    return figure


def _values(tuning: "Tuning", point: FrontPoint) -> Point:
    """The values of the keys searched; of the published setting, which has no point, the experiment's own."""
    return point.point or values_of(tuning.plan.experiment, tuning.plan.space)


def _row(tuning: "Tuning", point: FrontPoint) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": point.name, **_values(tuning, point)}
    if point.reached is not None:
        row["seeds_reached"] = point.reached
    for objective in tuning.plan.objectives:
        row[objective.name] = point.figures[objective.name]
        if change := point.changes.get(objective.name):
            row |= {f"{objective.name}_{part}": value for part, value in _parts(change).items()}
    return row


def _parts(change: Interval) -> Mapping[str, float | None]:
    return {"change": change.mean, "change_low": change.low, "change_high": change.high}


def _cell(point: FrontPoint, objective: Objective, n_seeds: int) -> str:
    """The mean, its change with the interval, and under how many seeds a target was reached: a line each.

    A mean whose published one is 0 stands beside that 0, of which it is no share.
    """
    lines, change = [f"{point.figures[objective.name]:.4g}"], point.changes.get(objective.name)
    if _left_zero(point, objective):
        lines = [f"0 → {lines[0]}"]
    elif change is not None:
        lines.append(f"{change.mean:+.1%}")
        if change.low is not None and change.high is not None:
            lines.append(f"{change.low:+.1%} to {change.high:+.1%}")
    if objective == LATENCY_TO_TARGET and point.reached is not None:
        lines.append(f"reached by {point.reached} of {n_seeds} seeds")
    return "\n".join(lines)


def _summary(tuning: "Tuning") -> dict[str, Any]:
    """What the documents need of a search, without its runs."""
    plan, found = tuning.plan, tuning.tried
    return {
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


def _seeds(seeds: range) -> str:
    return f"seed {seeds.start}" if len(seeds) == 1 else f"seeds {seeds.start} to {seeds.stop - 1}"


def _short(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
