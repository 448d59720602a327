"""FedBN (Li, Jiang, Zhang, Kamp and Dou, ICLR 2021)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod
from pausefl_proto.errors import ConfigError

_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class FedBN(TrainingMethod):
    """Every client keeps normalisation layers of its own; all else is shared (Algorithm 1).

    Their part of the update is 0, so the server's model keeps those it began with: gains of 1 and shifts of 0.
    """

    def __init__(self) -> None:
        self._own: dict[str, torch.Tensor] = {}  # nothing before the first round
        self._shared: dict[str, torch.Tensor] = {}

    def begin_round(self, model: nn.Module, round: int) -> None:  # noqa: ARG002
        """Put the client's own normalisation into the model; ConfigError where it has none."""
        layers = _normalisation_of(model)
        if not layers:
            raise ConfigError('workload.training = "fedbn": workload.model has no normalisation layers to keep local')
        self._shared = _copied(layers)
        _fill(layers, self._own)

    def end_round(self, model: nn.Module) -> None:
        """Keep it, and put the server's back."""
        layers = _normalisation_of(model)
        self._own = _copied(layers)
        _fill(layers, self._shared)

    def state(self) -> Mapping[str, Any]:
        """The client's own normalisation."""
        return {"own": self._own} if self._own else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with this one."""
        self._own = dict(state.get("own", {}))


def _normalisation_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of the normalisation layers by name; they share the model's memory."""
    return {
        f"{name}.{key}": tensor
        for name, module in model.named_modules()
        if isinstance(module, _NORMALISATIONS)
        for key, tensor in module.state_dict().items()
    }


def _copied(layers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in layers.items()}


def _fill(layers: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    for name, value in values.items():
        layers[name].copy_(value)
