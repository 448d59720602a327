"""Laws that change with the round, or that have a memory. Time is the round number: delays are a function of (seed,
client, round), so that they repeat exactly. The seconds that a machine took would not."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, NoReturn

import numpy as np
from annotated_types import Ge, Lt

from pausefl.experiment.delay_laws.base import Delay, sampled, shuffled
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, Finite, NonNegative, PositiveShare


class _Changing(Bounded):
    """Base class of laws that differ from round to round, and so have no expectation over rounds."""

    kind: ClassVar[str]
    """The law's name in a TOML table."""

    def points(self) -> NoReturn:
        """Raise ConfigError: no points hold for every round."""
        raise ConfigError(
            f'latency: a law of kind = "{self.kind}" changes with the round, so it has no mean to tell genie,'
            " fastest or oort, to measure a simulation's regret by, or for netem to keep"
        )

    @property
    def mean_s(self) -> float:
        self.points()

    @property
    def mean_inverse(self) -> float:
        self.points()


@dataclass(frozen=True)
class Schedule(_Changing):
    """A sequence of laws: law i of `of` holds from rounds[i] until the next law begins."""

    kind: ClassVar[str] = "schedule"

    rounds: tuple[int, ...]
    """The first round of each law, ascending from 1."""
    of: tuple[Delay, ...]
    """The laws, in order."""

    def __post_init__(self) -> None:
        _require_order(self.rounds, len(self.of), "laws in of")

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws every law for each round, and takes the draw of the law that holds."""
        rounds = np.arange(first_round, first_round + n)
        holds = np.searchsorted(self.rounds, rounds, side="right") - 1
        return np.array([sampled(law, rng, n, first_round) for law in self.of])[holds, np.arange(n)]

    @property
    def minimum_s(self) -> float:
        return min(law.minimum_s for law in self.of)


@dataclass(frozen=True)
class DelayDrift(_Changing):
    """A law times a factor, which is interpolated linearly between the points (rounds[i], factors[i]). After the last
    point, the factor stays constant."""

    kind: ClassVar[str] = "drift"

    of: Delay
    """The law to change."""
    rounds: tuple[int, ...]
    """The round of each point, ascending from 1."""
    factors: tuple[NonNegative, ...]
    """The factor at each point."""

    def __post_init__(self) -> None:
        _require_order(self.rounds, len(self.factors), "factors")
        super().__post_init__()

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        factors = np.interp(np.arange(first_round, first_round + n), self.rounds, self.factors)
        return sampled(self.of, rng, n, first_round) * factors

    @property
    def minimum_s(self) -> float:
        """The law's minimum times the factor that gives the smallest product."""
        return min(0.0 if factor == 0 else factor * self.of.minimum_s for factor in self.factors)


@dataclass(frozen=True)
class DayCycle(_Changing):
    """A law with calm nights and busy days: its delays times 1 + amplitude · sin(2π (round − 1 + phase) / period)."""

    kind: ClassVar[str] = "day"

    of: Delay
    """The law to change."""
    period_rounds: Annotated[int, Ge(2)]
    """The length of a day, in rounds."""
    amplitude: Annotated[float, Ge(0), Lt(1)]
    """How much the factor swings, at least 0 and below 1."""
    phase_rounds: Finite = 0.0
    """How many rounds after the start of a day round 1 lies."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        turns = (np.arange(first_round, first_round + n) - 1 + self.phase_rounds) / self.period_rounds
        return sampled(self.of, rng, n, first_round) * (1 + self.amplitude * np.sin(2 * math.pi * turns))

    @property
    def minimum_s(self) -> float:
        """The law's minimum at the calmest time, or at the busiest time if that minimum is negative."""
        least_s = self.of.minimum_s
        return least_s * (1 - self.amplitude if least_s > 0 else 1 + self.amplitude)


