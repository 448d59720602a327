"""Draws simulated policies side by side: per policy a line, the mean over its seeds, within a band."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pausefl.results.reading import EPSILON_LABELS
from pausefl.results.report.comparison.figure import draw_band, legend_above, policy_looks, seeds_note
from pausefl.results.report.style import capitalised
from pausefl_proto.privacy_unit import PrivacyUnit

SimulatedCurves = Mapping[str, NDArray[np.float64]]
"""The columns of one simulation by name, including "round"."""

_PANELS = {
    "genie_regret": ("Regret in the genie's objective", "Σ r(G) − r(S)"),
    "regret": ("Regret", "cumulative regret"),
}
"""Title and axis label of each column's panel. Those of time and leakage depend on the experiment."""


def draw_simulations(
    curves: Mapping[str, Sequence[SimulatedCurves]], unit: PrivacyUnit | None, time: str, notes: Sequence[str] = ()
) -> Figure:
    """A figure with a panel for each column that some policy has values of; `curves` holds one per seed, by policy.

    `unit` is the privacy unit; None without privacy: then no leakage is drawn. `time` names the time that passed.
    `notes` are lines below the panels.
    """
    leakage = {"max_epsilon_spent": ("Greatest leakage", EPSILON_LABELS[unit])} if unit else {}
    panels = {**_PANELS, "total_latency_s": (capitalised(time), f"{time} (s)"), **leakage}
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
