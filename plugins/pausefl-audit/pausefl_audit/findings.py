"""The statistics of an audit: lower bounds on ε, and tests that noise is Laplace, of the charged scale and fresh.

Each test gives the probability, or an upper bound on it, that a correct mechanism looks as bad or worse.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import fft, signal, stats
from scipy.special import expit

from pausefl_audit.runs import NoiseSample
from pausefl_proto.arrays import FloatArray

SEED_BITS_MIN = 124
"""The fewest secret bits that may seed the noise: a GPU's generator has this many, numpy's has 128."""

# Noise repeated at another coordinate is searched for in this many first coordinates; at the same one, in all.
_WINDOW = 1 << 14
# The most values of the Kolmogorov–Smirnov test: enough to detect any other law.
_SAMPLE = 200_000
# How many thresholds are tried for the event that distinguishes the two worlds.
_EVENTS = 64
# Above this ε, guessing every canary gives more (Fisher) information on ε than guessing only the clear ones.
_ALL_GUESSED = 2.2


@dataclass(frozen=True)
class Leak:
    """The result of one attack on the mechanism."""

    attack: str
    epsilon: float
    """The ε that the mechanism claims."""
    lower_bound: float
    """A lower bound on the true ε: at the audit's confidence, the mechanism is not ε-DP for any smaller ε."""
    scores: int
    """The number of attempts at distinguishing the two worlds, over both worlds."""

    @property
    def holds(self) -> bool:
        """Whether the attack does not refute the claim."""
        return self.lower_bound <= self.epsilon


def epsilon_lower_bound(plus: FloatArray, minus: FloatArray, alpha: float) -> float:
    """A lower bound on ε from scores, (n,) each, in two worlds: either the canary was sent, or its opposite.

    If an event has probability p in one world and q in the other, the mechanism is not ε-DP for any ε < ln(p/q). The
    bound is ln(p/q) with p bounded from below and q from above (Clopper and Pearson, 1934). For a correct mechanism it
    exceeds the claim with probability at most `alpha`; for a broken one, once that leaks noticeably more than claimed.
    The event "score ≥ t" is chosen on the first half of the scores and tested on the second half, so that the choice
    does not bias the bound.
    """
    first, then = plus.size // 2, minus.size // 2
    events = np.quantile(np.concatenate([plus[:first], minus[:then]]), np.linspace(0.02, 0.9999, _EVENTS))
    t = events[np.argmax(_log_ratio(plus[:first], minus[:then], events, alpha))]
    return float(_log_ratio(plus[first:], minus[then:], np.array([t]), alpha)[0])


def _log_ratio(plus: FloatArray, minus: FloatArray, events: FloatArray, alpha: float) -> FloatArray:
    """ln(p/q) for each event, with p bounded from below and q from above, each wrong with probability alpha/2."""
    hits, false_hits = ((scores[:, None] >= events).sum(0) for scores in (plus, minus))
    p = np.nan_to_num(stats.beta.ppf(alpha / 2, hits, plus.size - hits + 1), nan=0.0)
    q = np.nan_to_num(stats.beta.isf(alpha / 2, false_hits + 1, minus.size - false_hits), nan=1.0)
    ratio: FloatArray = np.log(np.maximum(p, 1e-300) / q)
    return ratio


@dataclass(frozen=True)
class Check:
    """One check of the mechanism, with the probability that a correct mechanism looks as bad or worse."""

    question: str
    p_value: float
    seen: str

    def holds(self, alpha: float) -> bool:
        """Whether the check passes: its p-value is above `alpha`."""
        return self.p_value > alpha


def check_clip(reach: float, draws: int) -> Check:
    """Check that uploads with almost no noise equal the clipped updates; `reach` is the greatest error, in scales."""
    return Check("clipping of every coordinate", _reach_p(reach, draws), _scales(reach))


