"""Draws a simulation: regret with its fits and bound, latency, leakage, selections. And several, side by side."""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pausefl.results.reading import EPSILON_LABELS
from pausefl.results.report.comparison.figure import draw_band, draw_budget, legend_above, policy_looks, seeds_note
from pausefl.results.report.style import MUTED, SERIES, capitalised, draw_times_chosen, powers_of_ten
from pausefl.studies.simulation.curves import SimulationResult
from pausefl.studies.simulation.growth import NO_REGRET, ROUNDING, growth_fits
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.privacy_unit import PrivacyUnit

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
_GREEK = {"delta": "δ", "tau": "τ", "mu": "μ"}


def draw_simulation(
    result: SimulationResult, bounds: Mapping[str, FloatArray], unit: PrivacyUnit, budget: float | None, time: str
) -> Figure:
    """A figure with a panel for each result of the simulation. A note below says why regret or a bound is missing.

    `bounds` is bound (17) by reading of δ. `budget` is each client's budget in `unit`; None without privacy.
    `time` names the time that passed.
    """
    panels: list[Callable[[Axes], None]] = []
    if has_regret := bool(np.isfinite(result.genie_regret).any()):
        panels.append(partial(_draw_regret, result=result))
    if has_regret and bounds:
        panels.append(partial(_draw_bounds, result=result, bounds=bounds))
    panels.append(partial(_draw_latency, result=result, time=time))
    if budget is not None:
        panels.append(partial(_draw_leakage, result=result, label=EPSILON_LABELS[unit], budget=budget))
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
    draw_fits(axes, result.round, result.genie_regret)
    axes.set(title="Regret against the genie", xlabel="round", ylabel=_REGRET)
    legend_below(axes)


def draw_fits(axes: Axes, rounds: IntArray, regret: FloatArray) -> None:
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
    legend_below(axes)


def legend_below(axes: Axes) -> None:
    """Put the legend below the panel, as curves may cross any part of the panel."""
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.17), borderaxespad=0, handlelength=3.2)


def _draw_latency(axes: Axes, result: SimulationResult, time: str) -> None:
    axes.plot(result.round, result.total_latency_s, color=SERIES[0].light)
    axes.set(title=capitalised(time), xlabel="round", ylabel=f"{time} (s)", xlim=(0, None), ylim=(0, None))


def _draw_leakage(axes: Axes, result: SimulationResult, label: str, budget: float) -> None:
    axes.plot(result.round, result.max_epsilon_spent, color=SERIES[0].light)
    draw_budget(axes, budget)
    axes.set(title="Greatest leakage of a client", xlabel="round", ylabel=label)


def draw_simulations(
    curves: Mapping[str, Sequence[SimulatedCurves]], unit: PrivacyUnit | None, time: str, notes: Sequence[str] = ()
) -> Figure:
    """A figure with a panel for each column that some policy has values of; `curves` holds one per seed, by policy.

    `unit` is the privacy unit; None without privacy: then no leakage is drawn. `time` names the time that passed.
    `notes` are lines below the panels.
    """
    leakage = {"max_epsilon_spent": ("Greatest leakage", EPSILON_LABELS[unit])} if unit else {}
    panels = {**_SIDE_BY_SIDE, "total_latency_s": (capitalised(time), f"{time} (s)"), **leakage}
    names = [name for name in panels if any(_is_known(of_policy, name) for of_policy in curves.values())]
    looks = policy_looks(curves)
    figure = Figure(figsize=(10.4, 3.4 * -(-len(names) // 2)), layout="constrained")
    for i, name in enumerate(names, start=1):
        axes = figure.add_subplot(-(-len(names) // 2), min(2, len(names)), i)
        for policy, of_policy in curves.items():
            if _is_known(of_policy, name):
                draw_band(axes, [(each["round"], each[name]) for each in of_policy], looks[policy], policy)
        axes.set(title=panels[name][0], xlabel="round", ylabel=panels[name][1])
    legend_above(figure)
    n_seeds = max(map(len, curves.values()))
    lines = (textwrap.fill(note, 130) for note in (seeds_note(n_seeds, "band"), *notes))
    figure.supxlabel("\n".join(lines), fontsize=9)
    return figure


def _is_known(of_policy: Sequence[SimulatedCurves], name: str) -> bool:
    """Whether every seed of the policy has finite values of this column."""
    return all(name in each and np.isfinite(each[name]).all() for each in of_policy)
