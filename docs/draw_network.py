"""Draws the figures of network.md from benchmarks' output: first `benchmarks.own NAME --json > NAME.json`, then this.

python docs/draw_network.py access_points.json shaping.json
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from pausefl.results.report.style import RC, SERIES

HERE = Path(__file__).parent


def draw_access_points(cases: list[dict[str, object]]) -> Figure:
    """A figure of the median round latency, by selection rule and by the most clients behind one access point."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [str(case["case"]).partition(",")[0] for case in cases]
    left.bar(names, [case["median_s"] for case in cases], color=[c.light for c in SERIES])
    left.set(ylabel="median round latency (s)", title="by rule")
    for case, colour, marker in zip(cases, SERIES, "osv", strict=False):
        by_most: dict[str, float] = case["median_s_by_most_together"]  # type: ignore[assignment]  # of JSON
        right.plot([int(n) for n in by_most], [*by_most.values()], marker, color=colour.light, mfc="none")
    right.set(xlabel="most clients behind one access point", title="by crowding", xticks=[1, 2, 3, 4], ylim=(0, None))
    right.legend(names)
    return figure


def draw_shaping(cases: list[dict[str, float]]) -> Figure:
    """A figure of the median communication time over the model's size, for both kinds of bucket."""
    figure = Figure(figsize=(4.5, 2.8), layout="constrained")
    axes = figure.subplots()
    sizes = [case["payload_bytes"] / 1e6 for case in cases]
    axes.plot(sizes, [case["computed_s"] for case in cases], ":", color=SERIES[6].light, label="computed")
    axes.plot(sizes, [case["median_s"] for case in cases], "o-", color=SERIES[0].light, label="token bucket")
    axes.plot(sizes, [case["tbf_median_s"] for case in cases], "s--", color=SERIES[1].light, label="kernel's tbf")
    axes.set(xlabel="model (MB)", ylabel="communication, down and up (s)", xlim=(0, None), ylim=(0, None))
    axes.legend()
    return figure


def main() -> None:
    """Write both figures beside this file."""
    access_points, shaping = ([json.loads(line) for line in Path(p).read_text().splitlines()] for p in sys.argv[1:3])
    with mpl.rc_context(RC):
        draw_access_points(access_points).savefig(HERE / "network-access-points.png", dpi=110)
        draw_shaping(shaping).savefig(HERE / "network-tbf.png", dpi=110)


if __name__ == "__main__":
    main()
