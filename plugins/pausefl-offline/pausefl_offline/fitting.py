"""Fits latency laws to measured latencies: the best family by AIC, a Markov law, or the values themselves.

Families are fitted by maximum likelihood (scipy.stats) and compared by Akaike's criterion (IEEE TAC, 1974),
AIC = 2k − 2 ln L. If the Kolmogorov–Smirnov test refutes the best family, the values themselves are the law.

Latencies with only a known lower bound are right-censored. In the likelihood, each counts with the probability of a
greater latency. In a law of values, its weight goes to the greater values (Kaplan and Meier, JASA, 1958).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.delays.files import ClientPlace
from pausefl.experiment.delays.laws import LawReader
from pausefl.experiment.measured.censoring import equal_values
from pausefl.extras import require
from pausefl_offline.latencies import ClientLatencies
from pausefl_offline.markov import fit_markov, lognormal_law
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator

LEAST_VALUES = 20
"""With fewer latencies, families cannot be distinguished, and the values themselves are the law."""
LEAST_PAIRS = 50
"""With fewer pairs of latencies one round apart, correlation is not tested."""
REFUTED_BELOW = 0.01
"""The p-value below which a test refutes a family, or the independence of rounds."""
BOUNDED_MAX = 0.05
"""With a greater share of lower bounds, a Markov law is not tried, as it is fitted to answers only."""
VALUES_MAX = 1000
"""The most values of a law of values. More latencies are replaced by this many quantiles."""

LawTable = Mapping[str, Any]
"""A law as a TOML table, with its kind."""


@dataclass(frozen=True)
class FittedLaw:
    """The law fitted to one client's latencies, and the reason for it."""

    table: LawTable
    why: str
    """The reason for this law, in a few words."""

    @property
    def law(self) -> Delay:
        """The law that `table` describes, as an object."""
        client = ClientPlace("client-000", 0, frozenset({"client-000"}))
        return LawReader(client, lambda _: np.random.default_rng(0)).read(self.table, "latency.delay")


@dataclass(frozen=True)
class Family:
    """A fitted family of laws: its table, number of parameters, log-likelihood and distribution function."""

    table: LawTable
    parameters: int
    log_likelihood: float
    cdf: Callable[[FloatArray], FloatArray]

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2k − 2 ln L. The family with the least is the best."""
        return 2 * self.parameters - 2 * self.log_likelihood


def fit_law(latencies: ClientLatencies) -> FittedLaw:
    """Fit a law to one client's latencies. ConfigError if scipy is not installed."""
    require("latency")
    values, bounds = latencies.seconds, latencies.bounds_s
    is_same = len(values) > 0 and np.ptp(values) == 0
    if is_same and not (bounds > values[0]).any():
        why = "all values are the same" if len(values) > 1 else "of one value: how it varies is not known"
        return FittedLaw({"kind": "constant", "value_s": float(values[0])}, why)
    if len(values) < LEAST_VALUES:
        return FittedLaw(_values(latencies), f"the values: fewer than {LEAST_VALUES}")
    if is_same:
        return FittedLaw(_values(latencies), "the values: the same but for lower bounds")
    best = min(families(values, bounds), key=lambda family: family.aic)
    if len(bounds) <= BOUNDED_MAX * (len(bounds) + len(values)) and is_correlated(latencies):
        (markov, aic), alone = fit_markov(values, latencies.round), min(family.aic for family in families(values))
        if aic < alone:
            return FittedLaw(markov, f"correlated from round to round: AIC {aic:.1f} < {alone:.1f}")
    if _p_value(best, values, bounds) < REFUTED_BELOW:
        return FittedLaw(_values(latencies), f"the values: {best.table['kind']}, the best family, is refuted")
    return FittedLaw(best.table, f"AIC {best.aic:.1f}")


def _p_value(family: Family, values: FloatArray, bounds: FloatArray) -> float:
    """The p-value of the Kolmogorov–Smirnov test. Censored latencies are drawn from the family above their bounds."""
    from scipy import stats

    beyond = family.cdf(bounds)
    drawn = beyond + (1 - beyond) * generator(0, "fit-latency").random(len(bounds))
    return float(stats.kstest(np.concatenate([family.cdf(values), drawn]), "uniform").pvalue)


