"""The Laplace mechanism that a client applies to its update before anything leaves (PAUSE v2, Theorem 1, eq. (5)).

There are two units, which are never mixed. The paper proves the first, and its published runs use the second:

- "vector": the whole update is one value. Its L1 norm is clipped to C = `clip`; two clipped updates differ by at most
  Δf = 2C in L1 norm, so Laplace(2C/ε) on every coordinate makes the upload ε-LDP.
- "coordinate": every coordinate is a value of its own, clamped to ±Δ/2 with Δ = `clip`; Laplace(Δ/ε) makes each
  coordinate ε-LDP and, by composition over the d coordinates, the upload d·ε-LDP.

The noise is drawn and added in float64; the sum is rounded to float32 last. Rounding is post-processing, so it costs no
privacy. ε holds only up to floating-point error (docs/privacy.md, "Floating point"). `ExactLaplace` is exact.
"""

import math
import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from pausefl_proto.errors import BudgetError, ConfigError
from pausefl_proto.number_types import Bounded
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Vector

Sampler = Literal["laplace", "opendp"]

# Noise is drawn in chunks. Two float64 chunks of 512 KiB fit in the cache, and bound the memory for large updates.
_CHUNK = 1 << 16
_SEED_BYTES = 16
# A Laplace draw in float64 never exceeds 45 scales: below this the noised update fits float32.
_MAX_SCALE = 1e36
# Far above float32's subnormal numbers: no factor reliably makes those smaller, so their sum could not be clipped.
Clip = Annotated[float, Ge(1e-20), Le(1e20)]


class LaplaceSource(Protocol):
    """A source of Laplace noise."""

    def laplace(self, loc: Any, scale: float) -> npt.NDArray[np.float64]:
        """`loc`, (n,), plus independent Laplace noise of this scale."""


@dataclass(frozen=True)
class Mechanism(Bounded):
    """Clipping and Laplace noise for one update. `unit` and `clip` are `privacy.unit` and `privacy.clip`."""

    unit: PrivacyUnit
    clip: Clip
    """Vector: C, the greatest L1 norm. Coordinate: Δ, the width of the interval to which a coordinate is clamped."""

    @property
    def sensitivity(self) -> float:
        """The greatest L1 distance between two clipped values of the unit: 2C or Δ (Δf in eq. (5))."""
        return 2 * self.clip if self.unit == "vector" else self.clip

    def scale(self, epsilon: float) -> float:
        """The scale of the noise on every coordinate, sensitivity/ε (eq. (5)).

        ValueError unless ε is a finite number above 0. BudgetError if ε is so small that float32 cannot hold the noise.
        """
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon = {epsilon}: must be a finite number above 0")
        # Compared as a product, so that a tiny ε cannot overflow the quotient.
        if self.sensitivity > _MAX_SCALE * epsilon:
            raise BudgetError(f"epsilon = {epsilon:g} asks for more noise than float32 holds: the budget is used up")
        return self.sensitivity / epsilon

    def clip_update(self, update: Vector) -> Vector:
        """A copy of `update`, (d,) float32, clipped to the unit's bound. Rounding never takes it outside the bound.

        Values that are not finite become 0, so that a diverged training stays inside the bound too.
        """
        finite = np.where(np.isfinite(update), update, np.float32(0))
        if self.unit == "coordinate":
            bound = np.float32(self.clip / 2)
            if float(bound) > self.clip / 2:
                bound = np.nextafter(bound, np.float32(0))
            return np.clip(finite, -bound, bound, out=finite)
        # Factor and products round by 2^-24 each. With this margin one pass is enough, unless the factor is subnormal.
        while (norm := float(np.abs(finite).sum(dtype=np.float64))) > self.clip:
            finite *= np.float32(self.clip / norm * (1 - 2**-22))
        return finite

    def privatise(self, update: Vector, epsilon: float, noise: LaplaceSource) -> Vector:
        """A new array: `update`, (d,) float32, clipped and noised at `epsilon`."""
        scale = self.scale(epsilon)
        released = self.clip_update(update)
        for start in range(0, released.size, _CHUNK):
            chunk = released[start : start + _CHUNK]
            chunk[...] = noise.laplace(chunk, scale)
        return released


def entropy_rng() -> np.random.Generator:
    """A generator seeded with 128 bits of the operating system's entropy. Make a new one for every release.

    Never make one when a module is imported: clients are forked after that, and all of them would draw the same noise.
    PCG64DXSM is not a cryptographic generator. Its protection is its secret seed, and that none is used twice.
    """
    return np.random.Generator(np.random.PCG64DXSM(int.from_bytes(os.urandom(_SEED_BYTES))))


@dataclass(frozen=True)
class NumpyLaplace:
    """A `LaplaceSource` on a CPU: the difference of two exponentials, in float64.

    It takes less than half the time of `Generator.laplace`, which makes each value from one uniform draw. Such a value
    can reveal its draw; a difference of two does not (compare Holohan and Braghin, "Secure random sampling in
    differential privacy", ESORICS 2021). Which values are possible still depends a little on `loc`.
    """

    rng: np.random.Generator
    """A secret generator, new for every release: `entropy_rng` makes one."""

    def laplace(self, loc: npt.NDArray[Any], scale: float) -> npt.NDArray[np.float64]:
        noised = self.rng.standard_exponential(len(loc))
        noised -= self.rng.standard_exponential(len(loc))
        noised *= scale
        noised += loc
        return noised


class ExactLaplace:
    """OpenDP's exact sampler: loc + noise in rational arithmetic, rounded once, so no low-order bit reveals `loc`.

    It draws from the operating system's entropy. It takes about 20 µs a coordinate, some thousand times numpy's time.
    """

    def __init__(self) -> None:
        """ConfigError if OpenDP is not installed."""
        try:
            import opendp.prelude as dp
        except ImportError:
            raise ConfigError('privacy.sampler = "opendp": needs the extra, pip install "pausefl[opendp]"') from None
        dp.enable_features("contrib")
        self._opendp: Any = dp

    def laplace(self, loc: npt.NDArray[Any], scale: float) -> npt.NDArray[np.float64]:
        dp = self._opendp
        space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
        return np.array(dp.m.make_laplace(*space, scale=scale)(loc.tolist()), np.float64)
