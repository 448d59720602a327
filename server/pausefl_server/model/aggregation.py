"""Combines a round's updates: pure functions of vectors in selection order, so bit-equal in any order of answers.

Updates are n ≥ 1 vectors, (d,) float32, and so is the result. `harmful` is f: this many of them may be arbitrary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt

from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray, form, read_only
from pausefl_proto.errors import PauseflError
from pausefl_proto.number_types import Positive, PositiveShare, Whole
from pausefl_proto.wire import Vector

# How many values of a vector are processed at once. The temporaries of a block fit a processor's cache. Above 10,000
# values, BLAS would share a dot product among threads, whose wake-up costs more than they save.
_BLOCK = 1 << 13
# The same for sums, which do not use BLAS.
_SUM_BLOCK = 1 << 15


class AggregationRule(ABC):
    """Base of a user's own rule, a pure function of a round's updates; its fields are the parameters of its table."""

    @abstractmethod
    def combine(self, updates: Sequence[Vector], weights: FloatArray) -> Vector:
        """The round's combined update, a new (d,) float32 vector, from n >= 1 updates in selection order.

        `weights` are (n,) and positive: by data size, or as the policy says.
        """


@dataclass(frozen=True)
class Aggregation:
    """How updates are combined.

    Only fedavg and norm-clip weigh updates, by data size or as the policy says. The other rules do not trust weights.
    """

    rule: str | Mapping[str, Any] | AggregationRule = "fedavg"
    """The aggregation rule: a name in `RULES`, or a user's own rule."""
    harmful: Whole = 1
    """How many harmful updates of a round trimmed-mean, krum and multi-krum must withstand."""
    clip_norm: Positive | None = None
    """Rule "norm-clip": the L2 norm to which greater updates are scaled down. Without it: the round's median norm."""
    weight_share_max: PositiveShare = 1.0
    """The greatest share that one client may have of a round's average, and of the data in PAUSE's g. 1: no limit."""
    norm_limit: Annotated[float, Gt(1)] | None = None
    """An update is rejected if its L2 norm exceeds this many times the round's median. Without it, none is rejected."""

    def combine(self, updates: Sequence[Vector], weights: FloatArray) -> Vector:
        """The round's combined update, a new vector; weights are (n,) and positive. PauseflError for a bad rule."""
        if isinstance(self.rule, AggregationRule):
            return checked_vector(self.rule.combine([*updates], weights), updates[0].size, "aggregation.rule")
        if self.rule in _AVERAGED:
            return weighted_mean(_AVERAGED[self.rule](self, updates), weights)
        return _UNWEIGHED[self.rule](self, updates)

    def discounted(self, updates: Sequence[Vector], weights: FloatArray, discounts: FloatArray | None) -> Vector:
        """`combine`, in which update i counts `discounts[i]` as much. The rule sees updates as they came.

        A discounted vector would look like one that agrees with other old ones: krum would choose it.
        """
        if discounts is None or discounts.min() == 1:
            return self.combine(updates, read_only(weights))
        is_weighed = isinstance(self.rule, AggregationRule) or self.rule in _AVERAGED  # a user's rule gets weights, too
        share = np.average(discounts, weights=weights if is_weighed else None)
        return np.float32(share) * self.combine(updates, read_only(weights * discounts))


def checked_vector(found: Vector, size: int, key: str) -> Vector:
    """`found`, which a user's own code returned, if it is (size,) float32 and finite; else PauseflError."""
    if not isinstance(found, np.ndarray) or found.shape != (size,) or found.dtype != np.float32:
        raise PauseflError(f"{key}: returned {form(found)}; must be a float32 array of shape ({size},)")
    if not np.isfinite(found).all():
        raise PauseflError(f"{key}: returned values that are not finite")
    return np.ascontiguousarray(found)


def capped_shares(weights: FloatArray, share_max: float) -> FloatArray:
    """(n,) weights/Σ weights, none above max(share_max, 1/n); the others get the excess, in proportion to their own."""
    shares: FloatArray = weights / weights.sum()
    if share_max * len(shares) <= 1:
        return np.full(len(shares), 1 / len(shares))
    while (over := shares > share_max * (1 + 1e-12)).any():
        full = over | (shares == share_max)
        shares = np.where(full, share_max, shares * (1 - share_max * full.sum()) / shares[~full].sum())
    return shares


def outliers(updates: Sequence[Vector], norm_limit: float) -> dict[int, str]:
    """The indices of updates whose L2 norm exceeds `norm_limit` > 1 times the median, never all; and why, in words."""
    norms = [_norm(update) for update in updates]
    bound = norm_limit * float(np.median(norms))
    return {
        i: f"has a norm of {norm:.3g}, the round's others allow {bound:.3g}"
        for i, norm in enumerate(norms)
        if norm > bound
    }


