"""FedBN (Li, Jiang, Zhang, Kamp and Dou, ICLR 2021)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from pausefl_client.training.method import RememberingMethod, copies
from pausefl_client.training.model_vector import trained_parameters
from pausefl_proto.errors import ConfigError

_NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class FedBN(RememberingMethod):
    """Every client keeps normalisation layers of its own. All other layers are shared (Algorithm 1).

    These layers' part of the update is 0, so the server's model keeps its initial ones: gains of 1, shifts of 0. With
    this method, running statistics always stay with the client too (`workload.statistics`).
    """

    remembered_as: ClassVar[str] = "own"  # the client's own normalisation layers

    def __init__(self) -> None:
        self._shared: dict[str, torch.Tensor] = {}

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Put the client's own normalisation layers into the model. ConfigError if the model has no such layers."""
        self._shared = copies(_normalisation_of(model))
        _fill(model, self.remembered)

    def end_round(self, model: nn.Module) -> None:
        """Keep the client's own normalisation layers, and put the server's back into the model."""
        self.remembered = copies(_normalisation_of(model))
        _fill(model, self._shared)


def _normalisation_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters of the normalisation layers, by name."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, _NORMALISATIONS)}
    if not layers:
        raise ConfigError('workload.training = "fedbn": workload.model has no normalisation layers to keep local')
    return {name: p for name, p in trained_parameters(model).items() if name.rpartition(".")[0] in layers}


@torch.no_grad()
def _fill(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    parameters = _normalisation_of(model)
    for name, value in values.items():
        parameters[name].copy_(value)
