"""The picture of a replay: the latency that was waited, and the one that another policy would have waited."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pausefl.report.style import RC, SERIES, new_figure, whisker

_DRAWN = ("round", "recorded_s", "waited_s")


def draw_replay(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Total latency by round: recorded, and estimated with the share of rounds that rest on extrapolation."""
    number, recorded_s, waited_s = (np.array([row[name] for row in rounds]) for name in _DRAWN)
    total, share = summary["total_latency_s"], summary["extrapolated"]["rounds"]
    with mpl.rc_context(RC):
        figure, axes = new_figure(
            f"{share:.0%} of the estimate's rounds are extrapolated", "round", "total latency (s)"
        )
        axes.plot(number, recorded_s.cumsum(), color=SERIES[0].light, label=f"{summary['recorded_policy']}, recorded")
        axes.plot(number, waited_s.cumsum(), "--", color=SERIES[1].light, label=f"{summary['policy']}, estimated")
        middle, half = whisker(total["low"], total["high"])
        axes.errorbar(number[-1:], middle, half, color=SERIES[1].light, capsize=4, label="95 % of the draws")
        axes.legend()
    return figure
