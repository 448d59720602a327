"""One pass of k classifying perceptrons without autograd: losses forward, gradients backward.

Such small models spend most time in autograd's calls. Without them, a pass of `mlp` (5 or 15 clients) is twice as fast.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from pausefl_client.batched.layers import StackedParameters, affine, layers_of

# The number of values in a matrix product. Below it, a batched product with a copy is faster than `out=`.
_SMALL = 10_000


def perceptron_of(model: nn.Module) -> list[int] | None:
    """The number of parameters of each layer after a first Flatten: 0 for a ReLU, 1 or 2 for a Linear. Else None."""
    layers = list(layers_of(model))
    match layers[:1]:
        case [nn.Flatten(start_dim=1, end_dim=-1)] if {type(layer) for layer in layers[1:]} <= {nn.Linear, nn.ReLU}:
            return [len(list(layer.parameters())) for layer in layers[1:]]
    return None


@torch.no_grad()
def differentiate(
    layers: Sequence[int],
    parameters: StackedParameters,
    gradients: StackedParameters,
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Return the mean cross-entropy of each model, (k,), and write the gradients of their sum into `gradients`.

    `layers` is the result of `perceptron_of`. `inputs` are (k, n, *shape), `targets` (k, n) or (k, n, 1) int64. Targets
    below 0 do not count.
    """
    x = inputs.flatten(2)
    passed = []
    left = iter(zip(parameters, gradients, strict=True))
    for count in layers:
        own = list(itertools.islice(left, count))
        passed.append((x, own))
        x = affine(x, [values for values, _ in own]) if own else torch.relu(x)
    losses, gradient = _cross_entropy(x, targets.flatten(1))
    for x, own in reversed(passed):
        if own:
            (weight, of_weight), *bias = own
            _multiply(gradient.mT, x, of_weight)
            for _, of_bias in bias:
                torch.sum(gradient, 1, out=of_bias)
            if x is not passed[0][0]:
                gradient = torch.bmm(gradient, weight)
        else:
            gradient = torch.ops.aten.threshold_backward(gradient, x, 0)
    return losses


def _multiply(a: torch.Tensor, b: torch.Tensor, product: torch.Tensor) -> None:
    """Write the k matrix products into `product`. Its matrices are not adjacent, so torch would compute one by one."""
    if product[0].numel() < _SMALL:
        product.copy_(torch.bmm(a, b))
    else:
        torch.bmm(a, b, out=product)


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean cross-entropy of each model, (k,), and the gradient of their sum, (k, n, classes)."""
    counts = targets >= 0
    shares = counts / counts.sum(1, keepdim=True)
    classes = targets.clamp(min=0).unsqueeze(1)
    # With few classes, a CPU sums the likelihoods several times as fast if a row's classes are not adjacent in memory.
    likelihoods = torch.log_softmax(outputs.mT.contiguous(), 1)
    losses = -(likelihoods.gather(1, classes).squeeze(1) * shares).sum(1)
    shares = shares.nan_to_num_(0).unsqueeze(1)  # if no target counts, the loss is NaN, but the gradient is 0
    return losses, likelihoods.exp_().mul_(shares).scatter_add_(1, classes, -shares).mT
