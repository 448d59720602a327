"""Latency laws fitted to measured latencies: the best family by AIC, a Markov law, or the values themselves.

Families are fitted by maximum likelihood (scipy.stats) and compared by Akaike's criterion (IEEE TAC, 1974),
AIC = 2k − 2 ln L. Where the best one is refuted by the Kolmogorov–Smirnov test, the values themselves are the law.

Latencies of which a lower bound is known are right-censored: in the likelihood they count with the probability of a
greater one, among the values they stand at the later ones (Kaplan and Meier, JASA, 1958).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl.experiment.delay_laws import Delay
from pausefl.experiment.delays.files import ClientPlace
from pausefl.experiment.delays.laws import LawReader
from pausefl.experiment.measured.censoring import equal_values
from pausefl.extras import require
from pausefl.studies.offline.latencies import ClientLatencies
from pausefl.studies.offline.markov import fit_markov, lognormal_law
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator

LEAST_VALUES = 20
"""With fewer latencies, no family can be told from another: the values themselves are the law."""
LEAST_PAIRS = 50
"""With fewer pairs of latencies one round apart, nothing is said of their correlation."""
REFUTED_BELOW = 0.01
"""The p-value of the tests below which a family, or independence, is refuted."""
BOUNDED_MAX = 0.05
"""With a greater share of lower bounds, a law with two states is not tried: it is fitted to answers alone."""
VALUES_MAX = 1000
"""With more values than this, so many of their quantiles are the law."""

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
    """The Kolmogorov–Smirnov test of the values; what exceeds a bound is drawn from the family itself."""
    from scipy import stats

    beyond = family.cdf(bounds)
    drawn = beyond + (1 - beyond) * generator(0, "fit-latency").random(len(bounds))
    return float(stats.kstest(np.concatenate([family.cdf(values), drawn]), "uniform").pvalue)


def families(values: FloatArray, bounds: FloatArray | None = None) -> list[Family]:
    """Every family fitted to n > 1 different values above 0, and to lower bounds of further ones."""
    from scipy import stats

    bounds = np.empty(0) if bounds is None else bounds

    def known(change: Callable[[FloatArray], FloatArray]) -> Any:
        return stats.CensoredData(change(values), right=change(bounds)) if len(bounds) else change(values)

    log_mean, log_sd = map(float, stats.norm.fit(known(np.log)))
    normal = stats.norm(*stats.norm.fit(known(np.asarray)))
    gamma, weibull = (law(*law.fit(known(np.asarray), floc=0)) for law in (stats.gamma, stats.weibull_min))
    least, mean = float(values.min()), float(values.sum() + bounds.sum()) / len(values)
    log_excess = np.log(values / least).sum() + np.log(bounds / least).clip(0.0).sum()
    pareto_shape = len(values) / float(log_excess)
    found: list[tuple[LawTable, int, Any]] = [
        (_law("normal", mean_s=normal.mean(), sd_s=normal.std(), floor_s=least), 2, normal),
        (lognormal_law(log_mean, log_sd), 2, stats.lognorm(log_sd, scale=np.exp(log_mean))),
        (_law("exponential", mean_s=mean), 1, stats.expon(scale=mean)),
        (_law("gamma", mean_s=gamma.mean(), shape=gamma.args[0]), 2, gamma),
        (_law("weibull", scale_s=weibull.args[2], shape=weibull.args[0]), 2, weibull),
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
    """A family of answers, and probes that are lost whatever the latency, each waited for until its timeout."""
    lost, timeout_s = len(bounds) / (answers + len(bounds)), float(bounds[0])
    of = [family.table, {"kind": "constant", "value_s": timeout_s}]
    return Family(
        {"kind": "mixture", "of": of, "weights": [1 - lost, lost]},
        family.parameters + 1,
        family.log_likelihood + float(answers * np.log(1 - lost) + len(bounds) * np.log(lost)),
        lambda values: np.where(values > timeout_s, 1.0, (1 - lost) * family.cdf(values)),
    )


def is_correlated(latencies: ClientLatencies) -> bool:
    """Whether latencies one round apart go together: Spearman's rank correlation, one-sided."""
    from scipy import stats

    neighbours = np.diff(latencies.round) == 1
    if neighbours.sum() < LEAST_PAIRS:
        return False
    before, after = latencies.seconds[:-1][neighbours], latencies.seconds[1:][neighbours]
    return bool(stats.spearmanr(before, after, alternative="greater").pvalue < REFUTED_BELOW)


def _values(latencies: ClientLatencies) -> LawTable:
    """The values as they are, or as many quantiles as can stand for them."""
    values = equal_values(latencies.seconds, latencies.bounds_s)
    if len(values) > VALUES_MAX:
        values = np.quantile(values, (np.arange(VALUES_MAX) + 0.5) / VALUES_MAX)
    return {"kind": "values", "values_s": as_written(np.sort(values)).tolist()}


def as_written(values: FloatArray) -> FloatArray:
    """(n,) values as a law of values has them: with six significant digits."""
    return np.array([float(f"{value:.6g}") for value in values])


def _law(kind: str, **parameters: float) -> LawTable:
    """A law's table, with more digits than data can tell."""
    return {"kind": kind, **{key: float(f"{value:.8g}") for key, value in parameters.items()}}
