"""What an audit finds: a lower bound on ε, and whether noise is Laplace, of the scale charged, and drawn anew.

Each test gives a probability that a right mechanism looks as bad or worse, or an upper bound on it.
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
"""How many secret bits must seed the noise: a GPU's generator has so many, numpy's has 128."""

# Noise that comes again at another place is looked for within so many coordinates, at the same place in all of them.
_WINDOW = 1 << 14
# Kolmogorov and Smirnov's test needs no more to tell any law that differs.
_SAMPLE = 200_000
# Thresholds that are tried as the event that tells two worlds apart.
_EVENTS = 64
# Where guessing every canary tells more of ε (Fisher's information) than guessing the clear ones.
_ALL_GUESSED = 2.2


@dataclass(frozen=True)
class Leak:
    """What one attack found out about the mechanism."""

    attack: str
    epsilon: float
    """What the mechanism claims against this attack."""
    lower_bound: float
    """At this confidence the mechanism is not ε-DP for any smaller ε."""
    scores: int
    """Attempts at telling the two worlds apart, both together."""

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.epsilon


def epsilon_lower_bound(plus: FloatArray, minus: FloatArray, alpha: float) -> float:
    """A lower bound on ε from scores seen in either world, (n,) each, that is too high with probability `alpha`.

    If an event has probability p in one world and q in the other, the mechanism is not ε-DP for any ε < ln(p/q).
    Bounding p from below and q from above (Clopper and Pearson, 1934) gives a bound that a right mechanism exceeds as
    rarely as is asked for, and that a broken one exceeds as soon as it leaks noticeably more than it claims.
    The event "score ≥ t" is chosen on the first half of the scores and tested on the second, so that choosing does not
    spoil the bound.
    """
    first, then = plus.size // 2, minus.size // 2
    events = np.quantile(np.concatenate([plus[:first], minus[:then]]), np.linspace(0.02, 0.9999, _EVENTS))
    t = events[np.argmax(_log_ratio(plus[:first], minus[:then], events, alpha))]
    return float(_log_ratio(plus[first:], minus[then:], np.array([t]), alpha)[0])


def _log_ratio(plus: FloatArray, minus: FloatArray, events: FloatArray, alpha: float) -> FloatArray:
    """ln(p/q) with p bounded from below and q from above, each wrong with probability alpha/2."""
    hits, false_hits = ((scores[:, None] >= events).sum(0) for scores in (plus, minus))
    p = np.nan_to_num(stats.beta.ppf(alpha / 2, hits, plus.size - hits + 1), nan=0.0)
    q = np.nan_to_num(stats.beta.isf(alpha / 2, false_hits + 1, minus.size - false_hits), nan=1.0)
    ratio: FloatArray = np.log(np.maximum(p, 1e-300) / q)
    return ratio


@dataclass(frozen=True)
class Check:
    """A question asked of the noise, and how often a right mechanism looks as bad as this one."""

    question: str
    p_value: float
    seen: str

    def holds(self, alpha: float) -> bool:
        """Whether a right mechanism looks like this more often than with probability `alpha`."""
        return self.p_value > alpha


def check_clip(reach: float, draws: int) -> Check:
    """Whether uploads with next to no noise lie where the clip has to put them; `reach` is the greatest, in scales."""
    return Check("clipping of every coordinate", _reach_p(reach, draws), _scales(reach))


def check_noise(releases: Sequence[NoiseSample]) -> Iterator[Check]:
    """Whether the noise is Laplace of the charged scale in every coordinate."""
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
    # Turned towards the update, so that what the clip lets through shows as a shift.
    turned = (noise * np.where(np.stack([r.toward for r in releases]) < 0, -1.0, 1.0)).ravel()
    step = -(-turned.size // _SAMPLE)
    distance, p = stats.kstest(turned[::step], stats.laplace.cdf)
    yield Check("noise of Laplace's law", float(p), f"{float(distance):.4f} from it")


def check_freshness(releases: Sequence[NoiseSample]) -> Iterator[Check]:
    """Whether two releases, or two places in one, share noise.

    Signs of independent noise are fair coins, also multiplied with one another. By Hoeffding's inequality (1963) the
    sum of n such products passes t with probability 2 exp(−t²/2n) at most, for each of the lags that are tried.
    """
    windows = [np.sign(release.noise[:_WINDOW]) for release in releases]
    length = fft.next_fast_len(2 * windows[0].size, real=True)
    spectra = [fft.rfft(window, length) for window in windows]

    def worst(one: int, other: int) -> float:
        """ln of the bound for the worst lag, and for the whole of both releases at none."""
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
    """Whether the seed of a release is too wide to be tried out."""
    return Check("seed of a release", float(bits >= SEED_BITS_MIN), f"{bits} bits of the system's entropy")


def check_sources(draws: FloatArray) -> Check:
    """Whether any two of many fresh sources begin alike; (n,) first draws. A birthday attack: with 2^b seeds, about
    n²/2^(b+1) pairs do."""
    twins = draws.size - np.unique(draws).size
    # Two honest draws coincide with a probability of some 2^-50.
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
    """Probability that the greatest of so many |Laplace(1)| passes `reach`, at most."""
    return min(1.0, draws * math.exp(-reach))


def _scales(reach: float) -> str:
    return f"at most {reach:.3g} scales"


@dataclass(frozen=True)
class Guesses:
    """What was guessed of canaries in the releases of a run that claim the same ε."""

    epsilon: float
    releases: int = 0
    canaries: int = 0
    made: int = 0
    """For how many of the canaries a sign was guessed."""
    right: int = 0

    def plus(self, other: "Guesses") -> "Guesses":
        """Both together, at the ε of this one."""
        counts = (getattr(self, name) + getattr(other, name) for name in ("releases", "canaries", "made", "right"))
        return Guesses(self.epsilon, *counts)


def multiple_of_claims(guesses: Sequence[Guesses], alpha: float) -> float:
    """A number x such that releases leak at least x times the ε they claim, too high with probability `alpha`.

    If each leaked less, the right guesses would be at most a sum of binomials (`chance_right`): x is the greatest
    number at which so many of them are as rare as `alpha`.
    """

    def is_rejected(multiple: float) -> bool:
        law = np.ones(1)
        for of in guesses:
            right = stats.binom.pmf(np.arange(of.made + 1), of.made, chance_right(of.epsilon, multiple))
            law = signal.fftconvolve(law, right)
        return float(law[sum(of.right for of in guesses) :].sum()) <= alpha

    return greatest_rejected(is_rejected)


def guesses_all(claimed: float) -> bool:
    """Whether every sign is guessed, also where noise makes both about as likely: this shows more from ε = 2.2 on."""
    return claimed > _ALL_GUESSED


def chance_right(claimed: float, multiple: float = 1.0) -> float:
    """The greatest probability of a right guess about releases that claim this ε and leak `multiple` times as much.

    A guess about a fair coin from an ε-LDP release is right with a probability of at most e^ε/(1 + e^ε), whatever came
    before (Steinke and others). Where every sign is guessed, Laplace noise allows less: 1 − min (a + f(a))/2 with its
    trade-off curve f (`trade_off`), at a = e^(−ε/2)/2. All canaries have noise of their own, so chances multiply.
    """
    epsilon = multiple * claimed
    return 1 - math.exp(-epsilon / 2) / 2 if guesses_all(claimed) else float(expit(epsilon))


def greatest_rejected(is_rejected: Callable[[float], bool]) -> float:
    """The greatest number that is rejected, as all below it are; 0 where none is."""
    low, high = 0.0, 1.0
    if not is_rejected(low):
        return 0.0
    while is_rejected(high):
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low
