"""The last linear layer of a model, and the features that it receives."""

from contextlib import ExitStack

import torch
from torch import nn

from pausefl_proto.errors import ConfigError


def with_features(model: nn.Module, inputs: torch.Tensor, method: str) -> tuple[torch.Tensor, torch.Tensor, nn.Linear]:
    """The model's outputs for n inputs, the inputs of the linear layer that it calls last, (n, f), and that layer.

    ConfigError, which names the training method, if no linear layer is seen.
    """
    taken: list[tuple[torch.Tensor, nn.Linear]] = []

    def take(layer: nn.Linear, arguments: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        taken[:] = [(features, layer) for features in [*arguments, *named.values()][:1]]

    with ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                hooks.enter_context(layer.register_forward_pre_hook(take, with_kwargs=True))
        outputs = model(inputs.clone())  # a model may change its inputs
    if not taken:
        raise ConfigError(
            f'workload.training = "{method}": workload.model has no linear layer whose inputs were its features, or'
            " torch.jit or torch.compile hides it"
        )
    ((features, head),) = taken
    return outputs, features.flatten(1), head
