"""FedBN (Li, Jiang, Zhang, Kamp and Dou, ICLR 2021)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import trained_parameters
from pausefl_proto.errors import ConfigError

_NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class FedBN(TrainingMethod):
    """Every client keeps normalisation layers of its own. All other layers are shared (Algorithm 1).

    These layers' part of the update is 0, so the server's model keeps its initial ones: gains of 1, shifts of 0. With
    this method, running statistics always stay with the client too (`workload.statistics`).
    """

    def __init__(self) -> None:
        self._own: dict[str, torch.Tensor] = {}  # nothing before the first round
        self._shared: dict[str, torch.Tensor] = {}

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Put the client's own normalisation layers into the model. ConfigError if the model has no such layers."""
        self._shared = _copied(_normalisation_of(model))
        _fill(model, self._own)

    def end_round(self, model: nn.Module) -> None:
        """Keep the client's own normalisation layers, and put the server's back into the model."""
        self._own = _copied(_normalisation_of(model))
        _fill(model, self._shared)

    def state(self) -> Mapping[str, Any]:
        return {"own": self._own} if self._own else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._own = dict(state.get("own", {}))


def _normalisation_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters of the normalisation layers, by name."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, _NORMALISATIONS)}
    if not layers:
        raise ConfigError('workload.training = "fedbn": workload.model has no normalisation layers to keep local')
    return {name: p for name, p in trained_parameters(model).items() if name.rpartition(".")[0] in layers}


def _copied(parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def _fill(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    parameters = _normalisation_of(model)
    for name, value in values.items():
        parameters[name].copy_(value)