@dataclass(frozen=True)
class Outage(_Changing):
    """A law whose delays are `extra_s` longer in every round of the given windows."""

    kind: ClassVar[str] = "outage"

    of: Delay
    """The law to change."""
    windows: tuple[tuple[int, int], ...]
    """Pairs [first, last] of rounds, both included. The windows ascend and do not overlap."""
    extra_s: NonNegative
    """The delay that an outage adds, until the link is back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = [bound for window in self.windows for bound in window]
        in_order = all(first <= last for first, last in self.windows) and all(
            before[1] < after[0] for before, after in pairwise(self.windows)
        )
        if not ends or ends[0] < 1 or not in_order:
            windows = [list(window) for window in self.windows]
            raise ValueError(f"windows = {windows}: must be [first, last] rounds from 1 on, ascending, apart")

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        rounds = np.arange(first_round, first_round + n)
        out = np.any([(first <= rounds) & (rounds <= last) for first, last in self.windows], axis=0)
        draws: FloatArray = sampled(self.of, rng, n, first_round) + self.extra_s * out
        return draws

    @property
    def minimum_s(self) -> float:
        return self.of.minimum_s


@dataclass(frozen=True)
class MarkovDelay(Bounded):
    """The two states of Gilbert and Elliott: each round, the link turns bad, or good again, with these probabilities.

    The state of round t is a function of (path, t). One uniform number a round moves the chain. A number outside the
    middle range sets the state whatever it was before. Round 1 is drawn from the chain's equilibrium.
    """

    good: Delay
    """The law while the link is good."""
    bad: Delay
    """The law while the link is bad."""
    to_bad: PositiveShare
    """The probability that a good link is bad in the next round."""
    to_good: PositiveShare
    """The probability that a bad link is good in the next round."""
    path: int = 0
    """The seed of the states. The emulator gives every client its own path."""

    def is_bad(self, last_round: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The states of rounds 1 to `last_round`, (last_round,) bool, True where the link is bad."""
        u = np.random.Generator(np.random.PCG64(self.path)).random(last_round)
        low, high = sorted((self.to_bad, 1 - self.to_good))
        # Below `low` both states move to bad, from `high` on both to good; between them both stay, or both swap.
        becomes_bad, keeps = u < low, (low <= u) & (u < high)
        becomes_bad[0], keeps[0] = u[0] < self._bad_share, False
        set_at = np.maximum.accumulate(np.where(keeps, 0, np.arange(last_round)))
        swaps = np.cumsum(keeps) if self.to_bad > 1 - self.to_good else np.zeros(last_round, np.int64)
        bad: np.ndarray[tuple[int], np.dtype[np.bool_]] = becomes_bad[set_at] ^ ((swaps - swaps[set_at]) % 2 == 1)
        return bad

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> FloatArray:
        """Draws both laws for each round, and takes the draw of the law for the link's state."""
        good, bad = sampled(self.good, rng, n, first_round), sampled(self.bad, rng, n, first_round)
        return np.where(self.is_bad(first_round + n - 1)[first_round - 1 :], bad, good)

    def points(self) -> FloatArray:
        bad = np.random.default_rng(0).random(len(points := self.good.points())) < self._bad_share
        return np.where(bad, shuffled(self.bad.points(), 1), shuffled(points, 2))

    @property
    def mean_s(self) -> float:
        return (1 - self._bad_share) * self.good.mean_s + self._bad_share * self.bad.mean_s

    @property
    def mean_inverse(self) -> float:
        return (1 - self._bad_share) * self.good.mean_inverse + self._bad_share * self.bad.mean_inverse

    @property
    def minimum_s(self) -> float:
        return min(self.good.minimum_s, self.bad.minimum_s)

    @property
    def _bad_share(self) -> float:
        """The share of rounds in which the link is bad."""
        return self.to_bad / (self.to_bad + self.to_good)


def _require_order(rounds: tuple[int, ...], n: int, what: str) -> None:
    if len(rounds) != n or not rounds:
        raise ValueError(f"rounds = {list(rounds)}: must be as many as there are {what} ({n})")
    if rounds[0] != 1 or any(later <= earlier for earlier, later in pairwise(rounds)):
        raise ValueError(f"rounds = {list(rounds)}: must begin with 1 and ascend")