def weighted_mean(updates: Sequence[Vector], weights: FloatArray) -> Vector:
    """Σ α_k h_k with α_k = weights_k / Σ weights (PAUSE v2, eq. (2))."""
    alphas = (weights / weights.sum()).astype(np.float32)
    mean: Vector = np.empty_like(updates[0])
    term = np.empty(min(_SUM_BLOCK, mean.size), np.float32)
    for part in _blocks(mean.size, _SUM_BLOCK):
        block = np.multiply(updates[0][part], alphas[0], out=mean[part])
        for update, alpha in zip(updates[1:], alphas[1:], strict=True):
            block += np.multiply(update[part], alpha, out=term[: block.size])
    return mean


def trimmed_mean(updates: Sequence[Vector], harmful: int) -> Vector:
    """The mean of each coordinate without its f least and f greatest values (Yin et al., ICML 2018, Definition 2).

    At least one value remains, or two if n is even: the median, for f ≥ n/2.
    """
    n = len(updates)
    f = min(harmful, (n - 1) // 2)
    mean: Vector = np.empty_like(updates[0])
    for part in _blocks(mean.size):
        columns = np.sort(np.stack([update[part] for update in updates], axis=1), axis=1)
        mean[part] = columns[:, f : n - f].mean(axis=1, dtype=np.float64)
    return mean


def krum(updates: Sequence[Vector], harmful: int) -> Vector:
    """The update with the least score (Blanchard, El Mhamdi, Guerraoui and Stainer, NIPS 2017); the first of equals."""
    return updates[int(np.argmin(krum_scores(updates, harmful)))].copy()


def multi_krum(updates: Sequence[Vector], harmful: int) -> Vector:
    """The mean of the n − f updates with the least scores (Blanchard et al., 2017, Section 4)."""
    kept = max(1, len(updates) - harmful)
    closest = np.sort(np.argsort(krum_scores(updates, harmful), kind="stable")[:kept])
    return weighted_mean([updates[i] for i in closest], np.ones(kept))


def krum_scores(updates: Sequence[Vector], harmful: int) -> FloatArray:
    """(n,) the scores: Σ of squared distances to the n − f − 2 nearest others, or to the nearest if n − f − 2 < 1."""
    n = len(updates)
    squared = np.full((n, n), np.inf)
    for i in range(n):
        for j in range(i):
            squared[i, j] = squared[j, i] = squared_distance(updates[i], updates[j])
    nearest = min(max(1, n - harmful - 2), n - 1)
    scores: FloatArray = np.sort(squared, axis=1)[:, :nearest].sum(axis=1)
    return scores


def clipped(updates: Sequence[Vector], clip_norm: float | None) -> list[Vector]:
    """The updates clipped to `clip_norm` (Sun, Kairouz, Suresh and McMahan, 2019) or else the median L2 norm."""
    norms = [_norm(update) for update in updates]
    bound = float(np.median(norms)) if clip_norm is None else clip_norm
    pairs = zip(updates, norms, strict=True)
    return [update if norm <= bound else update * np.float32(bound / norm) for update, norm in pairs]


def _norm(update: Vector) -> float:
    return math.sqrt(inner_product(update, update))


def squared_distance(a: Vector, b: Vector) -> float:
    """‖a − b‖² in float64."""
    total = 0.0
    for part in _blocks(a.size):
        difference = np.subtract(a[part], b[part], dtype=np.float64)
        total += float(difference @ difference)
    return total


def inner_product(a: Vector, b: Vector) -> float:
    """⟨a, b⟩ in float64."""
    return sum(float(a[part].astype(np.float64) @ b[part].astype(np.float64)) for part in _blocks(a.size))


def _blocks(size: int, of: int = _BLOCK) -> Iterator[slice]:
    return (slice(start, start + of) for start in range(0, size, of))


_AVERAGED: Mapping[object, Callable[[Aggregation, Sequence[Vector]], Sequence[Vector]]] = {
    "fedavg": lambda _, updates: updates,
    "norm-clip": lambda of, updates: clipped(updates, of.clip_norm),
}
_UNWEIGHED: Mapping[object, Callable[[Aggregation, Sequence[Vector]], Vector]] = {
    "median": lambda _, updates: trimmed_mean(updates, len(updates)),
    "trimmed-mean": lambda of, updates: trimmed_mean(updates, of.harmful),
    "krum": lambda of, updates: krum(updates, of.harmful),
    "multi-krum": lambda of, updates: multi_krum(updates, of.harmful),
}
"""The built-in rules that ignore weights, after what the others average by weights. Parameters are `Aggregation`'s."""

RULES = Registry(
    "aggregation_rules",
    dict.fromkeys(map(str, (*_AVERAGED, *_UNWEIGHED)), Aggregation),
    base="pausefl_server.model.aggregation:AggregationRule",
)
"""The rules that `aggregation.rule` names: `Aggregation` for those whose parameters are its keys."""