def families(values: FloatArray, bounds: FloatArray | None = None) -> list[Family]:
    """All families, fitted to n > 1 different values above 0 and to lower bounds of further values."""
    from scipy import stats

    bounds = np.empty(0) if bounds is None else bounds

    def known(change: Callable[[FloatArray], FloatArray]) -> Any:
        return stats.CensoredData(change(values), right=change(bounds)) if len(bounds) else change(values)

    log_mean, log_sd = map(float, stats.norm.fit(known(np.log)))
    normal = stats.norm(*stats.norm.fit(known(np.asarray)))
    gamma_shape, _, gamma_scale_s = map(float, stats.gamma.fit(known(np.asarray), floc=0))
    weibull_shape, _, weibull_scale_s = map(float, stats.weibull_min.fit(known(np.asarray), floc=0))
    gamma = stats.gamma(gamma_shape, scale=gamma_scale_s)
    weibull = stats.weibull_min(weibull_shape, scale=weibull_scale_s)
    least, mean = float(values.min()), float(values.sum() + bounds.sum()) / len(values)
    log_excess = np.log(values / least).sum() + np.log(bounds / least).clip(0.0).sum()
    pareto_shape = len(values) / float(log_excess)
    # A table, its number of parameters, and the same law as scipy has it.
    found: list[tuple[LawTable, int, Any]] = [
        (_law("normal", mean_s=normal.mean(), sd_s=normal.std(), floor_s=least), 2, normal),
        (lognormal_law(log_mean, log_sd), 2, stats.lognorm(log_sd, scale=np.exp(log_mean))),
        (_law("exponential", mean_s=mean), 1, stats.expon(scale=mean)),
        (_law("gamma", mean_s=gamma.mean(), shape=gamma_shape), 2, gamma),
        (_law("weibull", scale_s=weibull_scale_s, shape=weibull_shape), 2, weibull),
        (_law("pareto", minimum_s=least, shape=pareto_shape), 2, stats.pareto(pareto_shape, scale=least)),
    ]
    fitted = [
        Family(table, k, float(law.logpdf(values).sum() + law.logsf(bounds).sum()), law.cdf)
        for table, k, law in found
        if np.isfinite(law.logpdf(values)).all()
    ]
    if len(bounds) and values.max() < bounds.min() == bounds.max():
        fitted += [_with_losses(family, len(values), bounds) for family in families(values)]
    return fitted


def _with_losses(family: Family, answers: int, bounds: FloatArray) -> Family:
    """A mixture of a family for answers and of lost probes, which each last until the timeout."""
    lost, timeout_s = len(bounds) / (answers + len(bounds)), float(bounds[0])
    of = [family.table, {"kind": "constant", "value_s": timeout_s}]
    return Family(
        {"kind": "mixture", "of": of, "weights": [1 - lost, lost]},
        family.parameters + 1,
        family.log_likelihood + float(answers * np.log(1 - lost) + len(bounds) * np.log(lost)),
        lambda values: np.where(values > timeout_s, 1.0, (1 - lost) * family.cdf(values)),
    )


def is_correlated(latencies: ClientLatencies) -> bool:
    """Whether latencies one round apart are positively correlated, by a one-sided test of Spearman's coefficient."""
    from scipy import stats

    neighbours = np.diff(latencies.round) == 1
    if neighbours.sum() < LEAST_PAIRS:
        return False
    before, after = latencies.seconds[:-1][neighbours], latencies.seconds[1:][neighbours]
    return bool(stats.spearmanr(before, after, alternative="greater").pvalue < REFUTED_BELOW)


def _values(latencies: ClientLatencies) -> LawTable:
    """A law of the values themselves or, if there are many, of their quantiles."""
    values = equal_values(latencies.seconds, latencies.bounds_s)
    if len(values) > VALUES_MAX:
        values = np.quantile(values, (np.arange(VALUES_MAX) + 0.5) / VALUES_MAX)
    return {"kind": "values", "values_s": as_written(np.sort(values)).tolist()}


def as_written(values: FloatArray) -> FloatArray:
    """The values, (n,), rounded to six significant digits, as a law of values has them."""
    return np.array([float(f"{value:.6g}") for value in values])


def _law(kind: str, **parameters: float) -> LawTable:
    """The table of a law. Eight significant digits are more precise than any data."""
    return {"kind": kind, **{key: float(f"{value:.8g}") for key, value in parameters.items()}}
