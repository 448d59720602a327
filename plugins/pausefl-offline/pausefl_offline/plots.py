"""Draws fitted laws and replays."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pausefl.experiment.measured.censoring import equal_values
from pausefl.results.reading import latency_unit
from pausefl.results.report.comparison.figure import legend_above
from pausefl.results.report.style import RC, SERIES, new_figure
from pausefl_offline.fitting import as_written
from pausefl_offline.latency_fit import LatencyFit
from pausefl_proto.arrays import FloatArray

PANELS_MAX = 12
_ACROSS = 4


def draw_fit(fit: LatencyFit) -> Figure:
    """A figure with a panel per client: at most PANELS_MAX, of the clients whose law is farthest from the data."""
    # Both are rounded alike. Otherwise a law that consists of the data would differ from them by rounding.
    points = {name: as_written(np.sort(fitted.law.points())) for name, fitted in fit.laws.items()}
    measured = {name: as_written(equal_values(of.seconds, of.bounds_s)) for name, of in fit.latencies.items()}
    distance = {name: greatest_distance(measured[name], points[name]) for name in points}
    shown = sorted(distance, key=lambda name: -distance[name])[:PANELS_MAX]
    down = -(-len(shown) // _ACROSS)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(11, 0.6 + 2.4 * down), layout="constrained")
        for place, name in enumerate(shown, start=1):
            axes = figure.add_subplot(down, _ACROSS, place)
            values = measured[name]
            steps = [values[0], *values], [0.0, *_levels(values)]
            axes.step(*steps, where="post", color=SERIES[0].light, label="measured")
            axes.plot(points[name], _levels(points[name]), "--", color=SERIES[1].light, label="law")
            axes.set_xlim(0, 1.2 * values[-1])
            who = textwrap.fill(name, 26)  # the width of a panel
            axes.set_title(f"{who}\n{fit.laws[name].table['kind']}, {distance[name]:.2f} apart", fontsize=9)
            axes.set_xlabel("latency (s)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2)
        figure.axes[0].set_ylabel("share below")
        figure.supxlabel("apart: the greatest difference between both shares (Kolmogorov–Smirnov)", fontsize=9)
    return figure


def greatest_distance(values: FloatArray, points: FloatArray) -> float:
    """The Kolmogorov–Smirnov distance between values, (n,), and a law's points."""
    from scipy import stats

    return float(stats.ks_2samp(values, points, method="asymp").statistic)


def _levels(points: FloatArray) -> FloatArray:
    return np.arange(1, len(points) + 1) / len(points)


def draw_replay(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """A figure of total latency by round, recorded and estimated. The title has the share of extrapolated rounds."""
    number, recorded_s, waited_s = (
        np.array([row[name] for row in rounds]) for name in ("round", "recorded_s", "waited_s")
    )
    total, share = summary["total_latency_s"], summary["extrapolated"]["rounds"]
    title = f"{share:.0%} of the estimate's rounds are extrapolated"
    figure, axes = new_figure(title, "round", f"total latency ({latency_unit([summary])})")
    axes.plot(number, recorded_s.cumsum(), color=SERIES[0].light, label=f"{summary['recorded_policy']}, recorded")
    axes.plot(number, waited_s.cumsum(), "--", color=SERIES[1].light, label=f"{summary['policy']}, estimated")
    ends = total["low"], total["high"]
    axes.plot(number[[-1, -1]], ends, "_-", color=SERIES[1].light, label="95 % of the draws")
    legend_above(figure)
    return figure
