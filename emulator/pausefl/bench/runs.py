"""Plays runs for benchmarks: the whole product with a synthetic model, in a temporary folder.

`bench rounds` compares a whole round (select, send, receive, check, aggregate, commit durably) with a bare gRPC echo.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pausefl.bench.echo import time_echo
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_process.events import Report
from pausefl_server.records import RoundRecord
from pausefl_server.storage.store import Store

BARE = """
[privacy]
enabled = false
[latency.delay]
kind = "none"
[workload]
model = "synthetic"
[metrics]
enabled = false
"""
_PAYLOADS_BYTES = (4_000, 1_000_000, 10_000_000)
# Connections, caches and buffers settle in the first rounds.
_WARM_UP = 5


def play(overrides: Sequence[str], report: Report = lambda _: None) -> list[RoundRecord]:
    """Play a run without privacy, delays or training, changed by `overrides` (key=value). Returns the run's log."""
    return play_experiment(parse_experiment(BARE, overrides), report)


def play_experiment(experiment: Experiment, report: Report = lambda _: None) -> list[RoundRecord]:
    """Play a run, pass its events to `report`, and return its log."""
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        Fleet(plan_of(experiment, "bench"), Path(folder)).run(report)
        with closing(Store(Path(folder) / "run.db")) as store:
            return store.rounds()


def cases(clients: int = 10, payload_bytes: int | None = None, blocks: int = 2) -> Iterator[dict[str, Any]]:
    """One case per payload. Its baseline is measured in turn with it, `blocks` times, and the medians are compared."""
    payloads = _PAYLOADS_BYTES if payload_bytes is None else (payload_bytes,)
    return (_case(clients, payload, blocks) for payload in payloads)


def _case(clients: int, payload_bytes: int, blocks: int) -> dict[str, Any]:
    rounds = _WARM_UP + (30 if payload_bytes > 4_000_000 else 150)
    size = [f"clients.count={clients}", f"selection.m={clients}", f"workload.model_bytes={payload_bytes // 4 * 4}"]
    # Bad sizes are refused before any process starts.
    experiment = parse_experiment(BARE, [*size, f"experiment.rounds={rounds}", "selection.policy=all"])
    ours_s: list[float] = []
    echo_s: list[float] = []
    for _ in range(blocks):
        echo_s += time_echo(clients, payload_bytes, rounds)[_WARM_UP:]
        ours_s += durations_s(play_experiment(experiment))[_WARM_UP:]
    median_s, baseline_s = float(np.median(ours_s)), float(np.median(echo_s))
    return {
        "name": "rounds",
        "case": f"{clients} clients, {payload_bytes} bytes",
        "median_s": median_s,
        "p99_s": float(np.quantile(ours_s, 0.99)),
        "baseline_median_s": baseline_s,
        "ratio": median_s / baseline_s,
    }


def durations_s(records: Sequence[RoundRecord]) -> list[float]:
    """The seconds from one durable commit to the next, which leave out nothing of a round."""
    return [after.wall_clock_s - before.wall_clock_s for before, after in pairwise(records)]
