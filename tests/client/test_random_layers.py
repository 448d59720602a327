"""What a model draws while it trains depends on (seed, client, round) alone, whatever trains beside it."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pausefl_client.batched.layers import NotStackable
from pausefl_client.batched.training import check_stackable
from pausefl_client.data.datasets import Examples
from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.tasks import Classification
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings

WORDS = 12


class Meeting(nn.Module):
    """Draws twice, and lets another training draw in between if it may."""

    met = threading.Barrier(2, timeout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.rand(x.shape[-1])
        with suppress(threading.BrokenBarrierError):
            self.met.wait()
        return x * first * torch.rand(x.shape[-1])


def dropping() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WORDS, 8), nn.Dropout(), nn.Linear(8, 4))


def meeting() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WORDS, 8), Meeting(), nn.Linear(8, 4))


def reading() -> nn.Module:
    return build_model("fedts_agnews", (WORDS,), 4, 1, has_tokens=True)


def trainers_of(
    model: Callable[[], nn.Module],
    *,
    has_tokens: bool,
    method: Callable[[], TrainingMethod] = TrainingMethod,
    task: LearningTask | None = None,
) -> list[TorchTrainer]:
    rng = np.random.default_rng(1)
    labels, tokens = rng.integers(0, 4, 40), rng.integers(1, 100, (40, WORDS)).astype(np.int32)
    inputs = rng.normal(size=(40, WORDS)).astype(np.float32)
    data = LocalData(Examples(tokens, labels) if has_tokens else Examples(inputs, labels), 4, task=task)
    settings = TrainingSettings("sgd", 0.1, batch_size=10)
    return [
        TorchTrainer(model(), data, settings, device=torch.device("cpu"), seed=1, client_id=f"c{i}", method=method())
        for i in range(2)
    ]


def train(trainer: TorchTrainer) -> TrainingOutcome:
    return trainer.train(ModelVector(trainer.model).values() * 0 + np.float32(0.1), round=1)


class Shaking(TrainingMethod):
    """Draws before and after the steps."""

    def begin_round(self, model: nn.Module, round: int) -> None:
        super().begin_round(model, round)
        shake(model)

    def end_round(self, model: nn.Module) -> None:
        super().end_round(model)
        shake(model)


def shake(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


class Smoothed(Classification):
    """A task of one's own, whose loss draws."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs + torch.randn_like(outputs), targets)


@pytest.mark.parametrize("options", [{"task": Smoothed()}, {"method": Shaking}], ids=["task", "method"])
def test_what_a_task_draws_in_its_loss_and_a_method_around_the_steps_repeats(options: dict[str, Any]) -> None:
    trainers = [trainers_of(lambda: nn.Linear(WORDS, 4), has_tokens=False, **options)[0] for _ in range(2)]
    first = train(trainers[0])
    torch.rand(7)
    assert np.array_equal(first.update, train(trainers[1]).update)
    with pytest.raises(NotStackable, match="may draw at random"):
        check_stackable(trainers[1])


@pytest.mark.parametrize("model", [dropping, meeting, reading], ids=lambda model: model.__name__)
def test_threads_do_not_draw_from_each_others_streams(model: Callable[[], nn.Module]) -> None:
    Meeting.met.reset()
    alone = [train(trainer) for trainer in trainers_of(model, has_tokens=model is reading)]
    Meeting.met.reset()
    with ThreadPoolExecutor(2) as threads:
        beside: Sequence[TrainingOutcome] = list(threads.map(train, trainers_of(model, has_tokens=model is reading)))
    assert not np.array_equal(alone[0].update, alone[1].update)
    for one, other in zip(alone, beside, strict=True):
        assert np.array_equal(one.update, other.update)


def test_a_model_that_has_drawn_is_taken_to_draw_from_then_on() -> None:
    (trainer, _), (other, _) = (trainers_of(dropping, has_tokens=False) for _ in range(2))
    for one in (trainer, other):
        train(one)
    dropout = next(layer for layer in trainer.model.modules() if isinstance(layer, nn.Dropout))
    dropout.p = 0.0
    train(trainer)
    dropout.p = 0.5
    torch.rand(7)
    assert np.array_equal(train(trainer).update, train(other).update)


class Quiet(nn.Module):
    """Of a class that is not known, and draws nothing; it waits for another training once it is told to."""

    other: threading.Barrier | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.other:
            self.other.wait()
        return x


def test_models_that_draw_nothing_train_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of unknown layers from their second training on."""
    trainers = trainers_of(lambda: nn.Sequential(Quiet(), nn.Linear(WORDS, 4)), has_tokens=False)
    for trainer in trainers:
        train(trainer)
    monkeypatch.setattr(Quiet, "other", threading.Barrier(2, timeout=30))
    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(train, trainers))) == 2
