"""Small clients for tests of batched training: train them together, or alone for comparison."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pausefl.bench.images import random_images
from pausefl_client.batched import host as batched_host
from pausefl_client.batched.host import BatchedHost
from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import train_together
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings
from pausefl_proto.wire import Vector

CPU = torch.device("cpu")
torch.set_num_threads(1)  # as in every client process
SGD = TrainingSettings("sgd", 0.05, batch_size=8, optimizer_options={"momentum": 0.9})
ADAM = TrainingSettings("adam", 0.01, batch_size=8)
RAGGED = (20, 13, 31)
"""Numbers of examples of three clients. In batches of 8 they make 3, 2 and 4 steps; the last batches differ in size."""
IMAGE = {"mlp": (1, 28, 28), "fedts_fashion": (1, 28, 28)}


def network() -> nn.Module:
    """A small network with a normalisation layer, which FedBN needs."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 10))


def trainers_of(
    settings: TrainingSettings | Sequence[TrainingSettings] = ADAM,
    method: Callable[[], TrainingMethod] = TrainingMethod,
    model: Callable[[], nn.Module] = network,
    sizes: Sequence[int] = RAGGED,
    shape: tuple[int, ...] = (1, 8, 8),
    device: torch.device = CPU,
) -> list[TorchTrainer]:
    each = [settings] * len(sizes) if isinstance(settings, TrainingSettings) else settings
    return [
        TorchTrainer(
            model(),
            LocalData(random_images(i, "test", size, shape), 10),
            own,
            device=device,
            seed=1,
            client_id=f"c{i}",
            method=method(),
        )
        for i, (size, own) in enumerate(zip(sizes, each, strict=True))
    ]


def theta_of(trainer: TorchTrainer, round: int = 1) -> Vector:
    """A different model for each round. Entries of a control variate are zero in round 1."""
    size = ModelVector(trainer.model).values().size
    values = np.random.default_rng(round).normal(0, 0.2, size).astype(np.float32)
    return np.append(values, np.full(trainer.manifest.size - values.size, 0.01 * (round - 1), np.float32))


def played_together(
    trainers: Sequence[TorchTrainer], theta: Vector, round: int, stack: ModelStack | None = None
) -> list[TrainingOutcome]:
    stack = stack or ModelStack(trainers[0].model, trainers[0].settings, len(trainers))
    trained = train_together(stack, trainers, theta, round=round)
    for trainer, of_one in zip(trainers, trained, strict=True):
        trainer.remember(of_one.optimizer_states, of_one.method)
    return [of_one.outcome for of_one in trained]


def trained_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count, from now on, the clients in each call of `train_together`. Return the growing list of counts."""
    counts: list[int] = []

    def counted(stack: Any, trainers: Any, theta: Any, *, round: int) -> Any:
        counts.append(len(trainers))
        return train_together(stack, trainers, theta, round=round)

    monkeypatch.setattr(batched_host, "train_together", counted)
    return counts


@contextmanager
def expecting(host: BatchedHost, clients: int, round: int, digest: str) -> Iterator[None]:
    """Inside the block, the host expects `clients` clients for a job of this round."""
    with ExitStack() as waiting:
        for i in range(clients):
            waiting.enter_context(host.expecting(f"c{i}", round, digest))
        yield


def assert_same(one: TrainingOutcome, other: TrainingOutcome, share: float = 1e-3) -> None:
    """Assert equal losses and updates. Updates may differ by `share` of the update's largest absolute value."""
    np.testing.assert_allclose(one.update, other.update, rtol=0, atol=share * np.abs(other.update).max())
    assert one.loss == pytest.approx(other.loss, rel=1e-4)
