"""Compiled rounds of PAUSE under R1, of ucb, of choices made ahead, and of the genie.

The code repeats what `selection` and `simulate` do with one policy call per round. A test checks that both agree.
"""

import math

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.search.kernels import best_threshold, compiled, contenders

SWEEP_SHA256 = "d07388058dbc9937061e6f6eab2e326a2d5dd5c8368203ed75540bed49bedddf"
"""The digest of the source of `pausefl_server.search.sweep`, which is compiled into the functions here. numba's cache
depends on this file only, so this file must change whenever that one does. A test checks the digest."""


@compiled
def choose(ucb: FloatArray, value: FloatArray, m: int) -> IntArray:
    """The positions that `search.pivot_and_fill` chooses, in no particular order and without its checks."""
    rows = contenders(ucb, value, m)
    order = rows[np.argsort(-ucb[rows])]
    threshold = best_threshold(ucb[order], value[order], m)
    above = rows[ucb[rows] >= threshold]
    return np.sort(above[np.argsort(-value[above], kind="mergesort")[:m]])


@compiled
def pick(ucb: FloatArray, value: FloatArray, unseen: IntArray, seen: IntArray, m: int, is_by_ucb: bool) -> IntArray:
    """The positions that PAUSE chooses or, if `is_by_ucb`, the policy ucb: unseen clients first."""
    if len(unseen) >= m:
        return unseen[:m] if is_by_ucb else unseen[choose(np.zeros(len(unseen)), value[unseen], m)]
    left = m - len(unseen)
    best = np.argsort(-ucb[seen], kind="mergesort")[:left] if is_by_ucb else choose(ucb[seen], value[seen], left)
    return np.sort(np.concatenate((unseen, seen[best])))


@compiled
def play(
    first_round: int,
    latency_s: FloatArray,
    ahead: IntArray,
    is_by_ucb: bool,
    share: FloatArray,
    mu: FloatArray,
    tau_min_s: float,
    m: int,
    weights: tuple[float, float, float, float, float, float],
    chosen: IntArray,
    released: IntArray,
    inverse_s: FloatArray,
    gained: FloatArray,
) -> None:
    """Play n rounds with the given latencies: latency_s is (n, K), share is m|D_k|/|D|, mu the genie's means.

    ahead, (n, number of clients), are the rounds' choices, each ascending; (n, 0): they are made here, see `pick`.
    chosen and released, (K,), and inverse_s = Σ min(1/τ, 1/τ_min), (K,), are updated in place. gained, (n, 4), receives
    for each round the regret in realised reward (eq. (15)), the regret in the genie's objective (eq. (10)), the reward
    and the round's latency; the first three are NaN if not m clients are chosen. weights are α, γ, β, ζ, ε̄ and η, which
    is 0 in a run without privacy.
    """
    alpha, gamma, beta, zeta, epsilon, eta = weights
    n, k = latency_s.shape
    for i in range(n):
        t = first_round + i
        x = share - chosen / max(t - 1, 1)
        g = np.sign(x) * np.abs(x) ** beta
        # p_k = 1 − (spent so far)/ε̄: PAUSE v2, eq. (7), with what T_k participations spend by eq. (6).
        value = (alpha * g + gamma * (1.0 - -epsilon * np.expm1(-eta * released) / epsilon)) / m
        if ahead.shape[1]:
            picked = ahead[i]
        else:
            ucb, width = np.full(k, np.inf), math.sqrt((m + 1) * math.log(max(t - 1, 1)))
            for row in range(k):
                if chosen[row] > 0:
                    mean = min(tau_min_s * inverse_s[row] / chosen[row], 1.0)
                    ucb[row] = zeta * mean + width / math.sqrt(chosen[row])
            picked = pick(ucb, value, np.flatnonzero(chosen == 0), np.flatnonzero(chosen > 0), m, is_by_ucb)
        genie = choose(mu, value, m)
        slowest, genie_slowest = latency_s[i][picked].max(), latency_s[i][genie].max()
        worth, genie_worth = value[picked].sum(), value[genie].sum()
        # Latencies below τ_min, including 0, count as τ_min.
        reward = tau_min_s / max(slowest, tau_min_s) + worth
        gained[i, 0] = tau_min_s / max(genie_slowest, tau_min_s) + genie_worth - reward
        gained[i, 1] = (mu[genie].min() + genie_worth) - (mu[picked].min() + worth)
        gained[i, 2] = reward
        gained[i, 3] = slowest
        answers = 0
        for j, row in enumerate(picked):
            chosen[row] += 1
            if j == 0 or row != picked[j - 1]:  # a client that is chosen twice trains once
                answers += 1
                released[row] += 1
                inverse_s[row] += 1 / max(latency_s[i, row], tau_min_s)
        if answers != m:
            gained[i, :3] = np.nan
