"""Arrays on their way between this process's memory and a device.

A GPU reads and writes page-locked memory by itself. Through such memory copies are queued like its other work, and only
who needs the values waits for them.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

Value = TypeVar("Value", bound=np.generic)


def gathered_bytes(device: torch.device) -> int:
    """How many bytes of inputs are gathered in one call: those of several steps, since each call takes its time.

    A processor's cache holds no more. A GPU has memory for a whole round of small images.
    """
    return 1 << 26 if device.type == "cuda" else 1 << 20


def on_device(array: npt.NDArray[Value], device: torch.device) -> torch.Tensor:
    """A new tensor on the device, of the values that `array` has now; it may be read-only."""
    copied = torch.from_numpy(array.copy())  # torch warns about read-only memory
    if device.type != "cuda":
        return copied.to(device)
    # torch keeps the page-locked memory until the copy has been made, and then for the next one.
    return copied.pin_memory().to(device, non_blocking=True)


def off_device(*tensors: torch.Tensor) -> tuple[npt.NDArray[Any], ...]:
    """The values of tensors on one device; waits once, for all of them.

    Where that is the processor, the arrays share the tensors' memory.
    """
    if not tensors or tensors[0].device.type != "cuda":
        return tuple(tensor.detach().cpu().numpy() for tensor in tensors)
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copied, tensor in zip(pinned, tensors, strict=True):
        copied.copy_(tensor.detach(), non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return tuple(copied.numpy() for copied in pinned)
