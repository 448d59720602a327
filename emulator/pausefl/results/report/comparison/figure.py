"""Draws the figures of a comparison of policies: what they reached, why one saved time, how newcomers were treated."""

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from pausefl.results.in_words import turn
from pausefl.results.reading import TIME_LABELS, PrivacyFigures, RunData, latency_unit, time_axis
from pausefl.results.report.group_plots import ChoicesByGroup, group_looks, joins, mark_joins, name_joins, so_far
from pausefl.results.report.style import (
    DASHES,
    INK,
    LIMIT,
    MUTED,
    Look,
    capitalised,
    looks_of,
    name_places,
    percent_axis,
)
from pausefl.results.selections import choices_by_group
from pausefl.results.statistics import FEWEST_SEEDS, mean_band, three_digits
from pausefl_proto.arrays import FloatArray
from pausefl_server.records import Split

Runs = Mapping[str, Sequence[RunData]]
ONE_SEED = "one seed: differences may be chance"
_LABEL_WIDTH = 24  # characters: four columns of such labels fit over two panels
_MARKERS = dict(zip(DASHES, "os^Dv<>", strict=True))
"""The marker of each dash, so that policies of one colour have different ones."""
_PANELS_A_ROW = 4


def all_runs(runs: Runs) -> list[RunData]:
    """The runs of all policies in one list, policy by policy."""
    return [run for of_policy in runs.values() for run in of_policy]


def unit_of(runs: Runs) -> str:
    """The unit of the runs' latencies."""
    return latency_unit(run.summary for run in all_runs(runs))


def turn_of(runs: Runs) -> str:
    """What the runs' servers did again and again: "round", "step", or "round or step" if they differ in this."""
    return " or ".join(sorted({turn(run.summary) for run in all_runs(runs)}))


def legend_above(figure: Figure) -> None:
    """Put one legend of all panels above them, where it hides no curve. Long labels are wrapped."""
    told = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    by_label = {textwrap.fill(label, _LABEL_WIDTH): line for of_panel in told for line, label in of_panel}
    if by_label:
        figure.legend(by_label.values(), by_label, loc="outside upper left", ncols=4, handlelength=3.2)


def drawings(
    runs: Runs, split: Split, privacy: PrivacyFigures | None, common_accuracy: float | None
) -> Mapping[str, Callable[[], Figure | None]]:
    """Functions that draw the figures, by file name. A function returns None if the runs have no data for it."""
    return {
        "comparison": lambda: draw_comparison(runs, split, privacy, common_accuracy),
        "why": lambda: draw_why(runs),
        "groups": lambda: draw_groups(runs, split),
    }


def draw_comparison(runs: Runs, split: Split, privacy: PrivacyFigures | None, common_accuracy: float | None) -> Figure:
    """A figure of all policies, with the spread over seeds. Panels for which no run has data are left out."""
    looks = looks_of(runs)
    evaluated = evaluated_runs(runs, split)
    beside = ["leakage", "total"] if privacy else ["total"]
    mosaic: list[Any] = [["accuracy", panel] for panel in beside] if evaluated else [beside]
    width = 10.4 if len(mosaic[0]) > 1 else 7.2
    height = 5.0 if evaluated else 3.4
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplot_mosaic(mosaic, width_ratios=(1.6, 1) if evaluated else None)
    if evaluated:
        _accuracy(panels["accuracy"], evaluated, looks, split, common_accuracy)
    if privacy:
        _leakage(panels["leakage"], runs, looks, privacy)
    _total(panels["total"], runs, looks)
    legend_above(figure)
    figure.supxlabel(seeds_note(max(map(len, runs.values())), "band and whisker"), fontsize=9)
    return figure


def evaluated_runs(runs: Runs, split: Split) -> Runs:
    """The runs of those policies that were evaluated under every seed, and so have a curve."""
    return {policy: found for policy, found in runs.items() if all(run.curve(split)[0].size for run in found)}


def _accuracy(axes: Axes, runs: Runs, looks: Mapping[str, Look], split: Split, common_accuracy: float | None) -> None:
    axis = time_axis(run.summary for run in all_runs(runs))
    for policy, of_policy in runs.items():
        draw_band(axes, [run.curve(split, axis) for run in of_policy], looks[policy], policy)
    metric = all_runs(runs)[0].metric
    title = f"{capitalised(metric)} against {TIME_LABELS[axis].removeprefix('total ')}"
    axes.set(title=title, xlabel=f"{TIME_LABELS[axis]} ({unit_of(runs)})", ylabel=f"{split} {metric}")
    axes.set_xlim(left=0)
    percent_axis(axes)
    if common_accuracy is not None:
        label = f"common {metric} {common_accuracy:.1%}"
        axes.axhline(common_accuracy, color=MUTED.light, linewidth=1, linestyle=":", label=label)


