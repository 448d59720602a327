"""Draws asynchronous.png, the jobs of clients in two runs: python docs/draw_timeline.py ROUNDS_DIR ASYNCHRONOUS_DIR.

docs/asynchronous.md says how the two runs are played.
"""

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pausefl.results.report.style import MUTED, RC, SERIES

_SHOWN_S = 8.0


def draw_timeline(runs: Mapping[str, Path]) -> Figure:
    """A figure with a panel for each run. A bar is a job, in its client's row, and a dotted line is a commit."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, run_dir) in zip(panels, runs.items(), strict=True):
        with sqlite3.connect(run_dir / "run.db") as database:
            jobs = database.execute("SELECT client_id, handed_out_s, came_back_s FROM updates").fetchall()
            commits = [row[0] for row in database.execute("SELECT elapsed_s FROM round_latency")]
        _draw_jobs(axes, jobs, commits)
        axes.set(title=title, ylabel="client", xlim=(0, _SHOWN_S))
    panels[-1].set_xlabel("elapsed time (s)")
    return figure


def _draw_jobs(axes: Axes, jobs: Sequence[tuple[str, float, float]], commits: Sequence[float]) -> None:
    for place, client_id in enumerate(sorted({job[0] for job in jobs})):
        own = [(began_s, ended_s - began_s) for c, began_s, ended_s in jobs if c == client_id]
        axes.broken_barh(own, (place + 0.6, 0.8), facecolor=SERIES[0].light, edgecolor="white", linewidth=0.8)
    for commit_s in commits:
        axes.axvline(commit_s, color=MUTED.light, linewidth=0.8, linestyle=":")


def main() -> None:
    """Write the figure beside this file."""
    titles = ("rounds: a dotted line ends each", "asynchronous: a dotted line is a step")
    runs = dict(zip(titles, map(Path, sys.argv[1:3]), strict=True))
    with mpl.rc_context(RC):
        draw_timeline(runs).savefig(Path(__file__).parent / "asynchronous.png", dpi=80)


if __name__ == "__main__":
    main()
