"""Which clients can train together; and a model's random draws, which depend on (seed, client, round) only."""

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pausefl_client.batched.host import BatchedHost
from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.perceptrons import differentiate, perceptron_of
from pausefl_client.batched.training import _losses, check_stackable
from pausefl_client.data.datasets import Examples
from pausefl_client.data.tasks import LearningTask
from pausefl_client.registries import TRAINING_METHODS
from pausefl_client.training.method import Batch, TrainingMethod
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.tasks import Classification
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings
from rigs.batched import network, trainers_of
from rigs.own_models import frozen_backbone, tied_layers


class Halved(TrainingMethod):
    def loss(self, model: nn.Module, batch: Batch, task: Any) -> torch.Tensor:
        return super().loss(model, batch, task) / 2


class Shaking(TrainingMethod):
    """Draws random numbers before and after the steps."""

    def begin_round(self, model: nn.Module, round: int) -> None:
        super().begin_round(model, round)
        shake(model)

    def end_round(self, model: nn.Module) -> None:
        super().end_round(model)
        shake(model)


class NowAndThen(TrainingMethod):
    def begin_round(self, model: nn.Module, round: int) -> None:
        if round % 2 == 0:
            shake(model)


def shake(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * np.random.beta(2, 2))  # noqa: NPY002 - users may do so


@dataclass
class Case:
    reason: str
    model: Callable[[], nn.Module] = network
    method: Callable[[], TrainingMethod] = TrainingMethod
    optimizer: str = "adam"
    options: Mapping[str, Any] = field(default_factory=dict)


HOOKS: dict[str, Callable[[Any, Any], object]] = {
    "a forward of its own": lambda layer, _: vars(layer).update(forward=lambda x: 2 * x),
    "forward": lambda layer, _: layer.register_forward_hook(lambda *_: None),
    "forward pre": lambda layer, _: layer.register_forward_pre_hook(lambda *_: None),
    "backward": lambda layer, _: layer.register_full_backward_hook(lambda *_: None),
    "backward pre": lambda layer, _: layer.register_full_backward_pre_hook(lambda *_: None),
    "of a gradient": lambda _, parameter: parameter.register_hook(lambda gradient: gradient / 2),
    "after a gradient": lambda _, parameter: parameter.register_post_accumulate_grad_hook(lambda _: None),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_model_with_hooks_is_not_batched(kind: str) -> None:
    model = network()
    HOOKS[kind](list(model.modules())[-1], list(model.parameters())[-1])
    with pytest.raises(NotStackable, match="the model has hooks"):
        StackedNetwork(model)


@pytest.mark.parametrize(
    "case",
    [
        Case("the model has a Dropout", lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))),
        Case("the model has a BatchNorm1d", lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))),
        Case("share parameters", lambda: tied_layers((1, 8, 8), 10)),
        Case("are frozen", lambda: frozen_backbone((1, 8, 8), 10)),
        Case("other parameters", lambda: network().apply(lambda layer: layer.register_parameter("weight", None))),
        Case("Halved has its own `loss`", method=Halved),
        Case("the training method Shaking or the task Classification may draw at random", method=Shaking),
        Case("Moon has its own `loss`", method=lambda: TRAINING_METHODS["moon"](mu=1.0)),
        Case("torch.optim:LBFGS is none of", optimizer="torch.optim:LBFGS"),
        Case("has dampening", optimizer="sgd", options={"momentum": 0.9, "dampening": 0.1}),
    ],
    ids=lambda case: case.reason,
)
def test_what_cannot_be_batched_is_told(case: Case) -> None:
    settings = TrainingSettings(case.optimizer, 0.01, optimizer_options=case.options)
    (trainer,) = trainers_of(settings, case.method, case.model, sizes=[9])
    with pytest.raises(NotStackable, match=case.reason):
        check_stackable(trainer)
    host = BatchedHost()
    assert host.admit("c0", trainer) is host.outermost("c0", trainer) is trainer


CLASSES = 4
SHAPE = (2, 3)


@st.composite
def perceptrons(draw: st.DrawFn) -> nn.Sequential:
    """Linear layers with and without biases, with ReLU anywhere: several in a row, first, or last."""
    layers: list[nn.Module] = [nn.Flatten()]
    features = 6
    for width in [*draw(st.lists(st.integers(1, 5), max_size=3)), CLASSES]:
        layers += [nn.ReLU()] * draw(st.integers(0, 2))
        layers += [nn.Linear(features, width, bias=draw(st.booleans()))]
        features = width
    return nn.Sequential(*layers, *[nn.ReLU()] * draw(st.integers(0, 1)))


@given(
    model=perceptrons(),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    seed=st.integers(0, 999),
    has_rows=st.booleans(),
)
def test_gradients_are_those_of_autograd(model: nn.Sequential, sizes: list[int], seed: int, has_rows: bool) -> None:
    rng, k, n = torch.Generator().manual_seed(seed), len(sizes), max(sizes)
    parameters = [torch.randn((k, *p.shape), generator=rng, requires_grad=True) for p in model.parameters()]
    inputs = torch.randn((k, n, *SHAPE), generator=rng)
    targets = torch.randint(-1, CLASSES, (k, n), generator=rng)  # −1 does not count; a model may have no counted target
    for row, size in zip(targets, sizes, strict=True):
        row[size:] = -1
    expected = _losses(Classification(), StackedNetwork(model)(parameters, inputs), targets, sizes)
    expected_gradients = torch.autograd.grad(expected.sum(), parameters)

    layers, matrix = perceptron_of(model), torch.full((k, sum(p[0].numel() for p in parameters)), torch.nan)
    assert layers is not None
    parts = torch.split(matrix, [p[0].numel() for p in parameters], 1)
    gradients = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]  # rows lie apart, as in a stack
    losses = differentiate(layers, parameters, gradients, inputs, targets if has_rows else targets.unsqueeze(2))
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-6, equal_nan=True)
    for gradient, of_autograd in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, of_autograd, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        (build_model("mlp", (9,), 10, 1), True),
        (nn.Sequential(nn.Linear(6, 4)), False),
        (nn.Sequential(nn.Flatten(0), nn.Linear(6, 4)), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Flatten()), False),
    ],
)
def test_other_models_than_perceptrons_are_left_to_autograd(model: nn.Sequential, is_one: bool) -> None:
    assert (perceptron_of(model) is not None) is is_one