def draw_band(axes: Axes, curves: Sequence[tuple[NDArray[Any], FloatArray]], look: Look, label: str) -> None:
    """Draw the mean over seeds and its band (see `band_note`), interpolated linearly, where all curves have values."""
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if start >= end:  # no common range, as after a single evaluation: only dots are drawn
        axes.plot([x[-1] for x, _ in curves], [y[-1] for _, y in curves], "o", color=look.colour, label=label)
        return
    grid = np.linspace(start, end, 300)
    values = np.array([np.interp(grid, x, y) for x, y in curves])
    mean, low, high = mean_band(values)
    axes.fill_between(grid, low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(grid, mean, color=look.colour, linestyle=look.dash, label=label)


def draw_budget(axes: Axes, budget: float, at: float = 0.0) -> None:
    """Draw a line at a budget, make room above it, and write its value there, from fraction `at` of the x axis on."""
    axes.axhline(budget, color=LIMIT.light, linewidth=1.2, linestyle="--")
    axes.annotate(
        f"budget ε = {budget:g}", (at, budget), xycoords=("axes fraction", "data"), xytext=(4, 3),
        textcoords="offset points", color=LIMIT.light, va="bottom", fontsize=9,
    )  # fmt: skip
    axes.set(xlim=(0, None), ylim=(0, 1.18 * axes.dataLim.y1))


def band_note(n_seeds: int) -> str:
    """What the band (`mean_band`) around a mean over `n_seeds` seeds shows."""
    return "the 95 % bootstrap interval" if n_seeds >= FEWEST_SEEDS else "the range from the least to the greatest seed"


def seeds_note(n_seeds: int, drawn: str) -> str:
    """The note below a figure: the number of seeds, and the meaning of `drawn`, the marks around a mean."""
    return f"means over {n_seeds} seeds; {drawn}: {band_note(n_seeds)}" if n_seeds > 1 else ONE_SEED


def _leakage(axes: Axes, runs: Runs, looks: Mapping[str, Look], privacy: PrivacyFigures) -> None:
    for policy, of_policy in runs.items():
        tables = [run.greatest_leakage for run in of_policy if run.privacy]
        n_rounds = min((len(table["round"]) for table in tables), default=0)
        if n_rounds:  # a run that failed at once has no rounds
            curves = [(table["round"][:n_rounds], table["max_epsilon_spent"][:n_rounds]) for table in tables]
            draw_band(axes, curves, looks[policy], policy)
    budgets = sorted({run.privacy.epsilon_budget for run in all_runs(runs) if run.privacy})
    for i, budget in enumerate(budgets):
        draw_budget(axes, budget, at=i / len(budgets))  # side by side, as budgets may be close to each other
    axes.set(title="Greatest leakage of a client", xlabel=turn_of(runs), ylabel=privacy.label)


def _total(axes: Axes, runs: Runs, looks: Mapping[str, Look]) -> None:
    axis = time_axis(run.summary for run in all_runs(runs))
    values = [np.array([run.summary[axis] for run in of_policy]) for of_policy in runs.values()]
    mean_s, low_s, high_s = np.array([mean_band(v) for v in values]).T
    rows = np.arange(len(runs))
    axes.barh(rows, mean_s, height=0.62, color=[look.colour for look in looks.values()])
    if any(len(v) > 1 for v in values):
        axes.plot([low_s, high_s], [rows, rows], "|-", color=INK.light, linewidth=1.2)
    for row, mean, greatest in zip(rows, mean_s, high_s, strict=True):
        axes.annotate(three_digits(mean), (greatest, row), (5, 0), textcoords="offset points", va="center", fontsize=9)
    name_places(axes.yaxis, list(runs), color=INK.light)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.4 * max(high_s) or 1.0)  # room for the numbers
    axes.locator_params(axis="x", nbins=4)
    axes.set(title=capitalised(TIME_LABELS[axis]), xlabel=f"{TIME_LABELS[axis].split()[-1]} ({unit_of(runs)})")


def draw_why(runs: Runs) -> Figure | None:
    """Two panels: the share of rounds that chose each client, by mean latency; round latencies. None without data."""
    points = chosen_by_latency(runs)
    if not any(found.size for found in points.values()):
        return None
    looks = looks_of(runs)
    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    chosen, rounds = figure.subplots(1, 2)
    _chosen(chosen, runs, looks, points)
    _rounds(rounds, runs, looks)
    legend_above(figure)
    return figure


def mean_latency_s(runs: Sequence[RunData]) -> Mapping[str, float]:
    """The mean measured latency of each client over these runs, by client id."""
    tables = [run.breakdown for run in runs]
    ids, of_client = np.unique(np.concatenate([table["client_id"] for table in tables]), return_inverse=True)
    mean_s = np.bincount(of_client, np.concatenate([table["latency_s"] for table in tables])) / np.bincount(of_client)
    return dict(zip(ids.tolist(), mean_s.tolist(), strict=True))


