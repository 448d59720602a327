"""Draws why a policy saved time: how often it chose fast and slow clients, and how long its rounds took."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pausefl.results.reading import time_axis
from pausefl.results.report.comparison.figure import Runs, all_runs, legend_above, policy_looks, unit_of
from pausefl.results.report.style import Look
from pausefl_proto.arrays import FloatArray

_MARKERS = "os^Dv<>"


def draw_why(runs: Runs) -> Figure | None:
    """Two panels: the share of rounds that chose each client, by mean latency; round latencies. None without data."""
    latency_s = mean_latency_s(runs)
    if not latency_s:
        return None
    looks = policy_looks(runs)
    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    chosen, rounds = figure.subplots(1, 2)
    _chosen(chosen, runs, looks, latency_s)
    _rounds(rounds, runs, looks)
    legend_above(figure)
    return figure


def mean_latency_s(runs: Runs) -> Mapping[str, float]:
    """The mean measured latency of each client over all runs, by client id, the fastest first."""
    tables = [run.breakdown for run in all_runs(runs)]
    ids, of_client = np.unique(np.concatenate([table["client_id"] for table in tables]), return_inverse=True)
    mean_s = np.bincount(of_client, np.concatenate([table["latency_s"] for table in tables])) / np.bincount(of_client)
    fastest = mean_s.argsort(kind="stable")
    return dict(zip(ids[fastest].tolist(), mean_s[fastest].tolist(), strict=True))


def chosen_share(runs: Runs, client_ids: Sequence[str]) -> Mapping[str, FloatArray]:
    """By policy: the share of its rounds, over all seeds, in which it chose each client, (clients,)."""
    shares = {}
    for policy, of_policy in runs.items():
        rounds = sum(len(run.round_latency["round"]) for run in of_policy)
        chosen = Counter(client_id for run in of_policy for client_id in run.choices["client_id"])
        shares[policy] = np.array([chosen[client_id] for client_id in client_ids]) / max(rounds, 1)
    return shares


def _chosen(axes: Axes, runs: Runs, looks: Mapping[str, Look], latency_s: Mapping[str, float]) -> None:
    x = np.array(list(latency_s.values()))
    for (policy, share), marker in zip(chosen_share(runs, list(latency_s)).items(), cycle(_MARKERS), strict=False):
        axes.plot(x, share, marker, color=looks[policy].colour, markersize=4.5, alpha=0.8, label=policy, clip_on=False)
    axes.set(title="Who was chosen", xlabel=f"client's mean latency ({unit_of(runs)})", ylabel="share of the rounds")
    axes.set_ylim(bottom=0)


def _rounds(axes: Axes, runs: Runs, looks: Mapping[str, Look]) -> None:
    by_elapsed = time_axis(run.summary for run in all_runs(runs)) == "elapsed_s"
    for policy, of_policy in runs.items():
        tables = [run.round_latency for run in of_policy]
        times_s = [np.diff(t["elapsed_s"], prepend=0.0) if by_elapsed else t["round_latency_s"] for t in tables]
        ascending_s = np.sort(np.concatenate(times_s))
        if ascending_s.size:
            share = np.arange(1, ascending_s.size + 1) / ascending_s.size
            axes.step(ascending_s, share, where="post", color=looks[policy].colour, linestyle=looks[policy].dash)
    time, turns = ("time between commits", "rounds or steps") if by_elapsed else ("round latency", "rounds")
    label = f"{time} ({unit_of(runs)})"
    axes.set(title=f"How long {turns} took", xlabel=label, ylabel=f"share of the {turns} up to it")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
