"""Latency laws fitted to measured latencies: the best family by AIC, a Markov law, or the values themselves.

Families are fitted by maximum likelihood (scipy.stats) and compared by Akaike's criterion (IEEE TAC, 1974),
AIC = 2k − 2 ln L. Where the best one is refuted by the Kolmogorov–Smirnov test, the values themselves are the law.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl.config.delays.files import ClientPlace
from pausefl.config.delays.laws import LawReader
from pausefl.delays import Delay
from pausefl.extras import require
from pausefl.offline.latencies import ClientLatencies
from pausefl.offline.markov import fit_markov
from pausefl_proto.arrays import FloatArray

LEAST_VALUES = 20
"""With fewer latencies, no family can be told from another: the values themselves are the law."""
LEAST_PAIRS = 50
"""With fewer pairs of latencies one round apart, nothing is said of their correlation."""
REFUTED_BELOW = 0.01
"""The p-value of the tests below which a family, or independence, is refuted."""
VALUES_MAX = 1000
"""Of more values than these, as many of their quantiles are the law."""

LawTable = Mapping[str, Any]
"""A law as a TOML table, with its kind."""


@dataclass(frozen=True)
class FittedLaw:
    """A law for one client, and how it was found."""

    table: LawTable
    why: str
    """The choice, in a few words."""

    @property
    def law(self) -> Delay:
        """The law that the table describes."""
        client = ClientPlace("client-000", 0, frozenset({"client-000"}))
        return LawReader(client, lambda _: np.random.default_rng(0)).read(self.table, "latency.delay")


@dataclass(frozen=True)
class Family:
    """A family of laws that was fitted: its table, its log-likelihood, and its distribution function."""

    table: LawTable
    parameters: int
    log_likelihood: float
    cdf: Callable[[FloatArray], FloatArray]

    @property
    def aic(self) -> float:
        """2k − 2 ln L."""
        return 2 * self.parameters - 2 * self.log_likelihood


def fit_law(latencies: ClientLatencies) -> FittedLaw:
    """The law of one client's latencies; ConfigError where scipy is not installed."""
    require("latency")
    from scipy import stats

    values = latencies.seconds
    if np.ptp(values) == 0:
        return FittedLaw({"kind": "constant", "value_s": float(values[0])}, "all values are the same")
    if len(values) < LEAST_VALUES:
        return FittedLaw(_values(values), f"the values: fewer than {LEAST_VALUES}")
    best = min(families(values), key=lambda family: family.aic)
    if is_correlated(latencies):
        markov = fit_markov(latencies.seconds, latencies.round)
        if markov is not None and markov.aic < best.aic:
            return FittedLaw(markov.table, f"correlated from round to round: AIC {markov.aic:.1f} < {best.aic:.1f}")
    if stats.kstest(values, best.cdf).pvalue < REFUTED_BELOW:
        return FittedLaw(_values(values), f"the values: {best.table['kind']}, the best family, is refuted")
    return FittedLaw(best.table, f"AIC {best.aic:.1f}")


def families(values: FloatArray) -> list[Family]:
    """Every family fitted to n > 1 different values above 0."""
    from scipy import stats

    log_mean, log_sd = float(np.log(values).mean()), float(np.log(values).std())
    gamma_shape, _, gamma_scale = stats.gamma.fit(values, floc=0)
    weibull_shape, _, weibull_scale = stats.weibull_min.fit(values, floc=0)
    least, mean, sd = float(values.min()), float(values.mean()), float(values.std())
    pareto_shape = 1 / float(np.log(values / least).mean())
    lognormal_mean = float(np.exp(log_mean + log_sd**2 / 2))
    lognormal = {"kind": "lognormal", "mean_s": lognormal_mean, "sd_s": lognormal_mean * np.sqrt(np.expm1(log_sd**2))}
    found: list[tuple[LawTable, int, Any]] = [
        ({"kind": "normal", "mean_s": mean, "sd_s": sd, "floor_s": least}, 2, stats.norm(mean, sd)),
        (lognormal, 2, stats.lognorm(log_sd, scale=np.exp(log_mean))),
        ({"kind": "exponential", "mean_s": mean}, 1, stats.expon(scale=mean)),
        (
            {"kind": "gamma", "mean_s": gamma_shape * gamma_scale, "shape": gamma_shape},
            2,
            stats.gamma(gamma_shape, scale=gamma_scale),
        ),
        (
            {"kind": "weibull", "scale_s": weibull_scale, "shape": weibull_shape},
            2,
            stats.weibull_min(weibull_shape, scale=weibull_scale),
        ),
        ({"kind": "pareto", "minimum_s": least, "shape": pareto_shape}, 2, stats.pareto(pareto_shape, scale=least)),
    ]
    return [
        Family(_plain(table), k, float(law.logpdf(values).sum()), law.cdf)
        for table, k, law in found
        if np.isfinite(law.logpdf(values)).all()
    ]


def is_correlated(latencies: ClientLatencies) -> bool:
    """Whether latencies one round apart go together: Spearman's rank correlation, one-sided."""
    from scipy import stats

    neighbours = np.diff(latencies.round) == 1
    if neighbours.sum() < LEAST_PAIRS:
        return False
    before, after = latencies.seconds[:-1][neighbours], latencies.seconds[1:][neighbours]
    return bool(stats.spearmanr(before, after, alternative="greater").pvalue < REFUTED_BELOW)


def _values(values: FloatArray) -> LawTable:
    """The values as they are, or as many quantiles as can stand for them."""
    if len(values) > VALUES_MAX:
        values = np.quantile(values, (np.arange(VALUES_MAX) + 0.5) / VALUES_MAX)
    return {"kind": "values", "values_s": [float(f"{value:.6g}") for value in np.sort(values)]}


def _plain(table: LawTable) -> LawTable:
    """Numbers as TOML has them, with more digits than data can tell."""
    return {key: value if isinstance(value, str) else float(f"{float(value):.8g}") for key, value in table.items()}
