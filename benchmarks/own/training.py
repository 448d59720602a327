"""Compares a client's training in a round with a minimal loop of plain torch, on the same model and number of examples.

Then it compares the training of a round's clients together with the same clients one by one. Both ways take turns in
one thread. The images are random, of the workloads' sizes, so that nothing is downloaded.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.own.together import MOST_STEPS, RoundsOfClients, ratio_of, times, together_case
from pausefl.bench.images import CLASSES, random_images
from pausefl.experiment.experiment import load_experiment
from pausefl_client.data.datasets import Dataset, Examples
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer, normalise
from pausefl_client.training.trainer import TrainingSettings
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_proto.arrays import IntArray
from pausefl_proto.draws import generator
from pausefl_proto.wire import Vector

# By preset: the shape of an image, and the number of images of all clients together.
_IMAGES = {
    "small_mnist": ((1, 28, 28), 2_000),
    "large_mnist": ((1, 28, 28), 50_000),
    "small_cifar": ((3, 32, 32), 40_000),
}
PRESETS = tuple(_IMAGES)
_STEPS = 400
_FEWEST_ROUNDS = 2


class LeanLoop:
    """Minimal local training: an optimizer, and examples that were all converted to float32 beforehand."""

    def __init__(self, model: nn.Module, examples: Examples, settings: TrainingSettings) -> None:
        self._model = model
        self._parameters = list(model.parameters())
        self._inputs = normalise(torch.from_numpy(examples.inputs))
        self._labels = torch.from_numpy(examples.labels)
        self._optimizer = make_optimizer(settings, self._parameters)
        self._batch_size = settings.batch_size

    def train(self, theta: Vector, order: IntArray) -> Vector:
        """Train from θ on each example once, in this order. Returns the change of θ."""
        start = torch.from_numpy(theta)
        parts = torch.split(start, [parameter.numel() for parameter in self._parameters])
        with torch.no_grad():
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
        rows, losses = torch.from_numpy(order), []
        batches = (torch.split(values[rows], self._batch_size) for values in (self._inputs, self._labels))
        for inputs, labels in zip(*batches, strict=True):
            for parameter in self._parameters:
                parameter.grad = None
            loss = functional.cross_entropy(self._model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            self._optimizer.step()
            losses.append(loss.detach())
        float(torch.stack(losses).mean())
        update: Vector = (torch.cat([p.detach().reshape(-1) for p in self._parameters]) - start).numpy()
        return update


def cases(steps: int = _STEPS) -> Iterator[dict[str, Any]]:
    """Yields two cases per workload, with about `steps` optimizer steps of a client in each way."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        for preset in _IMAGES:
            yield _case(preset, steps, Path(folder) / preset)
    for preset in _IMAGES:
        yield together_case(preset, clients_of(preset, torch.device("cpu")), steps)


def clients_of(preset: str, device: torch.device, most_steps: int | None = MOST_STEPS) -> RoundsOfClients:
    """A preset's clients of one round, with its number of images and at most `most_steps` steps (None: all)."""
    shape, total = _IMAGES[preset]
    return RoundsOfClients(preset, shape, total // len(load_experiment(preset).client_ids), device, most_steps)


def noise_of_cifar(seed: int) -> Dataset:
    """Random images of CIFAR's size: 40,000 for training, as in small CIFAR, and 100 each for validation and test."""
    shape = (3, 32, 32)
    return Dataset(
        name="noise of CIFAR's size",
        train=random_images(seed, "train", 40_000, shape),
        validation=random_images(seed, "validation", 100, shape),
        test=random_images(seed, "test", 100, shape),
        classes=CLASSES,
    )


def _case(preset: str, steps: int, path: Path) -> dict[str, Any]:
    """The case of one client. `ratio` is of adjacent rounds; `processor_ratio`, of processor time, varies less."""
    experiment = load_experiment(preset)
    shape, total = _IMAGES[preset]
    settings, seed = experiment.workload, experiment.experiment.seed
    examples = random_images(seed, preset, total // len(experiment.client_ids), shape)

    def model() -> nn.Module:
        return build_model(experiment.workload.model, shape, CLASSES, seed)

    data = LocalData(examples, CLASSES)
    trainer = TorchTrainer(model(), data, settings, device=torch.device("cpu"), seed=seed, client_id=preset)
    lean, states, theta = (
        LeanLoop(model(), examples, settings),
        TrainerStates(trainer, path),
        ModelVector(model()).values(),
    )

    states.recall(ReleaseKey("bench", 1, 1, ""))

    def train(round: int) -> None:
        trainer.train(theta, round=round)

    def train_lean(round: int) -> None:
        lean.train(theta, generator(seed, "bench batches", round).permutation(len(examples)))

    def keep(round: int) -> None:
        states.keep(ReleaseKey("bench", round, 1, ""))

    batches = -(-len(examples) // settings.batch_size)
    rounds = max(_FEWEST_ROUNDS, steps // batches)
    (ours_s, ours_cpu_s), (lean_s, lean_cpu_s), (kept_s, _) = times(rounds, train, train_lean, keep)
    return {
        "name": "training",
        "case": f"{preset}: {experiment.workload.model}, {batches} steps, {rounds} rounds",
        "train_s": float(np.median(ours_s)),
        "lean_s": float(np.median(lean_s)),
        **ratio_of(ours_s, lean_s),
        "train_processor_s": float(np.median(ours_cpu_s)),
        "processor_ratio": float(np.median(ours_cpu_s / lean_cpu_s)),
        "keep_state_s": float(np.median(kept_s)),
    }
