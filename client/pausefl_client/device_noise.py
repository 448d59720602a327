"""Laplace noise drawn on the device that trains, for clients whose updates are large enough for that to matter."""

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class DeviceLaplace:
    """A `LaplaceSource` that draws in float64 on a torch device, seeded with the operating system's entropy.

    Take a fresh one for every release. Philox and the Mersenne twister are no cryptographic generators: they are
    hidden by a secret seed (124 bits on CUDA, 63 elsewhere) and by never being used twice.
    """

    def __init__(self, device: torch.device) -> None:
        """RuntimeError from torch where the device is not there."""
        self._device = device
        self._generator = torch.Generator(device)
        if device.type == "cuda":
            self._generator.set_state(_philox_state())
        else:
            self._generator.manual_seed(secrets.randbits(63))

    def laplace(self, loc: npt.NDArray[Any], scale: float) -> npt.NDArray[np.float64]:
        """`loc`, (n,), plus independent Laplace noise of this scale: the difference of two exponentials."""
        value = torch.from_numpy(loc).to(self._device, torch.float64)
        value.sub_(self._log_uniform(value), alpha=scale).add_(self._log_uniform(value), alpha=scale)
        noised: npt.NDArray[np.float64] = value.cpu().numpy()  # waits for the device
        return noised

    def _log_uniform(self, like: torch.Tensor) -> torch.Tensor:
        """log(u) with u uniform in (0, 1], whose negative is exponential.

        `Tensor.exponential_` will not do: on a processor it may draw from a generator of 31 bits.
        """
        uniform = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=self._generator)
        return uniform.neg_().add_(1).log_()


def _philox_state() -> torch.Tensor:
    """Philox takes a seed and a place in its sequence, a multiple of 4, as two little-endian 64-bit words.

    A seed alone, as `manual_seed` takes it, is short enough to be tried out.
    """
    seed, place = secrets.randbits(64), 4 * secrets.randbits(60)
    words = np.array([seed, place], "<u8")
    return torch.from_numpy(words.view(np.uint8))
