"""Draws a reproduced figure like the paper's from its stored summary, together with the published values."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pausefl.results.reading import EPSILON_LABELS
from pausefl.results.report.comparison.figure import band_note
from pausefl.results.report.style import INK, MUTED, RC, SERIES, SURFACE, Look, looks_of, percent_axis
from pausefl_reproduce.played import SMOOTHING_ROUNDS, StoredCurve

StoredSummary = Mapping[str, Any]
"""The content of reproduction.json."""
_ROLES = {"relevant": SERIES[0].light, "irrelevant": SERIES[1].light, None: MUTED.light}
_SPEEDS_MAX = 30
"""The most points of the panel by client. With more clients, each point is the mean of neighbours."""


def draw_reproduction(summary: StoredSummary) -> Figure:
    """The figure of one reproduction. Published values are hollow circles or, for a single number, lines."""
    draw = {
        "latency": _draw_latency,
        "elapsed": _draw_elapsed,
        "rounds": _draw_rounds,
        "selections": _draw_selections,
        "newcomers": _draw_newcomers,
        "best": _draw_best,
    }[summary["drawing"]]
    with mpl.rc_context(RC):
        figure: Figure = draw(summary)
        figure.suptitle(summary["title"], x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.supxlabel(_note(summary), fontsize=8, color=MUTED.light)
    return figure


def _note(summary: StoredSummary) -> str:
    n_seeds, drawing = len(next(iter(summary["series"].values()))["seeds"]), summary["drawing"]
    parts = [f"means over {n_seeds} seeds" if n_seeds > 1 else "one seed, no interval"]
    if n_seeds > 1 and drawing != "selections":
        parts.append(f"the {'black line' if drawing == 'best' else 'band'} is {band_note(n_seeds)}")
    if drawing in {"latency", "elapsed", "rounds"}:
        has_seeds = any("seeds" in (series["accuracy_by_round"] or {}) for series in summary["series"].values())
        parts += ["a thin line is one seed"] if has_seeds else []
        parts.append(f"accuracy smoothed over {SMOOTHING_ROUNDS} rounds")
    if drawing == "latency" and (short := [name for name, series in summary["series"].items() if _is_a_point(series)]):
        parts.append(f"too few rounds to draw the accuracy of {', '.join(short)}")
    if drawing == "latency" and any(_points(summary, name, "accuracy") for name in summary["series"]):
        parts.append("circles: the authors' archived run, one seed")
    if summary["scale"] == "quick":
        parts.append("quick scale")
    return "; ".join(parts)


def _is_a_point(series: Mapping[str, Any]) -> bool:
    """Whether the curve of a series' smoothed accuracy is a single point."""
    curve: StoredCurve | None = series["accuracy_by_latency"]
    return curve is not None and curve["x"][0] == curve["x"][-1]


def _draw_latency(summary: StoredSummary) -> Figure:
    """Two panels: accuracy against latency; greatest leakage against rounds or latency, as in the paper."""
    figure = Figure(figsize=(11.8, 4.6), layout="constrained")
    accuracy, leakage = figure.subplots(1, 2, width_ratios=(1.25, 1))
    looks = looks_of(summary["series"])
    over = summary["leakage_over"]
    for name, series in summary["series"].items():
        _band(accuracy, series["accuracy_by_latency"], looks[name], name)
        _circles(accuracy, _points(summary, name, "accuracy"), looks[name], 0.01)
        _band(leakage, series["leak_by_round" if over == "round" else "leak_by_latency"], looks[name], name)
        if over == "round":
            _circles(leakage, _points(summary, name, "leak"), looks[name], 1.0)
    accuracy.set(title="Accuracy against latency", xlabel="total latency (s)", ylabel="test accuracy")
    percent_axis(accuracy)
    unit = EPSILON_LABELS.get(summary["privacy_unit"], "ε")
    xlabel = "round" if over == "round" else "total latency (s)"
    leakage.set(title="Greatest leakage of a client", xlabel=xlabel, ylabel=unit)
    for axes in (accuracy, leakage):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    handles, labels = accuracy.get_legend_handles_labels()
    if any(_points(summary, name, "accuracy") for name in summary["series"]):
        handles.append(Line2D([], [], marker="o", markerfacecolor="none", color=INK.light, linestyle=""))
        labels.append("archived")
    figure.legend(handles, labels, loc="outside right center", handlelength=3.2)
    return figure


