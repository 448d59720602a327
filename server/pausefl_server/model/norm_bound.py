"""Bounds on a private update: on its clipped part, plus on its noise with overwhelming probability.

An honest private update is x + n with x clipped and n_j ~ Laplace(b), b = sensitivity / ε (PAUSE v2, eq. (5)). With
probability at least 1 − p over its noise, both hold:

- max |n_j| <= b ln(2d/p), since P(|n_j| > t) = exp(−t/b), over d coordinates;
- Σ |n_j| <= b (d + sqrt(2ds) + s) with s = ln(2/p), since Σ |n_j| / b ~ Gamma(d, 1) is sub-gamma with variance factor
  d and scale 1 (Boucheron, Lugosi, Massart, "Concentration Inequalities", 2013, section 2.4).

An update beyond either bound was not made by the mechanism that server and client agreed on.
"""

import math
from dataclasses import dataclass

import numpy as np

from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.errors import WireError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Vector

TAIL_PROBABILITY = 1e-9
"""p, the greatest probability that an honest update is rejected."""

# The sum of update and noise is rounded to float32, whose relative precision is 6e-8.
_ROUNDING = 1 + 1e-5


@dataclass(frozen=True, slots=True)
class NormBound:
    """The bound of one experiment's mechanism; `unit` and `clip` are `privacy.unit` and `privacy.clip`."""

    unit: PrivacyUnit
    clip: float

    def check(self, vector: Vector, epsilon: float, encoding: Encoding = FLOAT32) -> None:
        """Raise WireError when `vector`, (d,) float32, cannot have been clipped and noised at `epsilon`, above 0.

        The limits leave room for `encoding`, whose rounding may have made values greater.
        """
        greatest, total = self.limits(vector.size, epsilon)
        added = max(encoding.step * greatest, encoding.least_step)
        greatest, total = greatest + added, total + vector.size * added
        sizes = np.abs(vector)
        if (found := float(sizes.max(initial=0.0))) > greatest:
            raise WireError(f"has a value of {found:.3g}, clipping and noise allow {greatest:.3g}")
        if (found := float(sizes.sum())) > total:
            raise WireError(f"has an L1 norm of {found:.3g}, clipping and noise allow {total:.3g}")

    def limits(self, d: int, epsilon: float) -> tuple[float, float]:
        """The greatest absolute value and the greatest L1 norm of an update of `d` coordinates."""
        is_vector = self.unit == "vector"
        # The same as in pausefl_client.privacy.mechanism.Mechanism: C and 2C, or Δ/2 and Δ.
        clipped, sensitivity = (self.clip, 2 * self.clip) if is_vector else (self.clip / 2, self.clip)
        scale, s = sensitivity / epsilon, math.log(2 / TAIL_PROBABILITY)
        greatest = clipped + scale * (math.log(max(d, 1)) + s)
        total = (clipped if is_vector else d * clipped) + scale * (d + math.sqrt(2 * d * s) + s)
        return greatest * _ROUNDING, total * _ROUNDING