def chosen_by_latency(runs: Runs) -> Mapping[str, FloatArray]:
    """By policy, (2, n) with a column per client and seed: its mean latency, and the share of rounds that chose it.

    The mean is over all policies. Seeds are kept apart: the client of the same id may have another link under each.
    """
    points: dict[str, list[tuple[float, float]]] = {policy: [] for policy in runs}
    for of_seed in zip(*runs.values(), strict=True):
        latency_s = mean_latency_s(of_seed)
        for policy, run in zip(runs, of_seed, strict=True):
            chosen, rounds = Counter(run.choices["client_id"]), max(len(run.records), 1)
            points[policy] += [(mean_s, chosen[client_id] / rounds) for client_id, mean_s in latency_s.items()]
    return {policy: np.array(found).reshape(-1, 2).T for policy, found in points.items()}


def _chosen(axes: Axes, runs: Runs, looks: Mapping[str, Look], points: Mapping[str, FloatArray]) -> None:
    for policy, (mean_s, share) in points.items():
        colour, dash = looks[policy]
        axes.plot(mean_s, share, _MARKERS[dash], color=colour, markersize=4.5, alpha=0.8, label=policy, clip_on=False)
    axes.set(title="Who was chosen", xlabel=f"client's mean latency ({unit_of(runs)})", ylabel="share of the rounds")
    axes.set_ylim(bottom=0)


def _rounds(axes: Axes, runs: Runs, looks: Mapping[str, Look]) -> None:
    by_elapsed = time_axis(run.summary for run in all_runs(runs)) == "elapsed_s"
    for policy, of_policy in runs.items():
        tables = [run.round_latency for run in of_policy]
        times_s = [np.diff(t["elapsed_s"], prepend=0.0) if by_elapsed else t["round_latency_s"] for t in tables]
        if (took_s := np.concatenate(times_s)).size:
            axes.ecdf(took_s, color=looks[policy].colour, linestyle=looks[policy].dash)
    time, turns = ("time between commits", "rounds or steps") if by_elapsed else ("round latency", "rounds")
    label = f"{time} ({unit_of(runs)})"
    axes.set(title=f"How long {turns} took", xlabel=label, ylabel=f"share of the {turns} up to it")
    axes.set(xlim=(0, None), ylim=(0, 1))


def draw_groups(runs: Runs, split: Split) -> Figure | None:
    """A figure of means over the seeds, with bands (see `band_note`). None if no group joins during the run."""
    choices = {policy: [choices_by_group(run.records, run.groups) for run in runs[policy]] for policy in runs}
    # Those of a run in which most groups joined: others may have failed before.
    groups = max((of_run for seeds in choices.values() for of_run in seeds), key=lambda of_run: len(joins(of_run)))
    if not joins(groups):
        return None
    rows = -(-len(runs) // _PANELS_A_ROW)
    figure = Figure(figsize=(10.4, 3.4 + 3.0 * rows), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.4, 3.0 * rows))[:, 0]
    _around_joins(above, runs, split, groups)
    panels = below.subplots(rows, min(len(runs), _PANELS_A_ROW), sharey=True, squeeze=False)
    for axes in panels.flat[len(runs) :]:
        axes.remove()
    for axes, policy in zip(panels.flat, choices, strict=False):
        _chosen_so_far(axes, choices[policy], groups)
        axes.set(title=policy, xlabel=turn_of(runs), xlim=(0, None))
    panels[0, 0].set_ylim(bottom=0)  # fixes the shared y axis of all panels, so it follows the drawing
    for axes in panels[:, 0]:
        axes.set_ylabel("times chosen so far, per client")
    told = {label: line for axes in below.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    below.legend(told.values(), told, loc="outside right center", handlelength=2.6)
    return figure


def _around_joins(figure: SubFigure, runs: Runs, split: Split, groups: ChoicesByGroup) -> None:
    axes = figure.subplots()
    for policy, evaluated in evaluated_runs(runs, split).items():
        draw_band(axes, [run.curve(split, "round") for run in evaluated], looks_of(runs)[policy], policy)
    metric = all_runs(runs)[0].metric
    axes.set(title=f"{capitalised(metric)} around the joins", xlabel=turn_of(runs), ylabel=f"{split} {metric}")
    axes.set_xlim(0, max(len(run.records) for run in all_runs(runs)))
    percent_axis(axes)
    name_joins(axes, groups, turn_of(runs))
    if axes.get_legend_handles_labels()[0]:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", handlelength=3.2)
    else:
        axes.text(0.5, 0.5, "not evaluated", transform=axes.transAxes, ha="center", color=MUTED.light)


def _chosen_so_far(axes: Axes, seeds: Sequence[ChoicesByGroup], groups: ChoicesByGroup) -> None:
    """Draw how often a client of each group that joined under every seed was chosen so far, on average."""
    looks = group_looks(groups)
    mark_joins(axes, joins(groups))
    for name, group in groups.items():
        if group.join_round and all(name in seed and seed[name].join_round for seed in seeds):
            curves = [so_far(seed[name].chosen / max(seed[name].clients, 1), group.join_round) for seed in seeds]
            draw_band(axes, curves, looks[name], name)
