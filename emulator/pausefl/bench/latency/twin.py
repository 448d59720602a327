"""One experiment under both clocks: how far the real clock is from the virtual one, exchange by exchange, and why."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from pausefl.bench.runs import play
from pausefl_proto.arrays import FloatArray
from pausefl_server.records import Observation, RoundRecord, Timing

_COMMON = (
    "clients.count=10",
    "selection.m=3",
    "selection.policy=pause",
    "privacy.enabled=true",
    "privacy.reproducible_noise=true",
    "latency.delay.kind=normal",
    'latency.delay.mean_s={kind="normal",mean_s=0.3,sd_s=0.08}',
    "latency.delay.sd_s=0.02",
    "latency.delay.floor_s=0.01",
    "latency.signal=round_trip",
)
_EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "delays alone": (*_COMMON, "workload.model=synthetic"),
    "with training of a stated time": (*_COMMON, "workload.model=mlp", "workload.epochs=1", "workload.step_s=0.02"),
}

Exchanges = Mapping[tuple[int, str], Observation]
"""By round and client id."""


def cases(rounds: int = 40) -> Iterator[dict[str, Any]]:
    """Both experiments: what both clocks chose, and the residual real minus virtual of each exchange, by part."""
    for name, overrides in _EXPERIMENTS.items():
        logs = {clock: _played(clock, overrides, rounds) for clock in ("real", "virtual")}
        yield {"case": name, **compared(logs["real"], logs["virtual"])}


def _played(clock: str, overrides: tuple[str, ...], rounds: int) -> list[RoundRecord]:
    return play([*overrides, f"experiment.clock={clock}", f"experiment.rounds={rounds}"])


def compared(real: list[RoundRecord], virtual: list[RoundRecord]) -> dict[str, Any]:
    """How alike two logs of one experiment are. Exchanges are matched by round and client."""
    ours, theirs = _exchanges(real), _exchanges(virtual)
    both = [key for key in ours if key in theirs]
    pairs = [(ours[key].timing, theirs[key].timing) for key in both]
    residuals_ms = 1e3 * np.array([a.round_trip_s - b.round_trip_s for a, b in pairs])
    same = [set(a.chosen) == set(b.chosen) for a, b in zip(real, virtual, strict=True)]
    return {
        "rounds": len(real),
        "same_sets": sum(same),
        "exchanges": len(both),
        **{f"residual_p{q}_ms": _percentile(residuals_ms, q) for q in (50, 99, 100)},
        **{f"{part}_ms": 1e3 * fmean(_parts(a)[part] - _parts(b)[part] for a, b in pairs) for part in _PARTS},
        "real_s": [float(a.round_trip_s) for a, _ in pairs],
        "virtual_s": [float(b.round_trip_s) for _, b in pairs],
    }


_PARTS = ("wire", "queue", "train", "privatise", "link")


def _parts(timing: Timing) -> dict[str, float]:
    """The round trip's parts, which add up to it."""
    return {
        "wire": timing.download_s + timing.upload_s + timing.propagation_s + timing.reconnect_s,
        "queue": timing.queue_s,
        "train": timing.train_s,
        "privatise": timing.privatise_s,
        "link": timing.injected_down_s + timing.injected_up_s,
    }


def _exchanges(log: list[RoundRecord]) -> Exchanges:
    return {(record.round, o.client_id): o for record in log for o in record.observations}


def _percentile(values: FloatArray, q: int) -> float:
    return float(np.percentile(values, q)) if values.size else float("nan")
