"""Draws a simulation of newcomers: regret with its fits, regret by training interval, selections per newcomer."""

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pausefl.results.report.style import DASHES, SERIES, draw_bars, name_clients, powers_of_ten
from pausefl.studies.simulation.curves import recorded_rounds
from pausefl.studies.simulation.figures import draw_fits, legend_below
from pausefl.studies.simulation.newcomers import NewcomerResult

_KINDS = {"relevant": SERIES[0].light, "irrelevant": SERIES[1].light}


def draw_newcomers(result: NewcomerResult, intervals: Iterable[tuple[int, str, int, int, float, float]]) -> Figure:
    """A figure of three panels side by side. `intervals` are the rows of intervals.csv."""
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    regret, by_interval, selections = figure.subplots(1, 3)
    rounds, total = np.arange(1, result.rounds + 1), np.cumsum(result.regret)
    at = recorded_rounds(result.rounds) - 1
    regret.plot(rounds[at], total[at], color=SERIES[0].light, label="regret")
    draw_fits(regret, rounds, total)
    regret.set(title="Regret against the relevant newcomers", xlabel="round", ylabel="Σ Δ of irrelevant chosen")
    legend_below(regret)
    _draw_intervals(by_interval, result, list(intervals))
    _draw_selections(selections, result)
    return figure


def _draw_intervals(axes: Axes, result: NewcomerResult, rows: list[tuple[int, str, int, int, float, float]]) -> None:
    for n, insertion in enumerate(result.insertions):
        points = [(first, mean) for join_round, _, first, _, _, mean in rows if join_round == insertion.round]
        axes.plot(
            *np.array(points).reshape(-1, 2).T, marker="o", color=SERIES[n % len(SERIES)].light,
            linestyle=DASHES[n % len(DASHES)], label=f"joined before round {insertion.round}",
        )  # fmt: skip
    axes.set(title="Regret by training interval", xlabel="m, in groups of doubling size", ylabel="mean of R(I(m))")
    axes.set_xscale("log")
    powers_of_ten(axes.xaxis)
    if result.insertions:
        legend_below(axes)


def _draw_selections(axes: Axes, result: NewcomerResult) -> None:
    ids = [client_id for insertion in result.insertions for client_id in insertion.client_ids]
    axes.set(title="Selections per newcomer", xlabel="newcomer, in the order they joined", ylabel="times chosen")
    if not ids:
        return
    chosen = np.concatenate([insertion.chosen.sum(axis=0) for insertion in result.insertions]).astype(np.float64)
    relevant = np.concatenate([insertion.relevant for insertion in result.insertions])
    for (kind, colour), of_kind in zip(_KINDS.items(), (relevant, ~relevant), strict=True):
        draw_bars(axes, np.zeros(len(ids)), np.where(of_kind, chosen, np.nan), colour, kind)
    axes.set_ylim(0, 1.2 * max(chosen.max(), 1))  # room for the legend above the bars
    axes.locator_params(axis="y", integer=True)
    axes.legend(loc="upper left", ncols=2)
    name_clients(axes, ids)
