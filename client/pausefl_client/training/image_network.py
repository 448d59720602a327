"""A sequence of layers over images, in the ways in which torch computes them fastest."""

import torch
from torch import nn
from torch.nn import functional


class ImageNetwork(nn.Sequential):
    """A sequence of layers over images. On a processor it takes the ways that torch convolves and pools fastest.

    Every value and gradient is that of the same layers in an `nn.Sequential`, up to the rounding of convolutions.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        on_processor = x.device.type == "cpu"
        if on_processor:
            x = x.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = _max_pooled(layer, x) if on_processor and isinstance(layer, nn.MaxPool2d) else layer(x)
        return x


def _max_pooled(layer: nn.MaxPool2d, x: torch.Tensor) -> torch.Tensor:
    """Pool by oneDNN what has not its channels last, for which torch takes several times as long. oneDNN drops NaN."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # untyped there
    if has_onednn and x.is_contiguous() and x.detach().sum().isfinite():
        return functional.max_pool2d(x.to_mkldnn(), layer.kernel_size, layer.stride).to_dense()
    pooled: torch.Tensor = layer(x)
    return pooled
