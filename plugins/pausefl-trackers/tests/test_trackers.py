"""The trackers get a run's settings and figures."""

from pathlib import Path

import pytest

from pausefl.runtime.observers import Observed, load_observers
from pausefl_process.events import ModelEvaluated, Notice, ProgressEvent
from rigs.telemetry import round_event

SETTINGS = {"experiment": {"rounds": 3}}


def test_tensorboard_gets_a_scalar_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with Observed(lambda _: None, load_observers(["tensorboard"]), tmp_path, SETTINGS) as seen:
        seen.show(round_event(1))
        seen.show(ModelEvaluated(1, "test", 0.75, None))
    (file,) = (tmp_path / "tensorboard").iterdir()
    told = [text in file.read_bytes() for text in (b"accuracy/test-all", b"total_latency_s", b"loss/test")]
    assert told == [True, True, False]


def test_mlflow_gets_parameters_metrics_and_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow's databases need more packages
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    shown: list[ProgressEvent] = []
    with Observed(shown.append, load_observers(["mlflow"]), tmp_path, SETTINGS) as seen:
        seen.show(round_event(1))
        seen.show(round_event(2))
        seen.show(ModelEvaluated(2, "test", 0.5, None, subset=True))
        seen.show(ModelEvaluated(2, "test", 0.75, None))
    assert not [event for event in shown if isinstance(event, Notice)], "an observer that failed is told of"
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("pausefl").experiment_id])
    assert found.data.params == {"experiment.rounds": "3"}
    history = client.get_metric_history(found.info.run_id, "total_latency_s")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.25), (2, 0.5)]
    assert {name: found.data.metrics[name] for name in ("accuracy/test", "accuracy/test-all")} == {
        "accuracy/test": 0.5,
        "accuracy/test-all": 0.75,
    }
    assert found.info.status == "FAILED"  # no event of the run's end was sent


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_get_settings_and_figures_offline(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    pytest.importorskip(name)  # trackio reads its variable only at import
    shown: list[ProgressEvent] = []
    with Observed(shown.append, load_observers([name]), tmp_path, SETTINGS) as seen:
        seen.show(round_event(1))
        seen.show(ModelEvaluated(1, "test", 0.75, None))
    assert not [event for event in shown if isinstance(event, Notice)], "an observer that failed is told of"
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for text in ("accuracy/test-all", "total_latency_s", "experiment", tmp_path.name):
        assert text.encode() in kept
