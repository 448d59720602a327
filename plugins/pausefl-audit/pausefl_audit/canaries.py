"""Canaries: updates at the mechanism's full sensitivity, and an attacker's scores for which of two was sent.

The mechanism's claims are computed here independently, by the audit's own formulas.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Manifest, Vector

Privatise = Callable[[Vector, float], Vector]
"""The mechanism under audit: (update, ε) -> upload."""
Scores = dict[str, tuple[FloatArray, FloatArray]]
"""By attack: scores of uploads with the canary and with its opposite, (n,) each. Greater: more likely the canary."""

# Far beyond any clip bound, so that a mechanism without clipping is detected.
CANARY = np.float32(1e3)
# At this ε there is almost no noise, so the upload shows the clipped update.
CLEAR_EPSILON = 1e6
# Noise is drawn in chunks of this many coordinates.
_CHUNK = 1 << 16
_RANDOM_PLACES = 32
# Replaces values that are not finite, as it can be subtracted.
_ENDLESS = 1e30


@dataclass(frozen=True)
class Claim:
    """The clipping and noise that a mechanism claims by `privacy.unit` and `privacy.clip` (PAUSE v2, eq. (5))."""

    unit: PrivacyUnit
    clip: float

    def clipped(self, update: Vector) -> FloatArray:
        """The correctly clipped `update`, (d,). Values that are not finite count as 0."""
        values = np.where(np.isfinite(update), update, 0.0).astype(np.float64)
        if self.unit == "coordinate":
            return np.clip(values, -self.clip / 2, self.clip / 2)
        norm = np.abs(values).sum()
        return values * (self.clip / norm) if norm > self.clip else values

    def scale(self, epsilon: float) -> float:
        """The scale of the Laplace noise on every coordinate."""
        return (2 * self.clip if self.unit == "vector" else self.clip) / epsilon

    def noise(self, update: Vector, upload: Vector, epsilon: float) -> FloatArray:
        """The noise on an upload, (d,), in units of its scale; infinite where the upload is not finite."""
        with np.errstate(invalid="ignore"):
            noise: FloatArray = (upload.astype(np.float64) - self.clipped(update)) / self.scale(epsilon)
        return np.where(np.isfinite(noise), noise, np.inf)


def canary(size: int, rng: np.random.Generator) -> Vector:
    """An update, (size,), with a canary of random sign in every coordinate."""
    return np.where(rng.random(size) < 0.5, -CANARY, CANARY).astype(np.float32)


def places(manifest: Manifest, rng: np.random.Generator) -> IntArray:
    """Coordinates where mistakes are likely: ends of the update, of tensors and of noise chunks; and random ones."""
    size = manifest.size
    starts = np.cumsum([0, *(tensor.size for tensor in manifest.tensors)])
    chunks = np.arange(0, size, _CHUNK)
    corners = np.concatenate([starts, starts - 1, chunks, chunks - 1, [size - 1]])
    drawn = rng.integers(size, size=_RANDOM_PLACES)
    found: IntArray = np.unique(np.concatenate([corners[(corners >= 0) & (corners < size)], drawn]))
    return found


def clip_patterns(manifest: Manifest, rng: np.random.Generator) -> Iterator[Vector]:
    """Yields updates to test a clip: large everywhere, small everywhere, partly not finite, large at one coordinate."""
    size, corners = manifest.size, places(manifest, rng)
    everywhere = canary(size, rng)
    yield everywhere
    yield everywhere * np.float32(1e-9)
    spoilt = everywhere.copy()
    spoilt[corners] = np.resize(np.array([np.nan, np.inf, -np.inf], np.float32), corners.size)
    yield spoilt
    for place in (*corners[:: max(1, corners.size // 8)], *rng.integers(size, size=2)):
        alone = np.zeros(size, np.float32)
        alone[place] = CANARY
        yield alone


def clear_noise(privatise: Privatise, claim: Claim, manifest: Manifest, rng: np.random.Generator) -> Iterator[float]:
    """Yields the greatest noise of each pattern, in scales, at an ε with almost no noise. More is a clipping error."""
    for update in clip_patterns(manifest, rng):
        yield float(np.abs(claim.noise(update, privatise(update, CLEAR_EPSILON), CLEAR_EPSILON)).max())


def attack(
    privatise: Privatise,
    claim: Claim,
    epsilon: float,
    manifest: Manifest,
    scores: int,
    rng: np.random.Generator,
    draws_max: int = 50_000_000,
) -> Scores:
    """The scores of about `scores` attempts at telling a canary from its opposite, if all else is known.

    There are fewer attempts if they would need more than `draws_max` draws of noise. With the unit "coordinate", every
    coordinate of an upload is an attempt; with "vector", an upload holds one canary.
    """
    found: dict[str, tuple[list[FloatArray], list[FloatArray]]] = {}
    before: FloatArray | None = None
    for update, at in _canaries(claim, manifest, scores, rng, draws_max):
        upload = np.nan_to_num(privatise(update, epsilon).astype(np.float64), nan=_ENDLESS, posinf=_ENDLESS)
        clipped = claim.clipped(update)
        noise = upload - clipped
        if before is not None:
            seen = {"canaries": upload[at], "two uploads compared": upload[at] - before[at]}
            if manifest.size > 1:
                seen["two coordinates compared"] = upload[at] - noise[at - 1]
            for name, value in seen.items():
                # The log-likelihood of +canary minus that of −canary, times the scale.
                likeness = np.abs(value + np.abs(clipped[at])) - np.abs(value - np.abs(clipped[at]))
                plus, minus = found.setdefault(name, ([], []))
                plus.append(likeness[update[at] > 0])
                minus.append(likeness[update[at] < 0])
        before = noise
    return {name: (np.concatenate(plus), np.concatenate(minus)) for name, (plus, minus) in found.items()}


def merged(parts: list[Scores]) -> Scores:
    """The scores of all clients joined, by attack."""
    plus, minus = ({name: np.concatenate([part[name][k] for part in parts]) for name in parts[0]} for k in (0, 1))
    return {name: (plus[name], minus[name]) for name in parts[0]}


def _canaries(
    claim: Claim, manifest: Manifest, scores: int, rng: np.random.Generator, draws_max: int
) -> Iterator[tuple[Vector, IntArray]]:
    """Yields updates and their canaries' coordinates: one more than is scored, as each is compared with the last."""
    size, corners = manifest.size, places(manifest, rng)
    if claim.unit == "coordinate":
        at = np.arange(size) if size <= scores else np.union1d(corners, rng.integers(size, size=scores))
        for _ in range(1 + max(2, -(-scores // at.size))):
            yield canary(size, rng), at
        return
    for _ in range(1 + min(scores, max(2, draws_max // size))):
        update, at = np.zeros(size, np.float32), rng.choice(corners, 1)
        update[at] = canary(1, rng)
        yield update, at
