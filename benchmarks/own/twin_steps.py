"""Asynchronous steps under both clocks: how long they take by elapsed time, and how stale their updates are."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from pausefl.bench.runs import BARE, play_experiment
from pausefl.experiment.loading import parse_experiment
from pausefl_server.records import RoundRecord

_EXPERIMENT = (
    *("clients.count=10", "server.mode=asynchronous", "asynchronous.concurrency=5", "selection.policy=random"),
    *("privacy.enabled=true", "privacy.reproducible_noise=true", "workload.model=synthetic"),
    *("latency.delay.kind=normal", 'latency.delay.mean_s={kind="normal",mean_s=0.3,sd_s=0.08}'),
    *("latency.delay.sd_s=0.02", "latency.delay.floor_s=0.01"),
)


def cases(steps: int = 60) -> Iterator[dict[str, Any]]:
    """With a step at each arrival, and at every third."""
    for buffer in (1, 3):
        overrides = [*_EXPERIMENT, f"asynchronous.buffer={buffer}", f"experiment.rounds={steps}"]
        clocks = ("real", "virtual")
        logs = {c: play_experiment(parse_experiment(BARE, [*overrides, f"experiment.clock={c}"])) for c in clocks}
        found = {f"{clock}_{name}": value for clock, log in logs.items() for name, value in _figures(log).items()}
        ratio = found["real_elapsed_s"] / found["virtual_elapsed_s"]
        yield {"name": "twin_steps", "case": f"K = {buffer}", "steps": steps, "elapsed_ratio": ratio, **found}


def _figures(log: list[RoundRecord]) -> dict[str, float]:
    staleness = fmean(o.staleness for record in log for o in record.observations)
    return {"elapsed_s": log[-1].elapsed_s, "staleness": staleness}
