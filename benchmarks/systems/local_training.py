"""A preset's training in plain torch, with the same steps as pausefl's clients make."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.systems.task import Task, Vector, settings_of

_GROUPS = 8

torch.set_num_threads(1)  # client processes share the cores
# An optimizer's first step imports some 800 modules. So it is made here, before clients are forked, as in pausefl.
_first = nn.Parameter(torch.zeros(1))
_first.grad = torch.zeros(1)
torch.optim.Adam([_first], fused=True).step()


class LocalTraining:
    """One client, with its examples, model and optimizer. The optimizer keeps its state between rounds."""

    def __init__(self, task: Task, client: int) -> None:
        torch.manual_seed(client)  # otherwise forked clients would draw the same batches
        folder = Path(task.data)
        self._settings = settings_of(task)
        examples = np.load(folder / f"client-{client}.npz")
        self._inputs, self._labels = (torch.from_numpy(examples[name]) for name in ("inputs", "labels"))
        self._model = model_of(self._settings)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=self._settings["learning_rate"], fused=True)

    def train(self, theta: Vector) -> tuple[Vector, int]:
        """Returns the model after the round's steps, and the client's number of examples."""
        nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), self._model.parameters())
        rows = torch.randperm(len(self._labels)).split(self._settings["batch_size"])  # type: ignore[no-untyped-call]  # torch's own
        for batch in rows[: self._settings["max_steps"]]:
            loss = functional.cross_entropy(self._model(scaled(self._inputs[batch])), self._labels[batch])
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            self._optimizer.step()
        trained: Vector = nn.utils.parameters_to_vector(self._model.parameters()).detach().numpy()
        return trained, len(self._labels)


def first_model(task: Task) -> Vector:
    """pausefl's first model, (d,) float32."""
    theta: Vector = np.load(Path(task.data) / "theta-0.npy")
    return theta


def accuracy(task: Task, theta: Vector) -> float:
    """The share of test examples that a model, (d,) float32, classifies correctly."""
    folder = Path(task.data)
    examples = np.load(folder / "test.npz")
    model = model_of(settings_of(task))
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    with torch.inference_mode():
        parts = torch.split(torch.from_numpy(examples["inputs"]), 1000)
        found = torch.cat([model(scaled(part)).argmax(1) for part in parts])
    return float((found == torch.from_numpy(examples["labels"])).float().mean())


def model_of(settings: Mapping[str, Any]) -> nn.Module:
    """The net `mlp` or `cnn3`, by the sizes in `settings`."""
    parts: list[nn.Module] = []
    for before, channels in pairwise(settings["channels"]):
        parts += [nn.Conv2d(before, channels, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(_GROUPS, channels)]
    parts.append(nn.Flatten())
    for wide, narrow in pairwise(settings["layers"][:-1]):
        parts += [nn.Linear(wide, narrow), nn.ReLU(), *([nn.GroupNorm(1, narrow)] if settings["channels"] else [])]
    return nn.Sequential(*parts, nn.Linear(*settings["layers"][-2:]))


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Converts pixels from uint8 to float32, from -1 to 1."""
    return images.float().div_(127.5).sub_(1)
