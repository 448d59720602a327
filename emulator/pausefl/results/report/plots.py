"""Draws the figures of one run, as the papers do. Each function takes a run and returns one figure."""

import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pausefl.results.accounting import late_releases
from pausefl.results.in_words import turn
from pausefl.results.labels import LabelCounts, clients_labels
from pausefl.results.reading import TIME_LABELS, PrivacyFigures, RunData, latency_unit, open_database, time_axis
from pausefl.results.report import group_plots, learning_plots
from pausefl.results.report.comparison.figure import draw_budget, legend_above
from pausefl.results.report.group_plots import DRAWN_SPLITS, ChoicesByGroup, accuracy_around_joins, joins
from pausefl.results.report.learning import learning
from pausefl.results.report.style import (
    DASHES,
    INK,
    LIMIT,
    MOST_NAMED,
    MUTED,
    PARTS,
    SERIES,
    capitalised,
    draw_bars,
    draw_times_chosen,
    make_room,
    name_clients,
    name_places,
    new_figure,
    percent_axis,
)
from pausefl.results.selections import choices_by_group
from pausefl_proto.arrays import FloatArray

_MEDIAN_OF_MOST = 25
"""A running median covers at most this many rounds."""
MOST_DOTS = 20_000
"""If there are more exchanges than this, a figure of all exchanges shows this many, drawn at random."""


def drawings(run: RunData) -> Mapping[str, Callable[[], Figure | None]]:
    """Functions that draw the run's figures, by file name. A function returns None if the run has no data for it."""
    groups = cache(lambda: choices_by_group(run.records, run.groups))
    learnt = cache(lambda: learning(run))
    has_exchanges = cache(lambda: bool(run.breakdown["round"].size))
    is_evaluated, private = bool(run.accuracy["round"].size), run.privacy
    released = cache(lambda: private if private and run.leakage["round"].size else None)
    return {
        "accuracy": lambda: accuracy(run) if is_evaluated else None,
        "labels": lambda: labels(held) if (held := clients_labels(run)) else None,
        "selections": lambda: _selections(run, groups()),
        "joins": lambda: accuracy_around_joins(run, groups()) if is_evaluated and joins(groups()) else None,
        "threshold": lambda: learning_plots.threshold(known, groups()) if (known := learnt()) else None,
        "posteriors": lambda: learning_plots.posteriors(known, groups()) if (known := learnt()) else None,
        "participation": lambda: learning_plots.participation(known) if (known := learnt()) else None,
        "rounds": lambda: latency_by_round(run) if has_exchanges() else None,
        "latency": lambda: latency(run) if has_exchanges() else None,
        "breakdown": lambda: breakdown(run) if has_exchanges() else None,
        "waterfall": lambda: waterfall(run) if has_exchanges() else None,
        "leakage": lambda: leakage(run, privacy) if (privacy := released()) else None,
        "releases": lambda: releases(run, privacy) if (privacy := released()) else None,
    }


def _selections(run: RunData, groups: ChoicesByGroup) -> Figure | None:
    if groups and len(run.records):
        return group_plots.selections(run, groups)
    return selections(run) if run.clients["client_id"].size else None


