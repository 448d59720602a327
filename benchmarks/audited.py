"""`python -m benchmarks.audited cuda`: audit runs of small CIFAR by canaries, and print a line of JSON; two minutes.

Clients train and draw their noise on the named device. The images are random, so no network is needed. The exit status
is 1 if a run leaks more than it claims. By chance this also happens once in a thousand calls.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import pausefl
from pausefl_audit.audit import FALSE_ALARM
from pausefl_audit.findings import Guesses, multiple_of_claims
from pausefl_audit.noted import guesses_of, with_canaries

SETTINGS: Mapping[str, Any] = {
    "experiment.rounds": 40,
    "workload.dataset": "benchmarks.own.training:noise_of_cifar",
    "workload.max_steps": 4,  # the audit does not depend on how long clients train
    "metrics.enabled": False,
    "evaluation.every": 1000,
    "latency.tau_min_s": "auto",
}
_WIRE = {"latency.delay": {"kind": "none"}, "clients.per_process": 6}
_STEPS = {"server.mode": "asynchronous", "asynchronous.concurrency": 10, "asynchronous.buffer": 5}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "virtual clock": {"experiment.clock": "virtual", "workload.train_s": 0.01},
    "real wire": _WIRE,
    "real wire, asynchronous, int8": {**_WIRE, **_STEPS, "wire.dtype": "int8"},
}
"""The settings of each run, by its name, beyond `SETTINGS`."""


def main(arguments: Sequence[str]) -> int:
    """Audit all runs and print the result. Returns 0 if no run leaks more than it claims, else 1."""
    (device,) = arguments
    runs = {way: audited(way, device) for way in WAYS}
    print(json.dumps({"device": device, "confidence": 1 - FALSE_ALARM, "runs": runs}))
    return int(any(run["multiple"] > 1 for run in runs.values()))


def audited(way: str, device: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A run's guesses of canaries, its greatest claimed ε, a lower bound on that ε, and the bound divided by it."""
    settings = {**SETTINGS, **WAYS[way], "workload.device": device, **(changes or {})}
    with tempfile.TemporaryDirectory(prefix="pausefl-audited-") as folder:
        run_dir = Path(folder) / "run"
        pausefl.run(with_canaries(pausefl.load("small_cifar", settings)), run_dir, progress=False)
        guesses = guesses_of(run_dir)
    multiple = multiple_of_claims(guesses, FALSE_ALARM / len(WAYS))
    whole = reduce(Guesses.plus, guesses)
    return {**asdict(whole), "lower_bound": multiple * whole.epsilon, "multiple": multiple}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
