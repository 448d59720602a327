"""Measures what sharing an access point costs, and what choosing from different ones saves (PAUSE v2, reward R2).

Clients of an access point share a real token bucket. So crowding makes a round longer by itself: δ_τ = 0 adds nothing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pausefl.bench.runs import play
from pausefl_server.records import RoundRecord

_ACCESS_POINTS = 4
_M = 4
_ROUNDS = 60
_BYTES_PER_S = 4_000_000
_DELAY = "latency.delay={kind='lognormal', mean_s=0.05, sd_s=0.01}"
# Only the terms of eq. (14) that matter here: all clients have the same delays and data, and crowding has a cost.
_PAUSE = ("selection.policy=pause", "selection.pause.alpha=1.0", "selection.pause.gamma=0.0")


def cases(clients: int = 12, payload_bytes: int = 400_000) -> Iterator[dict[str, Any]]:
    """Yields the same run under R1, R2 and uniform choice. The clients are in four access points, and m = 4."""
    yield _case("R1", clients, payload_bytes, *_PAUSE)
    rule = "selection.pause.reward=R2", "selection.pause.rho=1.0", f"selection.pause.clusters={_clusters(clients)}"
    yield _case("R2", clients, payload_bytes, *_PAUSE, *rule)
    yield _case("random", clients, payload_bytes, "selection.policy=random")


def _case(case: str, clients: int, payload_bytes: int, *rule: str) -> dict[str, Any]:
    records = play(
        [
            f"clients.count={clients}",
            f"selection.m={_M}",
            f"experiment.rounds={_ROUNDS}",
            f"workload.model_bytes={payload_bytes}",
            "latency.signal=communication",
            _DELAY,
            f"latency.access_points=[{', '.join(_access_point(k, clients) for k in range(_ACCESS_POINTS))}]",
            *rule,
        ]
    )
    latencies_s = np.array([record.round_latency_s for record in records])
    members = np.array([_members(record) for record in records])
    most = members.max(axis=1)
    return {
        "name": "access_points",
        "case": f"{case}, {clients} clients, m = {_M}, {payload_bytes} bytes",
        "median_s": float(np.median(latencies_s)),
        "p99_s": float(np.quantile(latencies_s, 0.99)),
        "total_latency_s": float(latencies_s.sum()),
        "crowding_mean": float(np.maximum(members - 1, 0).sum(axis=1).mean()),
        "median_s_by_most_together": {int(n): float(np.median(latencies_s[most == n])) for n in np.unique(most)},
    }


def _access_point(index: int, clients: int) -> str:
    ids = [f"'client-{k:03}'" for k in range(clients) if k % _ACCESS_POINTS == index]
    rates = f"down_bytes_per_s={_BYTES_PER_S}, up_bytes_per_s={_BYTES_PER_S}"
    return f"{{clients=[{', '.join(ids)}], {rates}}}"


def _clusters(clients: int) -> str:
    return f"{{{', '.join(f'client-{k:03}={k % _ACCESS_POINTS}' for k in range(clients))}}}"


def _members(record: RoundRecord) -> list[int]:
    """The number of the round's clients in each access point."""
    access_points = [int(c.removeprefix("client-")) % _ACCESS_POINTS for c in record.chosen]
    return [access_points.count(index) for index in range(_ACCESS_POINTS)]