def accuracy(run: RunData) -> Figure:
    """Accuracy against total latency (asynchronous: elapsed time), a line for each split that was evaluated."""
    axis = time_axis([run.summary])
    title = f"{capitalised(run.metric)} against {TIME_LABELS[axis].removeprefix('total ')}"
    figure, axes = new_figure(title, f"{TIME_LABELS[axis]} ({latency_unit([run.summary])})", run.metric)
    for split, colour, dash in zip(DRAWN_SPLITS, SERIES, DASHES, strict=False):
        time_s, values = run.curve(split, axis)
        if values.size:
            label = f"{split} {values[-1]:.1%}\n({run.curve(split, 'n_examples')[0][-1]:,} examples)"
            axes.plot(time_s, values, color=colour.light, linestyle=dash, label=label, **_dots(values))
    percent_axis(axes)
    axes.set_xlim(left=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _dots(values: FloatArray) -> Mapping[str, Any]:
    """The options that mark up to 20 values by dots: a line does not show where they lie, and one value is no line."""
    return {"marker": "o" if values.size <= 20 else "", "markersize": 4}


def latency_by_round(run: RunData) -> Figure:
    """The latency of each round, with the communication and the device's own work of its slowest exchange."""
    of = turn(run.summary)
    figure, axes = new_figure(f"Latency by {of}", of, f"latency ({latency_unit([run.summary])})")
    rounds, of_exchange, table = run.round_latency["round"], run.breakdown["round"], run.breakdown
    communication_s = table["communication_s"] / run.summary["time_scale"]
    by_round = np.lexsort((table["latency_s"], of_exchange))
    slowest = by_round[np.flatnonzero(np.diff(of_exchange[by_round], append=0))]
    latency_s, n = run.round_latency["round_latency_s"], min(_MEDIAN_OF_MOST, 1 + len(rounds) // 20)
    if n > 1:
        is_large = len(rounds) > 2000
        axes.plot(rounds, latency_s, ".", markersize=2, color=MUTED.light, label=f"each {of}", rasterized=is_large)
    of_rounds = f"median of {n} {of}s" if n > 1 else of
    wide = {**_dots(rounds), "linewidth": 5, "markersize": 8, "alpha": 0.35}  # seen below an equal part's line
    axes.plot(rounds, _running_median(latency_s, n), color=INK.light, label=of_rounds, **wide)
    parts = (("communication of the slowest", communication_s), ("its device's own work", table["device_s"]))
    for (label, part_s), colour, dash in zip(parts, SERIES, DASHES, strict=False):
        values = _running_median(part_s[slowest], n)
        axes.plot(of_exchange[slowest], values, color=colour.light, linestyle=dash, label=label, **_dots(values))
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _running_median(values: FloatArray, n: int) -> FloatArray:
    """For each value, the median of the `n` values around it; at the ends, of fewer."""
    return np.array([np.median(values[max(0, i - n // 2) : i - n // 2 + n]) for i in range(len(values))])


def leakage(run: RunData, privacy: PrivacyFigures) -> Figure:
    """The greatest ε that any client has spent, by round, with a line at the budget."""
    figure, axes = new_figure("Greatest leakage", turn(run.summary), f"greatest ε spent by a client\n({privacy.label})")
    table = run.greatest_leakage
    spent = table["max_epsilon_spent"]
    axes.step(table["round"], spent, where="post", color=SERIES[0].light, **_dots(spent))
    draw_budget(axes, privacy.epsilon_budget)
    return figure


def releases(run: RunData, privacy: PrivacyFigures) -> Figure:
    """The releases by client and round: a dot if in time, a ring if late. Areas are proportional to the ε."""
    ids, in_time, late = run.clients["client_id"], run.leakage, late_releases(run.path)
    n_in_time, n_late = len(in_time["client_id"]), len(late["client_id"])
    shown = _shown(n_in_time + n_late)
    dots, rings = shown[shown < n_in_time], shown[shown >= n_in_time] - n_in_time
    height = max(3.2, min(7.0, 1.2 + 0.16 * len(ids)))
    figure, axes = new_figure("Releases", turn(run.summary), "client", height=height)
    diameter_pt = min(6.5, max(1.2, 55 * height / len(ids)))  # a dot stays in its client's row, or is seen at least
    greatest = np.concatenate((in_time["epsilon"], late["epsilon"])).max()
    for table, of_it, fill, edge in ((in_time, dots, SERIES[0].light, "none"), (late, rings, "none", SERIES[1].light)):
        rows = np.searchsorted(ids, table["client_id"][of_it])
        area = diameter_pt**2 * table["epsilon"][of_it] / greatest
        is_dense = len(rows) > 2000
        axes.scatter(table["round"][of_it], rows, s=area, facecolors=fill, edgecolors=edge, rasterized=is_dense)
    notes = [_out_of(n_in_time + n_late), f"area: {privacy.label} of the release, greatest {greatest:.3g}"]
    axes.set_title("\n".join(filter(None, notes)), loc="right", **_NOTE)
    axes.grid(axis="x")
    axes.set(xlim=(0, None), ylim=(len(ids) - 0.4, -0.6))
    name_places(axes.yaxis, ids, fontsize=7)
    return figure


def _shown(n: int) -> NDArray[np.int64]:
    """The ascending indices of those of `n` exchanges that a figure shows. Random ones follow no pattern of rounds."""
    if n <= MOST_DOTS:
        return np.arange(n)
    return np.sort(np.random.default_rng(n).choice(n, MOST_DOTS, replace=False, shuffle=False))


def _out_of(n: int) -> str:
    """A note that only some of `n` exchanges are shown; empty if all are."""
    return "" if n <= MOST_DOTS else f"{MOST_DOTS:,} of {n:,}, drawn at random"


def labels(held: LabelCounts) -> Figure:
    """How many examples of each label each client holds, as bars with widths proportional to these numbers."""
    counts = np.array([*held.values()])
    n_clients, classes = counts.shape
    height = max(3.2, min(7.0, 1.2 + 0.16 * n_clients))
    figure, axes = new_figure("Labels of each client's examples", "label", "client", height=height)
    clients, classes_held = np.nonzero(counts)
    examples = counts[clients, classes_held]
    half, row_pt = 0.45 * examples / examples.max(), min(8, 55 * height / n_clients)
    ends = classes_held - half, classes_held + half
    axes.hlines(clients, *ends, linewidth=row_pt, color=SERIES[0].light, rasterized=len(half) > 2000)
    axes.set_title(f"width: examples, at most {examples.max():,}", loc="right", **_NOTE)
    axes.grid(axis="x")
    axes.set(xlim=(-0.6, classes - 0.4), ylim=(n_clients - 0.4, -0.6))
    axes.set_xticks(range(0, classes, -(-classes // 20)))
    name_places(axes.yaxis, [*held], fontsize=7)
    return figure


def selections(run: RunData) -> Figure:
    """How often each client was chosen, with a line at the mean of a uniform choice."""
    figure, axes = new_figure("Selections per client", "client", "times chosen")
    draw_times_chosen(axes, run.clients["client_id"], run.clients["times_chosen"])
    return figure


def latency(run: RunData) -> Figure:
    """The drawn delay and the measured time of exchanges: on the left by client, on the right one against the other."""
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    by_client, by_exchange = figure.subplots(1, 2, width_ratios=(1.7, 1))
    names, column = ("drawn delay", "measured communication time"), "communication_s"
    if run.has_total_delays:
        names, column = ("drawn total", "measured round trip"), "round_trip_s"
    drawn_s, measured_s = run.breakdown["drawn_s"], run.breakdown[column]
    _latency_by_client(by_client, run, drawn_s, measured_s)
    limit_s = 1.05 * max(drawn_s.max(), measured_s.max(), 1e-3)
    by_exchange.plot([0, limit_s], [0, limit_s], color=INK.light, linewidth=1, label="measured = drawn")
    shown = _shown(len(drawn_s))
    suspect = np.isin(run.breakdown["round"][shown], run.suspect_rounds["round"])
    for of_kind, colour, marker, label in ((~suspect, SERIES[1], "o", ""), (suspect, LIMIT, "x", "suspect")):
        rows = shown[of_kind]
        if len(rows):
            by_exchange.scatter(
                drawn_s[rows], measured_s[rows], s=7, alpha=0.5, color=colour.light,
                linewidths=0.8, marker=marker, label=label, rasterized=len(rows) > 2000,
            )  # fmt: skip
    drawn, measured = (_in_seconds(run, name) for name in names)
    by_exchange.set(title="Each exchange", xlabel=drawn, ylabel=measured)
    by_exchange.text(0.03, 0.97, _out_of(len(drawn_s)), transform=by_exchange.transAxes, va="top", **_NOTE)
    by_exchange.set(xlim=(0, limit_s), ylim=(0, limit_s), aspect="equal")
    by_exchange.locator_params(nbins=5)
    legend_above(figure)
    return figure


def _latency_by_client(axes: Axes, run: RunData, drawn_s: FloatArray, measured_s: FloatArray) -> None:
    """Draw each client's median and 10–90 % range of drawn delays and of measured times."""
    ids, of_client = np.unique(run.breakdown["client_id"], return_inverse=True)
    drawn, measured = (_quantiles(values, of_client) for values in (drawn_s, measured_s))
    order = np.argsort(drawn[1])
    size = 3.5 if len(ids) <= MOST_NAMED else 1
    for shift, (low, median, high), colour, label in (
        (-0.15, drawn, INK, "drawn"),
        (0.15, measured, SERIES[1], "measured"),
    ):
        x = np.arange(len(ids)) + shift
        axes.vlines(x, low[order], high[order], color=colour.light, linewidth=1, alpha=0.6)
        axes.plot(x, median[order], "o", markersize=size, color=colour.light, label=label)
    pings = dict(zip(run.ping_baseline["client_id"], run.ping_baseline["ping_mean_s"], strict=True))
    if any(ping_s > 0 for ping_s in pings.values()):  # on the virtual clock pings take no time
        ping_s = [pings.get(client_id, np.nan) for client_id in ids[order]]
        axes.plot(ping_s, "_", markersize=size + 2, color=MUTED.light, label="ping, idle")
    seconds = _in_seconds(run, "median and 10–90 %")
    axes.set(title="Latency of each client", xlabel="client, by drawn delay", ylabel=seconds)
    axes.set_ylim(bottom=0)
    name_clients(axes, ids[order])


def breakdown(run: RunData) -> Figure:
    """The mean time of each client's exchanges by part, as stacked bars."""
    ids, of_client = np.unique(run.breakdown["client_id"], return_inverse=True)
    mean_s = {part: np.bincount(of_client, run.breakdown[part]) / np.bincount(of_client) for part in PARTS}
    order = np.argsort(np.sum(list(mean_s.values()), axis=0))
    figure, axes = new_figure("Where the time goes", "client, by exchange", _in_seconds(run, "mean exchange"), 4.0)
    bottom_s = np.zeros(len(ids))
    for part, (label, colour) in PARTS.items():
        top_s = bottom_s + np.maximum(mean_s[part][order], 0)
        draw_bars(axes.fill_between, bottom_s, top_s, colour.light, label)
        bottom_s = top_s
    axes.set_ylim(0, bottom_s.max() * 1.05 or 1.0)  # 1.0 if no exchange took any time
    figure.legend(**_LEGEND_OF_PARTS, reverse=True)
    name_clients(axes, ids[order])
    return figure


def waterfall(run: RunData) -> Figure:
    """The exchanges of one round, the one of median latency: per client, the parts one after the other."""
    number = _median_round(run)
    table, missed = run.breakdown.of_round(number), _given_up(run, number)
    order = np.argsort(table["exchange_s"])
    ids = table["client_id"][order]
    height = max(2.6, min(7.0, 1.4 + 0.3 * len(ids)))
    title = f"{capitalised(turn(run.summary))} {number}, of median latency"
    figure, axes = new_figure(title, _in_seconds(run, "since framing began"), "", height)
    suspect = run.suspect_rounds["reason"][run.suspect_rounds["round"] == number]
    doubts = [f"suspect: {', '.join(suspect)}"] * bool(suspect.size)
    doubts += [f"given up: {', '.join(missed[:MOST_NAMED])}"] * bool(missed)
    if lines := textwrap.wrap("; ".join(doubts), 80):  # between the title and the axes
        make_room(axes, len(lines))
        look = {**_NOTE, "color": LIMIT.light, "xycoords": "axes fraction", "textcoords": "offset points"}
        axes.annotate("\n".join(lines), (0, 1), xytext=(0, 4), va="bottom", **look)
    left_s = np.zeros(len(ids))
    for part, (label, colour) in PARTS.items():
        right_s = left_s + np.maximum(table[part][order], 0)
        draw_bars(axes.fill_betweenx, left_s, right_s, colour.light, label)
        left_s = right_s
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    name_places(axes.yaxis, ids)
    figure.legend(**_LEGEND_OF_PARTS)
    return figure


def _given_up(run: RunData, number: int) -> list[str]:
    """The clients that the committed attempt at a round or step gave up, each with its wait; not of failed attempts."""
    query = "SELECT client_id, waited_s FROM misses JOIN rounds USING (round, attempt) WHERE round = ? ORDER BY 1"
    with open_database(run.path) as database:
        return [f"{c} after {waited_s:.3g} s" for c, waited_s in database.execute(query, (number,))]


_LEGEND_OF_PARTS: Mapping[str, Any] = {"loc": "outside right center", "title": "part, in order", "title_fontsize": 9}
_NOTE: Mapping[str, Any] = {"fontsize": 9, "fontweight": "normal", "color": MUTED.light}


def _in_seconds(run: RunData, what: str) -> str:
    """The label of an axis of times that are not at the emulated scale. If the scale is not 1, the label says so."""
    scale = run.summary["time_scale"]
    return f"{what} (s)" if scale == 1 else f"{what}\n{run.summary['clock']} seconds (time_scale {scale:g})"


def _quantiles(values: FloatArray, of_client: NDArray[np.intp]) -> FloatArray:
    """(3, n_clients): each client's 10 % quantile, median and 90 % quantile."""
    ends = np.cumsum(np.bincount(of_client))[:-1]
    groups = np.split(values[np.argsort(of_client, kind="stable")], ends)
    return np.column_stack([np.quantile(group, (0.1, 0.5, 0.9)) for group in groups])


def _median_round(run: RunData) -> int:
    """The number of the round with the median latency, among committed rounds with at least one answer."""
    answered = np.isin(run.round_latency["round"], run.breakdown["round"])
    rounds, latency_s = (run.round_latency[column][answered] for column in ("round", "round_latency_s"))
    return int(rounds[np.argsort(latency_s, kind="stable")[len(rounds) // 2]])
