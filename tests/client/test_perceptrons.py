"""Perceptrons whose pass is written out have the losses and gradients that autograd gives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pausefl_client.batched.layers import StackedNetwork
from pausefl_client.batched.perceptrons import differentiate, perceptron_of
from pausefl_client.batched.training import _losses
from pausefl_client.training.models import build_model
from pausefl_client.training.tasks import Classification

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
