"""A model that has diverged is said to have, once, whatever else its run reports."""

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import pausefl
from pausefl_process.events import Notice, ProgressEvent
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.records import Evaluation, Split
from rigs.settings import server_settings


def evaluation(split: Split, loss: float) -> Evaluation:
    return Evaluation(split, subset=True, n_examples=10, accuracy=0.1, loss=loss)


def test_the_first_loss_that_is_not_finite_is_noticed() -> None:
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8), said.append)
    for t, loss in ((1, 2.3), (2, math.inf), (3, math.inf)):
        reporter.evaluated(t, evaluation("validation", loss))
        reporter.evaluated(t, evaluation("test", loss))
    notices = [event.message for event in said if isinstance(event, Notice)]
    assert notices == ["the model after round 2 has diverged: its validation loss is not finite"]


BROKEN_SENSOR = """
import numpy as np
from pausefl_client.data.datasets import Dataset, Examples

def make(seed):
    inputs = np.random.default_rng(1).standard_normal((300, 8)).astype(np.float32)
    labels = inputs[:, :3].argmax(1).astype(np.int64)
    owners = np.array(["kiln", "mill", "oven", "pump"])[np.arange(300) % 4]
    inputs[:200][owners[:200] == "oven"] = np.nan
    parts = [Examples(inputs[s], labels[s], owners[s]) for s in (slice(200), slice(200, 250), slice(250, 300))]
    return Dataset("broken sensor", *parts, classes=3)
"""


@pytest.mark.parametrize("private", [True, False])
def test_a_client_whose_training_gives_no_numbers_refuses_its_jobs_and_spends_nothing(
    private: bool, tmp_path: Path, own_module: Callable[[str, str], Path]
) -> None:
    own_module("broken_sensor", BROKEN_SENSOR)
    settings = {
        "experiment.rounds": 3, "experiment.clock": "virtual", "experiment.python_path": [str(tmp_path)],
        "clients.count": 4, "selection.m": 4, "selection.policy": "random", "server.rest_rounds_max": 0,
        "workload.dataset": "broken_sensor:make", "workload.model": "mlp", "workload.partition": "by-client",
        "workload.step_s": 0.001, "privacy.clip": 1.0, "privacy.enabled": private,
    }  # fmt: skip
    run_dir = tmp_path / "run"
    summary = pausefl.run(pausefl.load("demo", settings), run_dir, progress=False).summary
    assert summary["missed_jobs"] == {"refused": 3}
    assert summary["rejected_updates"] == 0
    assert [failure["jobs"] for failure in summary["failures"]] == [3]
    assert ("not finite" in summary["failures"][0]["reason"]) == (not private)
    assert (run_dir / "server.log").read_text().count("failed: its update holds values that are not finite") == 3
    with closing(sqlite3.connect(run_dir / "run.db")) as database:
        answered = {client_id for (client_id,) in database.execute("SELECT DISTINCT client_id FROM observations")}
        owners = dict(database.execute("SELECT client_id, owner FROM owners"))
    assert len(answered) == 3
    assert sorted(owners.values()) == ["kiln", "mill", "oven", "pump"]
    assert {client_id for client_id, owner in owners.items() if owner != "oven"} == answered
    assert "oven" in (run_dir / "report.html").read_text("utf-8")
