"""The training of small MNIST in plain torch, step for step that of pausefl's clients (preset `small_mnist`)."""

import json
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.systems.task import Task, Vector

torch.set_num_threads(1)  # client processes share the cores
# The first step of an optimizer imports some 800 modules: take it here, before clients are forked, as pausefl does.
_first = nn.Parameter(torch.zeros(1))
_first.grad = torch.zeros(1)
torch.optim.Adam([_first], fused=True).step()


class LocalTraining:
    """One client: its examples, its model, and its optimizer, whose state it keeps between rounds."""

    def __init__(self, task: Task, client: int) -> None:
        torch.manual_seed(client)  # forked clients would draw the same batches
        folder = Path(task.data)
        self._settings = json.loads((folder / "settings.json").read_text("utf-8"))
        examples = np.load(folder / f"client-{client}.npz")
        self._inputs, self._labels = (torch.from_numpy(examples[name]) for name in ("inputs", "labels"))
        self._model = _model(self._settings["layers"])
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=self._settings["learning_rate"], fused=True)

    def train(self, theta: Vector) -> tuple[Vector, int]:
        """The model after the round's steps, and how many examples it saw."""
        nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), self._model.parameters())
        rows = torch.randperm(len(self._labels)).split(self._settings["batch_size"])  # type: ignore[no-untyped-call]
        for batch in rows[: self._settings["max_steps"]]:
            loss = functional.cross_entropy(self._model(_scaled(self._inputs[batch])), self._labels[batch])
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        trained: Vector = nn.utils.parameters_to_vector(self._model.parameters()).detach().numpy()
        return trained, len(self._labels)


def first_model(task: Task) -> Vector:
    """pausefl's first model, (d,) float32."""
    theta: Vector = np.load(Path(task.data) / "theta-0.npy")
    return theta


def accuracy(task: Task, theta: Vector) -> float:
    """The share of test examples that a model, (d,) float32, classifies rightly."""
    folder = Path(task.data)
    examples = np.load(folder / "test.npz")
    model = _model(json.loads((folder / "settings.json").read_text("utf-8"))["layers"])
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    with torch.inference_mode():
        found = model(_scaled(torch.from_numpy(examples["inputs"]))).argmax(1)
    return float((found == torch.from_numpy(examples["labels"])).float().mean())


def _model(layers: list[int]) -> nn.Module:
    """Fully connected with ReLU between the layers."""
    parts = OrderedDict[str, nn.Module](flat=nn.Flatten())
    for place, (wide, narrow) in enumerate(pairwise(layers)):
        if place:
            parts[f"relu-{place}"] = nn.ReLU()
        parts[f"linear-{place}"] = nn.Linear(wide, narrow)
    return nn.Sequential(parts)


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return images.float().div_(127.5).sub_(1)