WORDS = 12


class Meeting(nn.Sequential):
    """Draws twice. Between the two, another training can draw too, unless they are kept apart."""

    met = threading.Barrier(2, timeout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.rand(x.shape[-1])
        with suppress(threading.BrokenBarrierError):
            self.met.wait()
        return x * first * torch.rand(x.shape[-1])


def dropping() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WORDS, 8), nn.Dropout(), nn.Linear(8, 4))


def shaken() -> nn.Module:
    """Its gradients are noised by a hook."""
    torch.manual_seed(1)
    layer = nn.Linear(WORDS, 4)
    layer.weight.register_hook(lambda gradient: gradient + torch.randn_like(gradient))  # type: ignore[no-untyped-call]  # untyped there
    return nn.Sequential(layer)


def meeting() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WORDS, 8), Meeting(), nn.Linear(8, 4))


def reading() -> nn.Module:
    return build_model("fedts_agnews", (WORDS,), 4, 1, has_tokens=True)


def drawing_trainers(
    model: Callable[[], nn.Module],
    *,
    has_tokens: bool,
    method: Callable[[], TrainingMethod] = TrainingMethod,
    task: LearningTask | None = None,
    optimizer: str = "sgd",
) -> list[TorchTrainer]:
    rng = np.random.default_rng(1)
    labels, tokens = rng.integers(0, 4, 40), rng.integers(1, 100, (40, WORDS)).astype(np.int32)
    inputs = rng.normal(size=(40, WORDS)).astype(np.float32)
    data = LocalData(Examples(tokens, labels) if has_tokens else Examples(inputs, labels), 4, task=task)
    settings = TrainingSettings(optimizer, 0.1, batch_size=10)
    return [
        TorchTrainer(model(), data, settings, device=torch.device("cpu"), seed=1, client_id=f"c{i}", method=method())
        for i in range(2)
    ]


def train(trainer: TorchTrainer, round: int = 1) -> TrainingOutcome:
    return trainer.train(ModelVector(trainer.model).values() * 0 + np.float32(0.1), round=round)


class Smoothed(Classification):
    """A user's task whose loss draws random numbers."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs + torch.randn_like(outputs) * random.random(), targets)


class Langevin(torch.optim.SGD):
    """A user's optimizer, which adds noise to each step."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(torch.randn_like(parameter))
        return loss


OF_ONES_OWN = {"task": Smoothed(), "method": Shaking, "optimizer": f"{__name__}:Langevin"}


@pytest.mark.parametrize("options", [{what: own} for what, own in OF_ONES_OWN.items()], ids=OF_ONES_OWN)
def test_what_a_task_draws_in_its_loss_and_a_method_around_the_steps_repeats(options: dict[str, Any]) -> None:
    trainers = [drawing_trainers(lambda: nn.Linear(WORDS, 4), has_tokens=False, **options)[0] for _ in range(2)]
    first = train(trainers[0])
    torch.rand(7)
    assert np.array_equal(first.update, train(trainers[1]).update)
    with pytest.raises(NotStackable, match=r"may draw at random|none of torch"):
        check_stackable(trainers[1])


@pytest.mark.parametrize("model", [dropping, shaken, meeting, reading], ids=lambda model: model.__name__)
def test_threads_do_not_draw_from_each_others_streams(model: Callable[[], nn.Module]) -> None:
    Meeting.met.reset()
    alone = [train(trainer) for trainer in drawing_trainers(model, has_tokens=model is reading)]
    Meeting.met.reset()
    with ThreadPoolExecutor(2) as threads:
        beside = list(threads.map(train, drawing_trainers(model, has_tokens=model is reading)))
    assert not np.array_equal(alone[0].update, alone[1].update)
    for one, other in zip(alone, beside, strict=True):
        assert np.array_equal(one.update, other.update)


def test_what_draws_now_and_then_repeats() -> None:
    of: dict[str, Any] = {"has_tokens": False, "method": NowAndThen}
    one, other = (drawing_trainers(lambda: nn.Linear(WORDS, 4), **of)[0] for _ in range(2))
    for number in range(1, 5):
        assert np.array_equal(train(one, number).update, train(other, number).update)


class Quiet(nn.Module):
    """A layer of an unknown class that draws nothing. With `other` set, it waits for another training."""

    other: threading.Barrier | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.other:
            self.other.wait()
        return x


def test_models_that_draw_nothing_train_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with unknown layers do so from their second training on."""
    trainers = drawing_trainers(lambda: nn.Sequential(Quiet(), nn.Linear(WORDS, 4)), has_tokens=False)
    for trainer in trainers:
        train(trainer)
    monkeypatch.setattr(Quiet, "other", threading.Barrier(2, timeout=30))
    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(train, trainers))) == 2
