"""Fits a two-state link to latencies: Gilbert and Elliott's Markov chain, with log-normal latencies in each state.

The fit uses expectation maximisation (Baum, Petrie, Soules and Weiss, Annals of Mathematical Statistics, 1970). As a
client is not chosen in every round, the chain may take g > 1 steps between two latencies. The transition matrix of g
steps is the g-th power of the chain's matrix, which has a closed form for two states.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray

_STEPS_MAX = 100
_TOLERANCE = 1e-4
_PARAMETERS = 6
_LEAST_SD = 1e-3
"""The least standard deviation of a state's logarithms. A state of a single value would have an infinite likelihood."""


@dataclass(frozen=True)
class _TwoStates:
    """The parameters of the two states, good and bad. The logarithms of latencies are normal in each state."""

    to_bad: float
    to_good: float
    mean: FloatArray
    sd: FloatArray

    def steps(self, gaps: IntArray) -> FloatArray:
        """(n, 2, 2) the transition probabilities between the states over each number of rounds in `gaps`, (n,)."""
        kept = (1 - self.to_bad - self.to_good) ** gaps
        moves: FloatArray = self.start + kept[:, None, None] * (np.eye(2) - self.start)
        return moves

    @property
    def start(self) -> FloatArray:
        """(2,) the probabilities of the states at the start: the equilibrium."""
        return np.array([self.to_good, self.to_bad]) / (self.to_bad + self.to_good)

    def log_density(self, logs: FloatArray) -> FloatArray:
        """(n, 2) the log-densities of these logarithms, (n,), in each state."""
        z = (logs[:, None] - self.mean) / self.sd
        return -0.5 * z**2 - np.log(self.sd) - 0.5 * math.log(2 * math.pi)


def fit_markov(seconds: FloatArray, rounds: IntArray) -> tuple[Mapping[str, Any], float]:
    """The law's table and its AIC, from latencies, (n,), of ascending rounds. AIC is ∞ if the states do not persist."""
    logs, gaps = np.log(seconds), np.diff(rounds)
    low, high = np.quantile(logs, (0.25, 0.85))
    spread = max(float(logs.std()) / 2, _LEAST_SD)
    chain, before = _TwoStates(0.1, 0.3, np.array([low, high]), np.array([spread, spread])), -math.inf
    for _ in range(_STEPS_MAX):
        state, pairs, likelihood = _expected(chain, logs, gaps)
        if likelihood - before < _TOLERANCE * abs(likelihood) / len(logs):
            break
        chain, before = _maximised(chain, logs, gaps, state, pairs), likelihood
    if chain.mean[0] > chain.mean[1]:
        chain = _TwoStates(chain.to_good, chain.to_bad, chain.mean[::-1], chain.sd[::-1])
    if not chain.to_bad + chain.to_good < 1:
        return {}, math.inf
    likelihood = _expected(chain, logs, gaps)[2] - float(logs.sum())  # converts from logarithms to latencies
    laws = [lognormal_law(float(mean), float(sd)) for mean, sd in zip(chain.mean, chain.sd, strict=True)]
    table = {
        "kind": "markov",
        "good": laws[0],
        "bad": laws[1],
        "to_bad": float(f"{chain.to_bad:.6g}"),
        "to_good": float(f"{chain.to_good:.6g}"),
    }
    return table, 2 * _PARAMETERS - 2 * likelihood


def _expected(chain: _TwoStates, logs: FloatArray, gaps: IntArray) -> tuple[FloatArray, FloatArray, float]:
    """The E step by scaled forward and backward passes: states, (n, 2), transitions, (n − 1, 2, 2), and ln L."""
    log_density = chain.log_density(logs)
    top = log_density.max(axis=1)
    density, steps = np.exp(log_density - top[:, None]), chain.steps(gaps)
    n = len(logs)
    forward, backward, scale = np.empty((n, 2)), np.ones((n, 2)), np.empty(n)
    ahead = chain.start * density[0]
    scale[0] = ahead.sum()
    forward[0] = ahead / scale[0]
    for t in range(1, n):
        ahead = (forward[t - 1] @ steps[t - 1]) * density[t]
        scale[t] = ahead.sum()
        forward[t] = ahead / scale[t]
    for t in range(n - 2, -1, -1):
        backward[t] = steps[t] @ (density[t + 1] * backward[t + 1]) / scale[t + 1]
    state = forward * backward
    pairs = forward[:-1, :, None] * steps * (density[1:] * backward[1:] / scale[1:, None])[:, None, :]
    return state, pairs, float(np.log(scale).sum() + top.sum())


def _maximised(chain: _TwoStates, logs: FloatArray, gaps: IntArray, state: FloatArray, pairs: FloatArray) -> _TwoStates:
    """The M step: the chain that maximises the expected log-likelihood."""
    from scipy.optimize import minimize

    weight = state.sum(axis=0) + 1e-12
    mean = state.T @ logs / weight
    sd = np.sqrt((state * (logs[:, None] - mean) ** 2).sum(axis=0) / weight).clip(_LEAST_SD)

    def cost(x: FloatArray) -> float:
        to_bad, to_good = 1 / (1 + np.exp(-x))
        steps = _TwoStates(float(to_bad), float(to_good), mean, sd).steps(gaps)
        return -float((pairs * np.log(steps.clip(1e-12))).sum())

    odds = np.log(np.array([chain.to_bad / (1 - chain.to_bad), chain.to_good / (1 - chain.to_good)]))
    found = minimize(cost, odds, method="L-BFGS-B", bounds=[(-8.0, 8.0)] * 2).x
    to_bad, to_good = 1 / (1 + np.exp(-found))
    return _TwoStates(float(to_bad), float(to_good), mean, sd)


def lognormal_law(mean: float, sd: float) -> Mapping[str, Any]:
    """The table of a log-normal law whose logarithm has this mean and standard deviation."""
    mean_s = math.exp(mean + sd**2 / 2)
    sd_s = mean_s * math.sqrt(math.expm1(sd**2))
    return {"kind": "lognormal", "mean_s": float(f"{mean_s:.8g}"), "sd_s": float(f"{sd_s:.8g}")}
