"""One pass of k perceptrons that classify, written out: losses forward, gradients backward.

Models this small wait for autograd's calls. For `mlp` and 5 or 15 clients a pass takes half as long without them.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from pausefl_client.batched.layers import StackedParameters, layers_of, linear


def perceptron_of(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a model after the Flatten it begins with, where all are Linear or ReLU; None of others."""
    layers = list(layers_of(model))
    match layers[:1]:
        case [nn.Flatten(start_dim=1, end_dim=-1)] if {type(layer) for layer in layers[1:]} <= {nn.Linear, nn.ReLU}:
            return layers[1:]
    return None


@torch.no_grad()
def differentiate(
    layers: Sequence[nn.Module],
    parameters: StackedParameters,
    gradients: StackedParameters,
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """The mean cross-entropy of each model, (k,); the gradients of their sum are written into `gradients`.

    `layers` are those of `perceptron_of`. `inputs` are (k, n, *shape), `targets` (k, n) or (k, n, 1) int64; those below
    0 do not count.
    """
    x = inputs.flatten(2)
    passed = []
    left = list(zip(parameters, gradients, strict=True))
    for layer in layers:
        own = [left.pop(0) for _ in layer.parameters()]
        passed.append((x, own))
        x = linear(layer, x, [values for values, _ in own]) if own else functional.relu(x)
    losses, gradient = _cross_entropy(x, targets.flatten(1))
    for x, own in reversed(passed):
        if own:
            (weight, of_weight), *bias = own
            torch.bmm(gradient.mT, x, out=of_weight)
            for _, of_bias in bias:
                torch.sum(gradient, 1, out=of_bias)
            if x is not passed[0][0]:
                gradient = torch.bmm(gradient, weight)
        else:
            gradient = torch.ops.aten.threshold_backward(gradient, x, 0)
    return losses


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each model, (k,), and the gradient of their sum, (k, n, classes)."""
    counts = (targets >= 0).unsqueeze(2)
    n = counts.sum(1, keepdim=True)
    classes = targets.clamp(min=0).unsqueeze(2)
    log_shares = torch.log_softmax(outputs, 2)
    losses = -(log_shares.gather(2, classes) * counts / n).sum((1, 2))
    share = counts / n.clamp(min=1)  # where nothing counts, the loss is no number, but the gradient is 0
    return losses, log_shares.exp_().mul_(share).scatter_add_(2, classes, -share)
