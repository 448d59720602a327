"""The interface of latency laws, and the points that represent a law whose expectations have no closed form."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from pausefl_process.plugins import name_of, with_place
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError

POINTS = 20_000
"""How many equally likely values represent a law."""


class Delay(Protocol):
    """The law of one client's delay per exchange, in seconds at the emulated scale (before `latency.time_scale`)."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws for n rounds from `first_round` on, (n,) float64. They are independent unless the law has a memory."""

    def points(self) -> FloatArray:
        """(POINTS,) equally likely values that represent the law. Raises ConfigError if it changes with the round."""

    @property
    def mean_s(self) -> float:
        """E[τ]. Raises ConfigError if the law changes with the round."""

    @property
    def mean_inverse(self) -> float:
        """E[1/τ], infinite if τ can be 0, for μ_k = τ_min · E[1/τ_k] (PAUSE v2, eq. (10)). Errors as for `mean_s`."""

    @property
    def minimum_s(self) -> float:
        """The lower bound of all draws. It is −inf for a law that can be arbitrarily negative."""


class SampledDelay(ABC):
    """Base class of a user's own law. It needs only `sample`: expectations are over its draws for rounds 1 to POINTS.

    Override `minimum_s` too if draws have another lower bound than 0.
    """

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws for n rounds from `first_round` on, (n,) float64 seconds."""

    def points(self) -> FloatArray:
        """(POINTS,) draws in ascending order, always the same."""
        return np.sort(sampled(self, np.random.default_rng(0), POINTS))

    @property
    def mean_s(self) -> float:
        """E[τ] over the points."""
        return float(self.points().mean())

    @property
    def mean_inverse(self) -> float:
        """E[1/τ] over the points."""
        return mean_of_inverse(self.points())

    @property
    def minimum_s(self) -> float:
        """0. A subclass whose draws have another lower bound overrides it."""
        return 0.0


def sampled(law: Delay, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
    """Call `law.sample`, which may be a user's own. Raises ConfigError that names it unless it returns (n,) numbers."""
    try:
        drawn = law.sample(rng, n, first_round)
    except OSError as error:  # a client would mistake an OSError for the end of its stream
        raise ConfigError(with_place(error)) from error
    try:
        if (draws := np.asarray(drawn)).dtype.kind == "m":
            raise ConfigError(f"{name_of(law)}.sample: must return numbers of seconds; returned some of {draws.dtype}")
        draws = draws.astype(np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name_of(law)}.sample: must return numbers; returned {type(drawn).__name__}") from None
    if draws.shape != (n,):
        due = f"an array of shape ({n},), a delay for each of n rounds; returned one of shape {draws.shape}"
        raise ConfigError(f"{name_of(law)}.sample: must return {due}")
    return draws


def sampled_delays(law: Delay, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
    """Call `sampled` for the whole law of a link. Raises ConfigError also for a draw that is negative or NaN."""
    draws = sampled(law, rng, n, first_round)
    if not (draws >= 0).all():
        raise ConfigError(f"{name_of(law)}.sample: must return delays of 0 or more; returned {draws[~(draws >= 0)][0]}")
    return draws


def known_means(laws: Mapping[str, Delay], tau_min_s: float | None) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """E[τ_k] and E[1/τ_k] by client id, for the policies that know the true means.

    With `tau_min_s`, the second is E[min(1/τ_k, 1/τ_min)], as no reward τ_min/τ counts above 1. Few policies use it, so
    each value is computed on first use.
    """
    return {c: law.mean_s for c, law in laws.items()}, _InverseMeans(laws, tau_min_s)


class _InverseMeans(Mapping[str, float]):
    def __init__(self, laws: Mapping[str, Delay], tau_min_s: float | None) -> None:
        self._laws = laws
        self._tau_min_s = tau_min_s
        self._known: dict[str, float] = {}

    def __getitem__(self, client_id: str) -> float:
        if client_id not in self._known:
            self._known[client_id] = _mean_inverse(self._laws[client_id], self._tau_min_s)
        return self._known[client_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._laws)

    def __len__(self) -> int:
        return len(self._laws)


def _mean_inverse(law: Delay, tau_min_s: float | None) -> float:
    if tau_min_s is None or law.minimum_s >= tau_min_s:
        return law.mean_inverse
    return float((1.0 / np.maximum(law.points(), tau_min_s)).mean())


@cache
def levels() -> FloatArray:
    """The middles of POINTS equal slices of (0, 1): a law's quantiles there are its `points`."""
    return (np.arange(POINTS) + 0.5) / POINTS


@cache
def standard_normal_quantiles() -> FloatArray:
    """The standard normal's quantiles at `levels`."""
    return np.array([*map(NormalDist().inv_cdf, levels())])


def logarithm_of(mean: float, sd: float) -> NormalDist:
    """The distribution of the logarithm of log-normal values with this mean and standard deviation."""
    variance = math.log1p((sd / mean) ** 2)
    return NormalDist(math.log(mean) - variance / 2, math.sqrt(variance))


def mean_of_inverse(points: FloatArray) -> float:
    """E[1/τ] over a law's points."""
    with np.errstate(divide="ignore"):
        return float((1.0 / points).mean())


def shuffled(points: FloatArray, seed: int) -> FloatArray:
    """A law's points in a fixed random order, so that those of several laws can be paired as independent draws."""
    return np.random.default_rng(seed).permutation(points)