def check_noise(releases: Sequence[NoiseSample]) -> Iterator[Check]:
    """Check that the noise is Laplace noise of the charged scale in every coordinate."""
    noise = np.stack([release.noise for release in releases])
    size, count = np.abs(noise), len(releases)
    reach = float(size.max())
    yield Check("noise within reach of its scale", _reach_p(reach, noise.size), _scales(reach))
    # Sums of n absolute values of Laplace(1) follow Gamma(n).
    mean = float(size.mean())
    p = 2 * min(stats.gamma.cdf(mean * noise.size, noise.size), stats.gamma.sf(mean * noise.size, noise.size))
    yield Check("noise of the scale that is charged", float(p), f"{mean:.4f} of it")
    least = float(size.sum(0).min())
    p = min(1.0, noise.shape[1] * float(stats.gamma.cdf(least, count)))
    yield Check("noise on every coordinate", p, f"least {least / count:.3f} of its scale")
    # Signs are turned towards the update, so that a part of the update that the clip left in shows as a shift.
    turned = (noise * np.where(np.stack([r.toward for r in releases]) < 0, -1.0, 1.0)).ravel()
    step = -(-turned.size // _SAMPLE)
    distance, p = stats.kstest(turned[::step], stats.laplace.cdf)
    yield Check("noise of Laplace's law", float(p), f"{float(distance):.4f} from it")


def check_freshness(releases: Sequence[NoiseSample]) -> Iterator[Check]:
    """Check that no two releases, and no two coordinates of one release, share noise.

    Signs of independent noise are fair coins, and so are their products. By Hoeffding's inequality (1963), the sum of n
    such products exceeds t with probability at most 2 exp(−t²/2n), for each of the lags that are tried.
    """
    windows = [np.sign(release.noise[:_WINDOW]) for release in releases]
    length = fft.next_fast_len(2 * windows[0].size, real=True)
    spectra = [fft.rfft(window, length) for window in windows]

    def worst(one: int, other: int) -> float:
        """ln of the bound on p: for the worst lag within the windows, or for both whole releases without a lag."""
        products = np.abs(fft.irfft(spectra[one] * spectra[other].conj(), length))
        if one == other:
            products = products[1 : windows[one].size]
        aligned = 0.0
        if one != other:
            aligned = abs(float(np.sign(releases[one].noise) @ np.sign(releases[other].noise)))
        whole = -(aligned**2) / (2 * releases[one].noise.size)
        at_any_lag = -(float(products.max(initial=0.0)) ** 2) / (2 * windows[one].size) + math.log(products.size or 1)
        return math.log(4) + min(whole, at_any_lag)

    found: dict[str, list[float]] = {}
    for one, other in [*combinations(range(len(releases)), 2), *((k, k) for k in range(len(releases)))]:
        found.setdefault(_relation(releases[one], releases[other]), []).append(worst(one, other))
    for relation, bounds in found.items():
        p = math.exp(min(0.0, min(bounds) + math.log(len(bounds))))
        yield Check(f"noise shared {relation}", p, f"{len(bounds)} pairs")


def check_seed(bits: int) -> Check:
    """Check that the seed of a release has too many bits to try all its values."""
    return Check("seed of a release", float(bits >= SEED_BITS_MIN), f"{bits} bits of the system's entropy")


def check_sources(draws: FloatArray) -> Check:
    """Check that no two of n fresh noise sources have the same first draw, (n,). This is a birthday attack: with 2^b
    seeds, about n²/2^(b+1) pairs are equal."""
    twins = draws.size - np.unique(draws).size
    # Two independent draws are equal with a probability of about 2^-50.
    return Check("sources alike, of all processes", 0.0 if twins else 1.0, f"{twins} of {draws.size:,} came again")


def _relation(one: NoiseSample, other: NoiseSample) -> str:
    if one is other:
        return "within a release"
    if one.run != other.run:
        return "between two runs"
    if one.client_id != other.client_id:
        return "between two clients"
    if one.life != other.life:
        return "with a restarted client"
    return "between two attempts" if one.round == other.round else "between two rounds"


def _reach_p(reach: float, draws: int) -> float:
    """An upper bound on the probability that the greatest of `draws` values |Laplace(1)| exceeds `reach`."""
    return min(1.0, draws * math.exp(-reach))


def _scales(reach: float) -> str:
    return f"at most {reach:.3g} scales"


@dataclass(frozen=True)
class Guesses:
    """The guesses of canaries' signs in those releases of a run that claim the same ε."""

    epsilon: float
    releases: int = 0
    canaries: int = 0
    made: int = 0
    """The number of canaries whose sign was guessed."""
    right: int = 0

    def plus(self, other: "Guesses") -> "Guesses":
        """The sum of both, with the ε of this one."""
        counts = (getattr(self, name) + getattr(other, name) for name in ("releases", "canaries", "made", "right"))
        return Guesses(self.epsilon, *counts)


def multiple_of_claims(guesses: Sequence[Guesses], alpha: float) -> float:
    """A lower bound x: releases leak at least x times the ε they claim. It is too high with probability `alpha`.

    If each release leaked less, the number of right guesses would be at most a sum of binomials (`chance_right`). x is
    the greatest number at which that many right guesses have a probability of at most `alpha`.
    """

    def is_rejected(multiple: float) -> bool:
        law = np.ones(1)
        for of in guesses:
            right = stats.binom.pmf(np.arange(of.made + 1), of.made, chance_right(of.epsilon, multiple))
            law = signal.fftconvolve(law, right)
        return float(law[sum(of.right for of in guesses) :].sum()) <= alpha

    return greatest_rejected(is_rejected)


def guesses_all(claimed: float) -> bool:
    """Whether every sign is guessed, even those that noise makes uncertain. Above ε = 2.2 this tells more about ε."""
    return claimed > _ALL_GUESSED


def chance_right(claimed: float, multiple: float = 1.0) -> float:
    """The greatest probability of a right guess about releases that claim this ε and leak `multiple` times as much.

    A guess of a fair coin from an ε-LDP release is right with probability at most e^ε/(1 + e^ε), whatever happened
    before (Steinke and others). If every sign is guessed, Laplace noise allows less: 1 − min (a + f(a))/2 with its
    trade-off curve f (Dong, Roth and Su, 2022), at a = e^(−ε/2)/2. Noise is independent between canaries, so chances
    multiply.
    """
    epsilon = multiple * claimed
    return 1 - math.exp(-epsilon / 2) / 2 if guesses_all(claimed) else float(expit(epsilon))


def greatest_rejected(is_rejected: Callable[[float], bool]) -> float:
    """The greatest number that `is_rejected`, by bisection: all smaller ones must be rejected too. 0 if none is."""
    low, high = 0.0, 1.0
    if not is_rejected(low):
        return 0.0
    while is_rejected(high):
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low