def _draw_elapsed(summary: StoredSummary) -> Figure:
    """Four panels: accuracy, greatest leakage and median leakage against elapsed time; leakage by client."""
    figure = Figure(figsize=(11.8, 8.0), layout="constrained")
    accuracy, greatest, middle, by_client = panels = figure.subplots(2, 2).ravel()
    for name, look in looks_of(summary["series"]).items():
        series = summary["series"][name]
        _band(accuracy, series["accuracy_by_latency"], look, name)
        _band(greatest, series["leak_by_latency"], look, name)
        _band(middle, series["median_leak_by_latency"], look, name)
        epsilons = np.array(series["epsilon_by_speed"])
        groups = np.array_split(np.arange(epsilons.size), min(epsilons.size, _SPEEDS_MAX))
        ranks, means = [group.mean() + 1 for group in groups], [epsilons[group].mean() for group in groups]
        by_client.plot(ranks, means, color=look.colour, linestyle=look.dash)
    unit = EPSILON_LABELS.get(summary["privacy_unit"], "ε")
    accuracy.set(title="Accuracy", xlabel="elapsed time (s)", ylabel="test accuracy")
    percent_axis(accuracy)
    greatest.set(title="Greatest leakage of a client", xlabel="elapsed time (s)", ylabel=unit)
    middle.set(title="Median leakage", xlabel="elapsed time (s)", ylabel=unit)
    by_client.set(title="Leakage after half of the time", xlabel="clients, the fastest first", ylabel=unit)
    for axes in panels:
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    figure.legend(*accuracy.get_legend_handles_labels(), loc="outside right center", handlelength=3.2)
    return figure


def _draw_rounds(summary: StoredSummary) -> Figure:
    figure = Figure(figsize=(7.8, 4.6), layout="constrained")
    axes = figure.subplots()
    for name, look in looks_of(summary["series"]).items():
        _band(axes, summary["series"][name]["accuracy_by_round"], look, name)
    axes.set(title="Accuracy by round", xlabel="round", ylabel="test accuracy", xlim=(0, None))
    percent_axis(axes)
    figure.legend(loc="outside right center", handlelength=3.2)
    return figure


def _draw_selections(summary: StoredSummary) -> Figure:
    """A panel for each series: how often each newcomer was chosen."""
    names = list(summary["series"])
    figure = Figure(figsize=(3.5 * len(names) + 0.6, 4.2), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        chosen = summary["series"][name]["newcomers"]["selections"]
        colours = [_ROLES[each["role"]] for each in chosen.values()]
        axes.bar(np.arange(len(chosen)), [each["mean"] for each in chosen.values()], color=colours)
        axes.set(title=name, xlabel="newcomer")
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("rounds in which it was chosen")
    handles = [Line2D([], [], color=_ROLES[role], linewidth=6) for role in ("relevant", "irrelevant")]
    figure.legend(handles, ["relevant", "irrelevant"], loc="outside right center")
    return figure


def _draw_newcomers(summary: StoredSummary) -> Figure:
    figure = Figure(figsize=(7.8, 4.4), layout="constrained")
    axes = figure.subplots()
    for name, look in looks_of(summary["series"]).items():
        _band(axes, summary["series"][name]["newcomers"]["by_round"], look, name)
    axes.set(title="Newcomers chosen", xlabel="round", ylabel="newcomers a round", xlim=(0, None), ylim=(0, None))
    figure.legend(loc="outside right center", handlelength=3.2)
    return figure


def _draw_best(summary: StoredSummary) -> Figure:
    """A bar for each series' best test accuracy, with its interval or range. Marks show the accuracy of its last model
    and the published one."""
    names = list(summary["series"])
    figure = Figure(figsize=(7.8, 1.6 + 0.55 * len(names)), layout="constrained")
    axes = figure.subplots()
    for row, name in enumerate(names):
        best, by_seed = (summary["series"][name][key] for key in ("best_accuracy", "best_by_seed"))
        axes.barh(row, 100 * best["mean"], height=0.6, color=SERIES[0].light, alpha=0.75)
        low, high = (best["low"], best["high"]) if best["low"] is not None else (min(by_seed), max(by_seed))
        axes.plot([100 * low, 100 * high], [row, row], "|-", color=INK.light, linewidth=1.2)
        last = 100 * summary["series"][name]["last_accuracy"]["mean"]
        axes.plot(last, row, "D", color=INK.light, markerfacecolor=SURFACE.light, markersize=6)
        value = (summary["published"].get(name) or {}).get("best")
        if value is not None:
            axes.plot([value, value], [row - 0.38, row + 0.38], color=SERIES[1].light, linewidth=2.5)
    axes.plot([], [], "D", color=INK.light, markerfacecolor=SURFACE.light, markersize=6, label="last model")
    axes.plot([], [], color=SERIES[1].light, linewidth=2.5, label="published")
    axes.set_yticks(range(len(names)), names, color=INK.light)
    axes.invert_yaxis()
    axes.set(xlabel="best test accuracy (%)", xlim=(0, 100))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _band(axes: Axes, curve: StoredCurve | None, look: Look, label: str) -> None:
    if curve is not None:
        axes.fill_between(curve["x"], curve["low"], curve["high"], color=look.colour, alpha=0.18, linewidth=0)
        axes.plot(curve["x"], curve["mean"], color=look.colour, linestyle=look.dash, label=label)
        for of_seed in curve.get("seeds", ()):
            axes.plot(curve["x"], of_seed, color=look.colour, linewidth=0.5, alpha=0.6)


def _points(summary: StoredSummary, name: str, what: str) -> Sequence[tuple[float, float]]:
    points: Sequence[tuple[float, float]] = (summary["published"].get(name) or {}).get(what, ())
    return points


def _circles(axes: Axes, points: Sequence[tuple[float, float]], look: Look, unit: float) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(
            x, unit * np.array(y), "o", color=look.colour, markerfacecolor="none", markersize=7, markeredgewidth=1.6
        )
