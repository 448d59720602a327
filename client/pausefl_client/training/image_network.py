"""A sequence of layers over images, in the layouts in which torch computes them fastest."""

import torch
from torch import nn


class ImageNetwork(nn.Sequential):
    """A sequence of layers over images. On a processor it lays images out as torch convolves and pools them fastest.

    Every value and gradient is that of the same layers in an `nn.Sequential`, up to the rounding of convolutions.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        on_processor = x.device.type == "cpu"
        if on_processor:
            x = _channels_last(x)
        for layer in self:
            # torch pools several times as fast with channels last. What follows gets the layout that it had.
            is_slow = on_processor and isinstance(layer, nn.MaxPool2d) and x.is_contiguous()
            x = layer(_channels_last(x)).contiguous() if is_slow else layer(x)
        return x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """The images with their channels last in memory, in a way that `torch.func.vmap` takes, too."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
