"""MOON, model-contrastive federated learning (Li, He and Song, CVPR 2021)."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from pausefl_client.data.tasks import LearningTask
from pausefl_client.registries import TRAINING_DEFAULTS
from pausefl_client.training.method import Batch, RememberingMethod, copies
from pausefl_client.training.methods.features import with_features
from pausefl_client.training.model_vector import running_statistics, trained_parameters
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, NonNegative, Positive


@dataclass
class Moon(Bounded, RememberingMethod):
    """Adds μ ℓ to the loss. ℓ pulls features towards those of the round's model, away from the client's last model.

    ℓ = − log(e^(sim(z, z_θ)/T) / (e^(sim(z, z_θ)/T) + e^(sim(z, z_i)/T))) (eq. (3)). docs/training.md says what z is.
    In a client's first round ℓ is left out.
    """

    remembered_as: ClassVar[str] = "last"  # the client's model after its last round

    mu: NonNegative
    """μ, the weight of the contrastive loss."""
    temperature: Positive = TRAINING_DEFAULTS["moon"]["temperature"]
    """T, the divisor of similarities. The paper's value is 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._references: list[nn.Module] = []  # the server's model and the client's last; empty in its first round

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Keep copies of the server's model and of the client's last one, as references."""
        # deepcopy refuses tensors that a pass has left in the model, such as features kept to look at.
        left = [tensor for layer in model.modules() for tensor in _computed(vars(layer))]
        try:
            server, last = (copy.deepcopy(model, {id(t): t.detach().clone() for t in left}) for _ in range(2))
        except (TypeError, RuntimeError) as error:
            raise ConfigError(f'workload.training = "moon": needs copies of workload.model: {error}') from error
        places = _changing(last)
        with torch.no_grad():
            for name, value in self.remembered.items():  # not by `load_state_dict`, where users' names may differ
                places[name].copy_(value)
        self._references = [server, last] if self.remembered else []
        for reference in self._references:
            reference.eval()

    def loss(self, model: nn.Module, batch: Batch, task: LearningTask) -> torch.Tensor:
        """The task's loss + μ ℓ."""
        # First, so that hooks that keep features leave those of the model itself to the task.
        with torch.no_grad():
            # detached, as a model may take gradients in evaluation
            others = [with_features(each, batch.inputs, "moon")[1].detach() for each in self._references]
        outputs, features, _ = with_features(model, batch.inputs, "moon")
        loss = task.loss(outputs, batch.targets)
        if not others:
            return loss
        server, last = others
        return loss + self.mu * contrast(features, server, last, self.temperature)

    def end_round(self, model: nn.Module) -> None:
        self.remembered = copies(_changing(model))


def _changing(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**trained_parameters(model), **running_statistics(model)}


def _computed(held: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in `held`, and in its dicts and lists, that a pass has computed."""
    if isinstance(held, torch.Tensor) and not held.is_leaf:
        yield held
    if isinstance(held, dict):
        held = [*held.values()]
    for part in held if isinstance(held, list | tuple) else ():
        yield from _computed(part)


def contrast(z: torch.Tensor, towards: torch.Tensor, away: torch.Tensor, temperature: float) -> torch.Tensor:
    """ℓ of three (n, f) features, the mean over their n rows (eq. (3))."""
    near, far = (functional.cosine_similarity(z, other) / temperature for other in (towards, away))
    return functional.softplus(far - near).mean()
