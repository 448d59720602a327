"""Copies arrays between this process's memory and a device.

A GPU reads and writes page-locked memory by itself. Copies through such memory are queued like the GPU's other work, so
only code that needs the values waits for them.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

Value = TypeVar("Value", bound=np.generic)


def gathered_bytes(device: torch.device) -> int:
    """How many bytes of inputs to gather in one call for several steps: what a CPU's cache or a GPU's memory holds."""
    return 1 << 26 if device.type == "cuda" else 1 << 20


def on_device(array: npt.NDArray[Value], device: torch.device) -> torch.Tensor:
    """A new tensor on the device with the present values of `array`, which may be read-only."""
    copied = torch.from_numpy(array.copy())  # torch warns about read-only memory
    # torch keeps the page-locked memory until the copy is done, and reuses it for the next copy.
    return copied.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else copied.to(device)


def off_device(*tensors: torch.Tensor) -> tuple[npt.NDArray[Any], ...]:
    """The values of tensors on one device, as arrays. It waits once for all of them.

    numpy lacks bfloat16, so such values become float32. On the CPU, the arrays share other tensors' memory.
    """
    tensors = tuple(tensor.float() if tensor.dtype is torch.bfloat16 else tensor for tensor in tensors)
    if not tensors or tensors[0].device.type != "cuda":
        return tuple(tensor.detach().cpu().numpy() for tensor in tensors)
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copied, tensor in zip(pinned, tensors, strict=True):
        copied.copy_(tensor.detach(), non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return tuple(copied.numpy() for copied in pinned)
