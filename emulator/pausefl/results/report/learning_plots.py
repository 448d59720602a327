"""Draws what Fed-TS learned about newcomers: Beta densities, drifts against the threshold, participation sizes."""

import math
from collections import defaultdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from pausefl.results.report.group_plots import NO_GROUP, ChoicesByGroup, group_looks, group_of_client, joins, mark_joins
from pausefl.results.report.learning import Learning
from pausefl.results.report.style import INK, MUTED, looks_of, new_figure
from pausefl_proto.arrays import FloatArray

_PANELS = 4
_MOST_LINES = 60
"""If there are more curves than this, they are drawn as pixels, so that the page stays small."""
_GREATEST_DENSITY = 15.0
"""The highest end of the density axis. A newcomer that never failed has a density at 1 that grows with every round."""
_MARKERS = {"small": ("o", 16, 0.75), "large": ("x", 18, 0.75), "original": (".", 14, 0.35)}
"""The marker of a drift, its area in points² and its opacity, by what the drift counted as."""


def posteriors(learnt: Learning, groups: ChoicesByGroup) -> Figure:
    """The density of each newcomer's Beta(s, f), coloured by group, after a few rounds since the first insertion."""
    looks, group_of = group_looks(groups), group_of_client(groups)
    x = np.linspace(0.0025, 0.9975, 200)
    first, last = int(learnt.join_round.min()), len(learnt.s)
    # The rounds are closer to each other at the beginning, when the posteriors change most.
    rounds = sorted({round(first + (last - first) * (k / (_PANELS - 1)) ** 2) for k in range(_PANELS)})
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    panels = figure.subplots(1, len(rounds), sharey=True, squeeze=False)[0]
    for axes, t in zip(panels, rounds, strict=True):
        for newcomer in np.flatnonzero(learnt.join_round <= t):
            look = looks.get(group_of.get(learnt.newcomers[newcomer], ""), NO_GROUP)
            density = beta_density(x, int(learnt.s[t - 1, newcomer]), int(learnt.f[t - 1, newcomer]))
            is_crowd = len(learnt.newcomers) > _MOST_LINES
            axes.plot(x, density, color=look.colour, linestyle=look.dash, linewidth=1.2, alpha=0.7, rasterized=is_crowd)
        axes.set(title=f"after round {t}", xlim=(0, 1))
        axes.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
    panels[0].set(ylabel="density of Beta(s, f)", ylim=(0, min(panels[0].get_ylim()[1], _GREATEST_DENSITY)))
    figure.supxlabel("chance that a newcomer's drift is small", fontsize=10, color=INK.light)
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dash, label=name)
        for name, look in looks.items()
        if name in {group_of.get(client_id) for client_id in learnt.newcomers}
    ]
    figure.legend(handles=handles, loc="outside right center", handlelength=2.6)
    return figure


def threshold(learnt: Learning, groups: ChoicesByGroup) -> Figure | None:
    """The drifts by round, coloured by group, and the threshold they were compared with. None if all drifts are 0."""
    looks, drifts = group_looks(groups), learnt.drifts
    if not (drifts["drift"] > 0).any():
        return None
    figure, axes = new_figure("Drifts and threshold", "round", "drift (squared L2 distance)", height=4.2)
    group_of = group_of_client(groups)
    of_row = np.array([group_of.get(client_id, "") for client_id in drifts["client_id"]])
    counted_as = np.where(drifts["original"], "original", np.where(drifts["small"], "small", "large"))
    for kind, (marker, area, opacity) in _MARKERS.items():
        for group in np.unique(of_row):
            rows = (counted_as == kind) & (of_row == group)
            axes.scatter(
                drifts["round"][rows], drifts["drift"][rows], s=area, marker=marker, alpha=opacity,
                color=looks.get(group, NO_GROUP).colour, linewidths=1.1 if marker == "x" else 0,
                rasterized=len(of_row) > 2000,
            )  # fmt: skip
    rounds = np.arange(1, len(learnt.threshold) + 1)
    axes.hlines(learnt.threshold, rounds - 0.5, rounds + 0.5, color=INK.light, linewidth=1.6)
    mark_joins(axes, joins(groups))
    _log_scale(axes)
    axes.set_xlim(left=learnt.join_round.min() - 1)
    figure.legend(handles=_key(groups, set(of_row)), loc="outside right center")
    return figure


def participation(learnt: Learning) -> Figure:
    """The participation size p by round: how many newcomers of each insertion were chosen."""
    figure, axes = new_figure("Participation size", "round", "newcomers chosen, p")
    sizes = learnt.sizes
    for insertion, look in looks_of(sizes).items():
        rounds, chosen = np.arange(insertion, len(learnt.s) + 1), sizes[insertion][insertion - 1 :]
        label = f"{insertion}, {(learnt.join_round == insertion).sum()} newcomers"
        axes.step(rounds, chosen, where="mid", label=label, color=look.colour, linestyle=look.dash)
    mark_joins(axes, sizes)
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.locator_params(axis="y", integer=True)
    figure.legend(loc="outside right center", title="joined at round", title_fontsize=9, alignment="left")
    return figure


def beta_density(x: FloatArray, s: int, f: int) -> FloatArray:
    """The density of Beta(s, f) at each x in (0, 1)."""
    log_beta = math.lgamma(s) + math.lgamma(f) - math.lgamma(s + f)
    density: FloatArray = np.exp((s - 1) * np.log(x) + (f - 1) * np.log1p(-x) - log_beta)
    return density


def _log_scale(axes: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers as labels. A short range gets more labels."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 30 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _key(groups: ChoicesByGroup, drawn: set[str]) -> list[Line2D]:
    """The entries of the legend: a dot per colour with its groups, the markers in grey, and the threshold."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, look in group_looks(groups).items():
        if name in drawn:
            names[look.colour].append(name)
    labels = {"small": "small: s + 1", "large": "large: f + 1", "original": "an original's"}
    return [
        *(_dot("o", colour, " … ".join(dict.fromkeys((of[0], of[-1])))) for colour, of in names.items()),
        *(_dot(_MARKERS[kind][0], MUTED.light, label) for kind, label in labels.items()),
        Line2D([], [], color=INK.light, linewidth=1.6, label="threshold"),
    ]


def _dot(marker: str, colour: str, label: str) -> Line2D:
    width = 1.1 if marker == "x" else 0.0
    return Line2D([], [], linestyle="", marker=marker, markersize=5, markeredgewidth=width, color=colour, label=label)
