"""Draws a simulation: regret with its fits and bound, latency, leakage, selections; several side by side; newcomers."""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pausefl.results.in_words import turn
from pausefl.results.reading import EPSILON_LABELS, TIME_LABELS, time_axis
from pausefl.results.report.comparison.figure import draw_band, draw_budget, legend_above, seeds_note
from pausefl.results.report.style import (
    MUTED,
    SERIES,
    capitalised,
    draw_bars,
    draw_times_chosen,
    looks_of,
    name_clients,
    powers_of_ten,
)
from pausefl.studies.simulation.curves import NO_REGRET, ROUNDING, SimulationResult, growth_fits, recorded_rounds
from pausefl.studies.simulation.newcomers import NewcomerResult
from pausefl_proto.arrays import FloatArray, IntArray

SimulatedCurves = Mapping[str, FloatArray]
"""The columns of one simulation by name, including "round"."""

_REGRET = "Σ r(G) − r(S)"
# The dashed line is drawn second, over the other, so that both are visible where they overlap.
_REGRETS = {
    "genie_regret": ("in the genie's objective", "eq. (10)", SERIES[0].light, "-"),
    "regret": ("realised", "eq. (15)", SERIES[1].light, (0, (4, 3))),
}
"""Name, equation, colour and dash of each regret, by its column of the result."""
_SIDE_BY_SIDE = {
    "genie_regret": ("Regret in the genie's objective", _REGRET),
    "regret": ("Regret", "cumulative regret"),
}
"""Title and axis label of each column's panel. Those of time and leakage depend on the experiment."""
_KINDS = {"relevant": SERIES[0].light, "irrelevant": SERIES[1].light}
_GREEK = {"delta": "δ", "tau": "τ", "mu": "μ"}


