"""Writes a preset's data to files, so that other systems train the same net on the same examples."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pausefl.experiment.client_records import partitioner_of
from pausefl.experiment.experiment import load_experiment
from pausefl_client.data.datasets import Examples, load_dataset
from pausefl_client.data.partition import Dealt, partition
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model


def write_data(folder: Path, overrides: Sequence[str] = (), preset: str = "small_mnist") -> None:
    """Write each client's examples, the test examples, the first model and the training settings to a folder.

    `overrides` (key=value) change the preset. ConfigError if the data set is not on this machine.
    """
    experiment = load_experiment(preset, overrides)
    workload, seed = experiment.workload, experiment.experiment.seed
    data = load_dataset(workload.dataset, examples=workload.examples, seed=seed)
    clients = len(experiment.client_ids)
    parts = partition(partitioner_of(workload), Dealt(data.train.labels, data.classes, clients), seed)
    model = build_model(workload.model, data.input_shape, data.classes, seed)
    shapes = [tensor.shape for tensor in model.state_dict().values()]
    convolved = [shape for shape in shapes if len(shape) == 4]
    weights = [shape for shape in shapes if len(shape) == 2]
    settings = {
        "preset": preset,
        "overrides": list(overrides),
        "seed": seed,
        "channels": [*(shape[1] for shape in convolved[:1]), *(shape[0] for shape in convolved)],
        "layers": [weights[0][1], *(shape[0] for shape in weights)],
        "learning_rate": workload.learning_rate,
        "batch_size": workload.batch_size,
        "max_steps": workload.max_steps,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for k, rows in enumerate(parts):
        _save(folder / f"client-{k}.npz", data.train.take(rows))
    _save(folder / "test.npz", data.test)
    np.save(folder / "theta-0.npy", ModelVector(model).values())
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")


def _save(path: Path, examples: Examples) -> None:
    np.savez(path, inputs=examples.inputs, labels=examples.labels)
