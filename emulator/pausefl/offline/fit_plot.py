"""The picture of fitted laws: how many latencies lie below each value, measured and by the law."""

from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pausefl.offline.fitting import as_written, equal_values
from pausefl.offline.latency_fit import LatencyFit
from pausefl.report.style import RC, SERIES
from pausefl_proto.arrays import FloatArray

PANELS_MAX = 12
_ACROSS = 4
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def draw_fit(fit: LatencyFit) -> Figure:
    """A panel per client; with more than PANELS_MAX clients, of those whose law lies farthest from the data."""
    points = {name: np.sort(fitted.law.points()) for name, fitted in fit.laws.items()}
    # Of more digits, a law that is the data themselves would lie beside each of them.
    measured = {name: as_written(equal_values(latencies)) for name, latencies in fit.latencies.items()}
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
            axes.set_title(f"{name}: {fit.laws[name].table['kind']}, {distance[name]:.2f} apart", fontsize=9)
            axes.set_xlabel("latency (s)")
        figure.axes[0].legend(loc="upper left")
        figure.axes[0].set_ylabel("share below")
    return figure


def greatest_distance(values: FloatArray, points: FloatArray) -> float:
    """The Kolmogorov–Smirnov distance of (n,) values from a law's ascending points."""
    at = np.sort(values)
    gaps = [
        np.searchsorted(at, at, side) / len(at) - np.searchsorted(points, at, side) / len(points) for side in _SIDES
    ]
    return float(np.abs(gaps).max())


def _levels(points: FloatArray) -> FloatArray:
    levels: FloatArray = np.arange(1, len(points) + 1) / len(points)
    return levels
