"""Why a policy saved time: whom it chose, of fast and slow clients, and how long its rounds took."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pausefl.report.comparison.figure import Runs, policy_looks
from pausefl.report.style import RC, Look
from pausefl_proto.arrays import FloatArray

_MARKERS = "os^Dv<>"


def draw_why(runs: Runs) -> Figure | None:
    """Share of rounds in which each client was chosen, by its mean latency; and round latencies. None without data."""
    latency_s = mean_latency_s(runs)
    if not latency_s:
        return None
    looks = policy_looks(runs)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(10.4, 4.2), layout="constrained")
        chosen, rounds = figure.subplots(1, 2)
        _chosen(chosen, runs, looks, latency_s)
        _rounds(rounds, runs, looks)
    return figure


def mean_latency_s(runs: Runs) -> Mapping[str, float]:
    """The mean latency measured of each client over all runs, the fastest first."""
    seen: dict[str, list[float]] = defaultdict(list)
    for of_policy in runs.values():
        for run in of_policy:
            for record in run.records:
                for observation in record.observations:
                    seen[observation.client_id].append(observation.latency_s)
    means = {client_id: float(np.mean(values)) for client_id, values in seen.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def chosen_share(runs: Runs, client_ids: Sequence[str]) -> Mapping[str, FloatArray]:
    """In what share of its rounds each policy chose each client, (clients,), over all seeds."""
    places = {client_id: place for place, client_id in enumerate(client_ids)}
    shares = {}
    for policy, of_policy in runs.items():
        records = [record for run in of_policy for record in run.records]
        chosen = [places[c] for record in records for c in set(record.chosen) if c in places]
        shares[policy] = np.bincount(chosen, minlength=len(places)) / max(len(records), 1)
    return shares


def _chosen(axes: Axes, runs: Runs, looks: Mapping[str, Look], latency_s: Mapping[str, float]) -> None:
    x = np.array(list(latency_s.values()))
    for (policy, share), marker in zip(chosen_share(runs, list(latency_s)).items(), cycle(_MARKERS), strict=False):
        axes.plot(x, share, marker, color=looks[policy].colour, markersize=4.5, alpha=0.8, label=policy)
    axes.set(title="Who was chosen", xlabel="client's mean latency (s)", ylabel="share of the rounds")
    axes.set_ylim(bottom=0)
    axes.legend()


def _rounds(axes: Axes, runs: Runs, looks: Mapping[str, Look]) -> None:
    for policy, of_policy in runs.items():
        latencies_s = np.sort([record.round_latency_s for run in of_policy for record in run.records])
        if latencies_s.size:
            share = np.arange(1, latencies_s.size + 1) / latencies_s.size
            axes.step(latencies_s, share, where="post", color=looks[policy].colour, linestyle=looks[policy].dash)
    axes.set(title="How long rounds took", xlabel="round latency (s)", ylabel="share of the rounds up to it")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
