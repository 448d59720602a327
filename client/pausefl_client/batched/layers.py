"""The forward pass of k models of one architecture in one call: a sequence of layers over stacked parameters."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pausefl_client.training.image_network import ImageNetwork
from pausefl_client.training.random_layers import has_hooks
from pausefl_proto.errors import PauseflError

StackedParameters = Sequence[torch.Tensor]
"""A layer's parameters, each (k, *shape)."""


class NotStackable(PauseflError):
    """Training cannot be batched. The message is the reason."""


class StackedNetwork:
    """Maps (k, n, *shape) inputs to (k, n, *shape) outputs: row i with the parameters of model i."""

    def __init__(self, model: nn.Module) -> None:
        """NotStackable unless `model` is a sequence of layers in `_FORWARDS` that share no parameters."""
        self._layers = list(layers_of(model))
        if has_hooks(model):  # torch would call them in a pass; a stacked pass does not
            raise NotStackable("the model has hooks")
        self._counts = [len(list(layer.parameters())) for layer in self._layers]
        for layer in self._layers:
            held = [name for name in ("weight", "bias") if getattr(layer, name, None) is not None]
            if not [name for name, _ in layer.named_parameters()] == held == ["weight", "bias"][: len(held)]:
                raise NotStackable(f"a {type(layer).__name__} has other parameters than a weight and a bias")
        if sum(self._counts) != len(list(model.parameters())):
            raise NotStackable("layers of the model share parameters")
        if not all(parameter.requires_grad for parameter in model.parameters()):
            raise NotStackable("parameters of the model are frozen")
        if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
            raise NotStackable("parameters of the model are not float32")

    def __call__(self, parameters: StackedParameters, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs. `parameters` are in the order of `model.parameters()`, each (k, *shape)."""
        x, start = inputs, 0
        for layer, count in zip(self._layers, self._counts, strict=True):
            x = _FORWARDS[type(layer)](layer, x, parameters[start : start + count])
            start += count
        return x


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in order, including those of nested sequences. NotStackable at an unsupported layer."""
    if type(model) is nn.Sequential or type(model) is ImageNetwork:
        for part in model:
            yield from layers_of(part)
    elif type(model) not in _FORWARDS:
        raise NotStackable(f"the model has a {type(model).__name__}, which is not batched")
    elif isinstance(model, nn.Conv2d) and (model.padding_mode != "zeros" or isinstance(model.padding, str)):
        raise NotStackable("the model has a Conv2d with another padding than zeros")
    else:
        yield model


def _folded(x: torch.Tensor) -> torch.Tensor:
    """Reshape (k, n, channels, ...) to (n, k · channels, ...). A grouped operation treats models as channel groups."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: torch.Tensor, k: int) -> torch.Tensor:
    """Reverse `_folded`: a view (k, n, channels, ...) of the result of an operation on folded values."""
    return x.view(x.shape[0], k, x.shape[1] // k, *x.shape[2:]).transpose(0, 1)


def affine(x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    """x Wᵀ + b, (k, n, outputs), of (k, n, features): row i with the parameters of model i."""
    weight, *bias = parameters
    return torch.baddbmm(bias[0][:, None], x, weight.mT) if bias else torch.bmm(x, weight.mT)


def _linear(layer: Any, x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    return affine(x.flatten(1, -2), parameters).view(*x.shape[:-1], layer.out_features)


def _conv2d(layer: Any, x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    k = x.shape[0]
    weight, *bias = (parameter.flatten(0, 1) for parameter in parameters)
    images = _folded(x)
    if images.device.type == "cpu":  # torch convolves and pools channels last faster, as in `ImageNetwork`
        images = images.contiguous(memory_format=torch.channels_last)
    y = functional.conv2d(
        images, weight, bias[0] if bias else None, layer.stride, layer.padding, layer.dilation, k * layer.groups
    )
    return _apart(y, k)


def _group_norm(layer: Any, x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    k = x.shape[0]
    weight, bias = (*(parameter.flatten() for parameter in parameters), None, None)[:2]
    return _apart(functional.group_norm(_folded(x), k * layer.num_groups, weight, bias, layer.eps), k)


def _layer_norm(layer: Any, x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    y = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    ones = (1,) * (x.dim() - 1 - len(layer.normalized_shape))
    if not parameters:
        return y
    weight, *bias = (parameter.view(x.shape[0], *ones, *layer.normalized_shape) for parameter in parameters)
    return y * weight + bias[0] if bias else y * weight


def _pooled(layer: Any, x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    if x.dim() < 5:  # torch pools the last two dimensions of (n, h, w)
        return torch.unflatten(layer(x.flatten(0, 1)), 0, x.shape[:2])
    return _apart(layer(_folded(x)), x.shape[0])


def _flatten(layer: Any, x: torch.Tensor, parameters: StackedParameters) -> torch.Tensor:
    first, last = (d + 1 if d >= 0 else d for d in (layer.start_dim, layer.end_dim))
    return x.flatten(first, last)


_ELEMENTWISE = nn.Identity, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus
_FORWARDS: dict[type[nn.Module], Callable[[Any, torch.Tensor, StackedParameters], torch.Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.MaxPool2d: _pooled,
    nn.AvgPool2d: _pooled,
    nn.Flatten: _flatten,
    nn.ReLU: lambda _, x, __: functional.relu(x),  # never in place: autograd would have to track a view
    **dict.fromkeys(_ELEMENTWISE, lambda layer, x, _: layer(x)),
}
