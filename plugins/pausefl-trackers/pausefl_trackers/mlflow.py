"""Logs a run to MLflow: at the location in the environment variable MLFLOW_TRACKING_URI, or at MLflow's default."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from pausefl.runtime.observers.base import Observer, figures
from pausefl_process.events import Finished, ProgressEvent

_EXPERIMENT = "pausefl"
# MLflow accepts no longer values.
_VALUE_CHARACTERS_MAX = 500
_STATUSES = {"completed": "FINISHED", "budgets_spent": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MLflow(Observer):
    """A run of the experiment "pausefl", named after the run directory: parameters, metrics by round, the outcome."""

    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment_id = known.experiment_id if known else self._client.create_experiment(_EXPERIMENT)
        self._run_id = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id
        self._status = "FAILED"  # unless the run says how it ended
        keys = {f"{table}.{key}": value for table, keys in settings.items() for key, value in keys.items()}
        params = [Param(key, str(value)[:_VALUE_CHARACTERS_MAX]) for key, value in keys.items()]
        self._client.log_batch(self._run_id, params=params, tags=[RunTag("run_dir", str(run_dir))])

    def on_event(self, event: ProgressEvent) -> None:
        at_ms = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, at_ms, number) for name, (number, value) in figures(event).items()]
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)
        if isinstance(event, Finished):
            self._status = _STATUSES[event.outcome]
            self._client.set_tag(self._run_id, "stopped_because", event.reason)

    def end(self) -> None:
        self._client.set_terminated(self._run_id, self._status)
