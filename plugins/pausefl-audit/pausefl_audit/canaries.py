"""Canaries: updates at the mechanism's full sensitivity, and how an attacker tells which of two was sent.

What the mechanism claims is computed here once more, by formulas of the audit's own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Manifest, Vector

Privatise = Callable[[Vector, float], Vector]
"""(update, ε) -> what leaves."""
Scores = dict[str, tuple[FloatArray, FloatArray]]
"""By attack: scores of uploads with the canary and with its opposite, (n,) each; the greater, the more like it."""

# Far beyond any clip bound: a mechanism that forgets to clip gives itself away.
CANARY = np.float32(1e3)
# With next to no noise, a clipped update can be read off the upload.
CLEAR_EPSILON = 1e6
# Noise is drawn by chunks of so many coordinates.
_CHUNK = 1 << 16
_RANDOM_PLACES = 32
# Stands for what is not finite, and can still be subtracted.
_ENDLESS = 1e30


@dataclass(frozen=True)
class Claim:
    """What a mechanism with this `privacy.unit` and `privacy.clip` says of itself (PAUSE v2, eq. (5))."""

    unit: PrivacyUnit
    clip: float

    def clipped(self, update: Vector) -> FloatArray:
        """Where the clip has to put `update`, (d,)."""
        values = np.where(np.isfinite(update), update, 0.0).astype(np.float64)
        if self.unit == "coordinate":
            return np.clip(values, -self.clip / 2, self.clip / 2)
        norm = np.abs(values).sum()
        return values * (self.clip / norm) if norm > self.clip else values

    def scale(self, epsilon: float) -> float:
        """Scale of the Laplace noise on every coordinate."""
        return (2 * self.clip if self.unit == "vector" else self.clip) / epsilon

    def noise(self, update: Vector, upload: Vector, epsilon: float) -> FloatArray:
        """The noise on an upload in units of its scale, (d,); infinite where the upload is not finite."""
        with np.errstate(invalid="ignore"):
            noise: FloatArray = (upload.astype(np.float64) - self.clipped(update)) / self.scale(epsilon)
        return np.where(np.isfinite(noise), noise, np.inf)


def canary(size: int, rng: np.random.Generator) -> Vector:
    """An update, (size,), with a canary of random sign in every coordinate."""
    return np.where(rng.random(size) < 0.5, -CANARY, CANARY).astype(np.float32)


def places(manifest: Manifest, rng: np.random.Generator) -> IntArray:
    """Coordinates where a mistake would hide: ends of the update, of tensors and of chunks of noise; random ones."""
    size = manifest.size
    starts = np.cumsum([0, *(tensor.size for tensor in manifest.tensors)])
    chunks = np.arange(0, size, _CHUNK)
    corners = np.concatenate([starts, starts - 1, chunks, chunks - 1, [size - 1]])
    drawn = rng.integers(size, size=_RANDOM_PLACES)
    found: IntArray = np.unique(np.concatenate([corners[(corners >= 0) & (corners < size)], drawn]))
    return found


def clip_patterns(manifest: Manifest, rng: np.random.Generator) -> Iterator[Vector]:
    """Updates that a clip must bring within its bound, or leave alone: everywhere, at places, small, and not finite."""
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
    """The greatest noise of each pattern, in scales, at an ε that leaves next to none: more of it is a wrong clip."""
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
    """About `scores` attempts at telling a canary from its opposite, for an attacker who knows everything else.

    Fewer where they would take more than `draws_max` draws of noise.

    Where a coordinate is the unit, every coordinate of an upload is an attempt; else an upload holds one canary.
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
                # How much more it looks like +canary than like −canary: log-likelihoods times the scale.
                likeness = np.abs(value + np.abs(clipped[at])) - np.abs(value - np.abs(clipped[at]))
                plus, minus = found.setdefault(name, ([], []))
                plus.append(likeness[update[at] > 0])
                minus.append(likeness[update[at] < 0])
        before = noise
    return {name: (np.concatenate(plus), np.concatenate(minus)) for name, (plus, minus) in found.items()}


def merged(parts: list[Scores]) -> Scores:
    """All clients' scores as one."""
    plus, minus = ({name: np.concatenate([part[name][k] for part in parts]) for name in parts[0]} for k in (0, 1))
    return {name: (plus[name], minus[name]) for name in parts[0]}


def _canaries(
    claim: Claim, manifest: Manifest, scores: int, rng: np.random.Generator, draws_max: int
) -> Iterator[tuple[Vector, IntArray]]:
    """Updates, and where each is looked at; one more than is scored, since each is compared with the one before it."""
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
