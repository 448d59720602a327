"""MOON, model-contrastive federated learning (Li, He and Song, CVPR 2021)."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pausefl_client.data.tasks import LearningTask
from pausefl_client.registries import TRAINING_DEFAULTS
from pausefl_client.training.method import Batch, TrainingMethod
from pausefl_client.training.model_vector import running_statistics, trained_parameters
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, NonNegative, Positive


@dataclass
class Moon(Bounded, TrainingMethod):
    """The loss gets μ ℓ, which pulls a client's features towards those of the round's model, away from its last one's.

    ℓ = − log(e^(sim(z, z_θ)/T) / (e^(sim(z, z_θ)/T) + e^(sim(z, z_i)/T))) (eq. (3)), with the cosine similarity of the
    features z of the model that is trained, z_θ of the server's, and z_i of the client's model after its last round.
    Features are what the last linear layer takes in; the paper puts a projection head before it. In a client's first
    round, where z_i would be z_θ, ℓ is constant and left out.
    """

    mu: NonNegative
    """μ, the weight of the contrastive loss."""
    temperature: Positive = TRAINING_DEFAULTS["moon"]["temperature"]
    """T, by which similarities are divided. The paper's value is 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last: dict[str, torch.Tensor] = {}  # the client's model after its last round
        self._references: list[nn.Module] = []  # the server's model and the client's last; none in its first round

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Keep the server's model beside the client's last one."""
        _last_linear(model)
        self._references = []
        if self._last:
            server, last = (copy.deepcopy(model).eval().requires_grad_(False) for _ in range(2))
            last.load_state_dict(self._last, strict=False)
            self._references = [server, last]

    def loss(self, model: nn.Module, batch: Batch, task: LearningTask) -> torch.Tensor:
        """The task's loss + μ ℓ."""
        if not self._references:
            return super().loss(model, batch, task)
        outputs, features = _with_features(model, batch.inputs)
        with torch.no_grad():
            server, last = (_with_features(reference, batch.inputs)[1] for reference in self._references)
        return task.loss(outputs, batch.targets) + self.mu * contrast(features, server, last, self.temperature)

    def end_round(self, model: nn.Module) -> None:
        """Keep what was trained."""
        changing = {**trained_parameters(model), **running_statistics(model)}
        self._last = {name: tensor.detach().clone() for name, tensor in changing.items()}

    def state(self) -> Mapping[str, Any]:
        """The client's last model."""
        return {"last": self._last} if self._last else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from this one."""
        self._last = dict(state.get("last", {}))


def contrast(z: torch.Tensor, towards: torch.Tensor, away: torch.Tensor, temperature: float) -> torch.Tensor:
    """ℓ, the mean over the n rows of three (n, f) features (eq. (3))."""
    near, far = (functional.cosine_similarity(z, other) / temperature for other in (towards, away))
    return functional.softplus(far - near).mean()


def _with_features(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's outputs for n inputs, and what its last linear layer took in, (n, f)."""
    taken: list[torch.Tensor] = []
    watch = _last_linear(model).register_forward_pre_hook(lambda _, arguments: taken.append(arguments[0]))
    try:
        outputs = model(inputs)
    finally:
        watch.remove()
    return outputs, taken[-1].flatten(1)


def _last_linear(model: nn.Module) -> nn.Linear:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ConfigError(
            'workload.training = "moon": workload.model has no linear layer whose inputs were its features'
        )
    return layers[-1]