def draw_simulation(
    result: SimulationResult, bounds: Mapping[str, FloatArray], budget: float | None, summary: Mapping[str, Any]
) -> Figure:
    """A figure with a panel for each result of the simulation. A note below says why regret or a bound is missing.

    `bounds` is bound (17) by reading of δ. `budget` is each client's budget; None without privacy.
    `summary` has its unit, and says whether rounds or steps were simulated.
    """
    panels: list[Callable[[Axes], None]] = []
    if has_regret := bool(np.isfinite(result.genie_regret).any()):
        panels.append(partial(_draw_regret, result=result))
    if has_regret and bounds:
        panels.append(partial(_draw_bounds, result=result, bounds=bounds))
    panels.append(partial(_draw_latency, result=result, summary=summary))
    if budget is not None:
        panels.append(partial(_draw_leakage, result=result, budget=budget, summary=summary))
    n, rows = len(panels), len(panels) // 2 + 1
    figure = Figure(figsize=(10.4, 3.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    for i, draw in enumerate(panels):
        draw(figure.add_subplot(grid[i // 2, i % 2]))
    chosen = figure.add_subplot(grid[n // 2, n % 2 :])  # the rest of the last row
    chosen.set_title("Selections per client")
    draw_times_chosen(chosen, result.client_ids, result.chosen)
    figure.supxlabel("\n".join(_missing(result, bounds, has_regret=has_regret)), fontsize=9)
    return figure


def _missing(result: SimulationResult, bounds: Mapping[str, FloatArray], *, has_regret: bool) -> Iterator[str]:
    if not has_regret:
        yield NO_REGRET
    elif not bounds:
        why = "two clients have the same mean latency" if len(result.client_ids) > 1 else "there is one client"
        yield f"no bound (17), which divides by δ, the least gap between two clients' means: {why}"


def _draw_regret(axes: Axes, result: SimulationResult) -> None:
    for column, (name, equation, colour, dash) in _REGRETS.items():
        label = f"{name}, {equation}"
        axes.plot(result.round, getattr(result, column), color=colour, linestyle=dash, label=label)
    _draw_fits(axes, result.round, result.genie_regret)
    axes.set(title="Regret against the genie", xlabel="round", ylabel=_REGRET)
    _legend_below(axes)


def _draw_fits(axes: Axes, rounds: IntArray, regret: FloatArray) -> None:
    """Draw the fits of ln n and √n to a regret, over the rounds to which they were fitted."""
    fits, late = growth_fits(rounds, regret), rounds[rounds > rounds[-1] / 10]
    shapes = {"ln n": (np.log, "ln n", "-."), "sqrt n": (np.sqrt, "√n", ":")}
    for name, (shape, text, dash) in shapes.items():
        if name in fits:
            values = fits[name]["a"] + fits[name]["b"] * shape(late)
            label = f"a + b {text}: R² {fits[name]['r_squared']:.3f}"
            axes.plot(late, values, color=MUTED.light, linestyle=dash, linewidth=1.4, label=label)


def _draw_bounds(axes: Axes, result: SimulationResult, bounds: Mapping[str, FloatArray]) -> None:
    """Draw bounds and regrets on logarithmic axes: the bound is often more than a thousand times the regret."""
    axes.set(title="Regret beside bound (17)", xlabel="round", ylabel=_REGRET, xscale="log", yscale="log")
    for (reading, bound), bound_dash in zip(bounds.items(), ("-.", ":"), strict=False):
        text = reading
        for name, letter in _GREEK.items():
            text = text.replace(name, letter)
        axes.plot(result.round, bound, color=MUTED.light, linestyle=bound_dash, label=f"bound (17), {text}")
    for column, (name, _, colour, dash) in _REGRETS.items():
        regret = getattr(result, column)
        if (shown := regret > ROUNDING).any():  # smaller values are rounding errors of 0
            values = np.where(shown, regret, math.nan)
            axes.plot(result.round, values, color=colour, linestyle=dash, label=f"{name}, where above 0")
    powers_of_ten(axes.xaxis)
    powers_of_ten(axes.yaxis)
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    """Put the legend below the panel, as curves may cross any part of the panel."""
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.17), borderaxespad=0, handlelength=3.2)


def _draw_latency(axes: Axes, result: SimulationResult, summary: Mapping[str, Any]) -> None:
    axes.plot(result.round, result.total_latency_s, color=SERIES[0].light)
    time, of = TIME_LABELS[time_axis([summary])], turn(summary)
    axes.set(title=capitalised(time), xlabel=of, ylabel=f"{time} (s)", xlim=(0, None), ylim=(0, None))


def _draw_leakage(axes: Axes, result: SimulationResult, budget: float, summary: Mapping[str, Any]) -> None:
    axes.plot(result.round, result.max_epsilon_spent, color=SERIES[0].light)
    draw_budget(axes, budget)
    label = EPSILON_LABELS[summary["privacy_unit"]]
    axes.set(title="Greatest leakage of a client", xlabel=turn(summary), ylabel=label)


def draw_simulations(
    curves: Mapping[str, Sequence[SimulatedCurves]], summary: Mapping[str, Any], notes: Sequence[str] = ()
) -> Figure:
    """A figure with a panel for each column that some policy has values of; `curves` holds one per seed, by policy.

    `summary` has the privacy unit, None without privacy (then no leakage is drawn), and says whether rounds or steps
    were simulated. `notes` are lines below the panels.
    """
    unit, time = summary["privacy_unit"], TIME_LABELS[time_axis([summary])]
    leakage = {"max_epsilon_spent": ("Greatest leakage", EPSILON_LABELS[unit])} if unit else {}
    panels = {**_SIDE_BY_SIDE, "total_latency_s": (capitalised(time), f"{time} (s)"), **leakage}
    names = [name for name in panels if any(_is_known(of_policy, name) for of_policy in curves.values())]
    looks = looks_of(curves)
    figure = Figure(figsize=(10.4, 3.4 * -(-len(names) // 2)), layout="constrained")
    for i, name in enumerate(names, start=1):
        axes = figure.add_subplot(-(-len(names) // 2), min(2, len(names)), i)
        for policy, of_policy in curves.items():
            if _is_known(of_policy, name):
                draw_band(axes, [(each["round"], each[name]) for each in of_policy], looks[policy], policy)
        axes.set(title=panels[name][0], xlabel=turn(summary), ylabel=panels[name][1])
    legend_above(figure)
    lines = (textwrap.fill(note, 130) for note in (seeds_note(max(map(len, curves.values())), "band"), *notes))
    figure.supxlabel("\n".join(lines), fontsize=9)
    return figure


def _is_known(of_policy: Sequence[SimulatedCurves], name: str) -> bool:
    """Whether every seed of the policy has finite values of this column."""
    return all(name in each and np.isfinite(each[name]).all() for each in of_policy)


def draw_newcomers(result: NewcomerResult, intervals: Iterable[tuple[int, str, int, int, float, float]]) -> Figure:
    """A figure of three panels side by side. `intervals` are the rows of intervals.csv."""
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    regret, by_interval, selections = figure.subplots(1, 3)
    rounds, total = np.arange(1, result.rounds + 1), np.cumsum(result.regret)
    at = recorded_rounds(result.rounds) - 1
    regret.plot(rounds[at], total[at], color=SERIES[0].light, label="regret")
    _draw_fits(regret, rounds, total)
    regret.set(title="Regret against the relevant newcomers", xlabel="round", ylabel="Σ Δ of irrelevant chosen")
    _legend_below(regret)
    _draw_intervals(by_interval, result, list(intervals))
    _draw_selections(selections, result)
    return figure


def _draw_intervals(axes: Axes, result: NewcomerResult, rows: list[tuple[int, str, int, int, float, float]]) -> None:
    for joined, look in looks_of(insertion.round for insertion in result.insertions).items():
        points = np.array([(first, mean) for join_round, _, first, _, _, mean in rows if join_round == joined])
        label = f"joined before round {joined}"
        axes.plot(*points.reshape(-1, 2).T, marker="o", color=look.colour, linestyle=look.dash, label=label)
    axes.set(title="Regret by training interval", xlabel="m, in groups of doubling size", ylabel="mean of R(I(m))")
    axes.set_xscale("log")
    powers_of_ten(axes.xaxis)
    if result.insertions:
        _legend_below(axes)


def _draw_selections(axes: Axes, result: NewcomerResult) -> None:
    ids = [client_id for insertion in result.insertions for client_id in insertion.client_ids]
    axes.set(title="Selections per newcomer", xlabel="newcomer, in the order they joined", ylabel="times chosen")
    if not ids:
        return
    chosen = np.concatenate([insertion.chosen.sum(axis=0) for insertion in result.insertions]).astype(np.float64)
    relevant = np.concatenate([insertion.relevant for insertion in result.insertions])
    for (kind, colour), of_kind in zip(_KINDS.items(), (relevant, ~relevant), strict=True):
        draw_bars(axes.fill_between, np.zeros(len(ids)), np.where(of_kind, chosen, np.nan), colour, kind)
    axes.set_ylim(0, 1.2 * max(chosen.max(), 1))  # room for the legend above the bars
    axes.locator_params(axis="y", integer=True)
    axes.legend(loc="upper left", ncols=2)
    name_clients(axes, ids)
