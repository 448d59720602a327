"""Clients whose training cannot be shared with others' are told apart by their model, method and optimizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from pausefl_client.batched.host import BatchedHost
from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.training import check_stackable
from pausefl_client.registries import TRAINING_METHODS
from pausefl_client.training.method import Batch, TrainingMethod
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
