"""Runs of the real thing for benchmarks: the whole product with a synthetic model, in a folder that is thrown away."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pausefl.config.experiment import Experiment
from pausefl.config.loading import parse_experiment
from pausefl.runtime.fleet import SILENT, Fleet
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


def play(overrides: Sequence[str]) -> list[RoundRecord]:
    """The log of a run without privacy, delays or training, but for what `overrides` (key=value) changes."""
    return play_experiment(parse_experiment(BARE, overrides))


def play_experiment(experiment: Experiment) -> list[RoundRecord]:
    """The log of a run."""
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        Fleet(experiment, Path(folder)).run(SILENT)
        store = Store(Path(folder) / "run.db")
        records = store.rounds()
        store.close()
    return records
