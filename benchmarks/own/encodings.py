"""Compares encodings of updates over a slow uplink, on the virtual clock: latency saved, and accuracy lost."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import load_experiment
from pausefl.results.statistics import mean_interval
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_proto.encoding import ENCODINGS
from pausefl_server.storage.store import Store

_OVERRIDES = (
    "experiment.clock=virtual",
    "experiment.rounds=30",
    "latency.bandwidth={up_bytes_per_s=50_000, burst_bytes=1}",
    "latency.signal=round_trip",
    "workload.step_s=0.001",
    "metrics.enabled=false",
)
_TOP_SHARES = (("float32", 0.25), ("float32", 0.05), ("int8", 0.05))


def cases(seeds: int = 5) -> Iterator[dict[str, Any]]:
    """Yields a case per encoding: the `demo` preset with an uplink of 50 kB/s, and 95 % intervals over the seeds."""
    for dtype, top_share in (*((dtype, 1.0) for dtype in ENCODINGS), *_TOP_SHARES):
        runs = [_run(dtype, top_share, seed) for seed in range(1, seeds + 1)]
        latency_s, accuracy = (mean_interval([run[key] for run in runs]) for key in ("latency_s", "accuracy"))
        yield {
            "name": "encodings",
            "case": dtype,
            "top_share": top_share,
            "seeds": seeds,
            "update_bytes": runs[0]["update_bytes"],
            "round_latency_s": latency_s.mean,
            "round_latency_s_ci95": [latency_s.low, latency_s.high],
            "final_accuracy": accuracy.mean,
            "final_accuracy_ci95": [accuracy.low, accuracy.high],
        }


def _run(dtype: str, top_share: float, seed: int) -> dict[str, float]:
    """A run's mean round latency, the bytes of an update with its header, and the accuracy after the last round."""
    wire = [f"wire.dtype={dtype}", f"wire.top_share={top_share}"]
    experiment = load_experiment("demo", [*_OVERRIDES, *wire, f"experiment.seed={seed}"])
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as name:
        folder = Path(name)
        Fleet(plan_of(experiment, "bench"), folder).run(lambda _: None)
        store = Store(folder / "run.db")
        records = store.rounds()
        store.close()
        accuracy = json.loads((folder / "summary.json").read_text("utf-8"))["final_accuracy"]
    latency_s = sum(record.round_latency_s for record in records) / len(records)
    sizes = [o.bytes_up for record in records for o in record.observations]
    return {"latency_s": latency_s, "update_bytes": max(sizes), "accuracy": accuracy}
