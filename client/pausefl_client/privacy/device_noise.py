"""Laplace noise drawn on the GPU that trains. It is faster for clients with large updates."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class DeviceLaplace:
    """A `LaplaceSource` that draws in float64 on its generator's device."""

    generator: torch.Generator
    """A secret generator, new for every release: `secret_generator` makes one."""

    def laplace(self, loc: npt.NDArray[Any], scale: float) -> npt.NDArray[np.float64]:
        """`loc`, (n,), plus independent Laplace noise of this scale: the difference of two exponentials."""
        value = torch.from_numpy(loc).to(self.generator.device, torch.float64)
        value.sub_(self._log_uniform(value), alpha=scale).add_(self._log_uniform(value), alpha=scale)
        noised: npt.NDArray[np.float64] = value.cpu().numpy()  # waits for the device
        return noised

    def _log_uniform(self, like: torch.Tensor) -> torch.Tensor:
        """log(u) with u uniform in (0, 1]. Its negative is exponentially distributed."""
        # Not `Tensor.exponential_`, which may draw from a generator of 31 bits on a CPU.
        uniform = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=self.generator)
        return uniform.neg_().add_(1).log_()


def secret_generator(device: torch.device) -> torch.Generator:
    """A Philox generator on a CUDA device with 124 bits of the operating system's entropy; RuntimeError without CUDA.

    ValueError for a CPU: torch seeds a Mersenne twister there with 32 bits, few enough to try out. Philox is not a
    cryptographic generator. Its protection is its secret state, and that no generator is used twice.
    """
    if device.type != "cuda":
        raise ValueError(f"{device}: torch seeds its generator there with 32 bits only")
    generator = torch.Generator(device)
    generator.set_state(philox_state())
    return generator


def philox_state() -> torch.Tensor:
    """A Philox state of 64 secret bits of seed and 60 of offset: two little-endian words, the offset a multiple of 4.

    A seed alone, as `manual_seed` accepts it, is short enough to try out.
    """
    words = np.frombuffer(os.urandom(16), "<u8").copy()
    words[1] = words[1] >> np.uint64(4) << np.uint64(2)
    return torch.from_numpy(words.view(np.uint8))
