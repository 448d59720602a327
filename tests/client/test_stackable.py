"""Which clients' training can be shared, and perceptrons whose pass is written out for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pausefl_client.batched.host import BatchedHost
from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.perceptrons import differentiate, perceptron_of
from pausefl_client.batched.training import _losses, check_stackable
from pausefl_client.registries import TRAINING_METHODS
from pausefl_client.training.method import Batch, TrainingMethod
from pausefl_client.training.models import build_model
from pausefl_client.training.tasks import Classification
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import network, theta_of, trainers_of


class Halved(TrainingMethod):
    def loss(self, model: nn.Module, batch: Batch, task: Any) -> torch.Tensor:
        return super().loss(model, batch, task) / 2


class Shaking(TrainingMethod):
    def begin_round(self, model: nn.Module, round: int) -> None:  # noqa: ARG002
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))


@dataclass
class Case:
    reason: str
    model: Callable[[], nn.Module] = network
    method: Callable[[], TrainingMethod] = TrainingMethod
    optimizer: str = "adam"
    options: Mapping[str, Any] = field(default_factory=dict)


def tied() -> nn.Module:
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, layer, nn.Linear(64, 10))


def frozen() -> nn.Module:
    model = network()
    next(model.parameters()).requires_grad_(False)
    return model


HOOKS: dict[str, Callable[[Any, Any], object]] = {
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
        Case("share parameters", tied),
        Case("are frozen", frozen),
        Case("Halved has its own `loss`", method=Halved),
        Case("the training method Shaking or the task Classification may draw at random", method=Shaking),
        Case("Moon has its own `loss`", method=lambda: TRAINING_METHODS["moon"](mu=1.0)),
        Case("torch.optim:LBFGS is none of", optimizer="torch.optim:LBFGS"),
        Case("has dampening", optimizer="sgd", options={"momentum": 0.9, "dampening": 0.1}),
    ],
    ids=lambda case: case.reason,
)
def test_what_cannot_be_batched_is_told(case: Case) -> None:
    (trainer,) = trainers_of(
        TrainingSettings(case.optimizer, 0.01, optimizer_options=case.options), case.method, case.model, sizes=[9]
    )
    with pytest.raises(NotStackable, match=case.reason):
        check_stackable(trainer)


def test_a_client_that_cannot_be_batched_keeps_its_trainer() -> None:
    host = BatchedHost()
    (trainer,) = trainers_of(method=Halved, sizes=[9])
    assert host.admit("c0", trainer) is trainer
    assert host.outermost("c0", trainer) is trainer
    assert host.refusals == {"c0": "the training method Halved has its own `loss`"}
    with host.expecting("c0", 1, "a"):
        assert trainer.train(theta_of(trainer), round=1).update.any()


CLASSES = 4
SHAPE = (2, 3)


@st.composite
def perceptrons(draw: st.DrawFn) -> nn.Sequential:
    """Linear layers with and without biases, and ReLU at any place, also several in a row, first or last."""
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
    targets = torch.randint(-1, CLASSES, (k, n), generator=rng)  # −1 does not count; of some models nothing may
    for row, size in zip(targets, sizes, strict=True):
        row[size:] = -1
    expected = _losses(Classification(), StackedNetwork(model)(parameters, inputs), targets, sizes)
    expected_gradients = torch.autograd.grad(expected.sum(), parameters)

    layers, matrix = perceptron_of(model), torch.full((k, sum(p[0].numel() for p in parameters)), torch.nan)
    assert layers is not None
    parts = torch.split(matrix, [p[0].numel() for p in parameters], 1)
    gradients = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]  # rows apart, as in a stack
    losses = differentiate(layers, parameters, gradients, inputs, targets if has_rows else targets.unsqueeze(2))
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-6, equal_nan=True)
    for gradient, of_autograd in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, of_autograd, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 28, 28), (9,)])
def test_the_bundled_perceptron_is_one(shape: tuple[int, ...]) -> None:
    assert perceptron_of(build_model("mlp", shape, 10, 1)) is not None


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(6, 4)),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh()),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Flatten()),
    ],
)
def test_other_models_are_left_to_autograd(model: nn.Sequential) -> None:
    assert perceptron_of(model) is None
