"""Compiled rounds of PAUSE under R1 and of the genie: 10⁷ rounds take the time of 10⁵ rounds of `simulate`.

The code repeats what `selection.pause` and `simulate` do with one policy call per round. A test checks that both agree.
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
    return above[np.argsort(-value[above], kind="mergesort")[:m]]


@compiled
def play(
    first_round: int,
    latency_s: FloatArray,
    share: FloatArray,
    mu: FloatArray,
    tau_min_s: float,
    m: int,
    alpha: float,
    gamma: float,
    beta: float,
    zeta: float,
    eta: float,
    chosen: IntArray,
    inverse_s: FloatArray,
    gained: FloatArray,
) -> None:
    """Play n rounds with the given latencies: latency_s is (n, K), share is m|D_k|/|D|, mu the genie's means.

    chosen, (K,), and inverse_s = Σ min(1/τ, 1/τ_min), (K,), are updated in place. gained, (n, 4), receives for each
    round the regret in realised reward (eq. (15)), the regret in the genie's objective (eq. (10)), the reward and the
    round's latency. eta is 0 in a run without privacy.
    """
    n, k = latency_s.shape
    for i in range(n):
        t = first_round + i
        x = share - chosen / max(t - 1, 1)
        g = np.sign(x) * np.abs(x) ** beta
        # p_k = 1 − (spent so far)/ε̄ = e^{−ηT_k}: PAUSE v2, eq. (7), with what T_k participations spend by eq. (6).
        value = (alpha * g + gamma * np.exp(-eta * chosen)) / m
        unseen = np.flatnonzero(chosen == 0)
        if len(unseen) >= m:
            picked = unseen[choose(np.zeros(len(unseen)), value[unseen], m)]
        else:
            ucb = np.full(k, np.inf)
            for row in range(k):
                if chosen[row] > 0:
                    width = math.sqrt((m + 1) * math.log(max(t - 1, 1)) / chosen[row])
                    ucb[row] = zeta * tau_min_s * inverse_s[row] / chosen[row] + width
            seen = np.flatnonzero(chosen > 0)
            picked = np.concatenate((unseen, seen[choose(ucb[seen], value[seen], m - len(unseen))]))
        genie = choose(mu, value, m)
        slowest, genie_slowest = latency_s[i][picked].max(), latency_s[i][genie].max()
        worth, genie_worth = value[picked].sum(), value[genie].sum()
        # Latencies below τ_min, including 0, count as τ_min.
        reward = tau_min_s / max(slowest, tau_min_s) + worth
        gained[i, 0] = tau_min_s / max(genie_slowest, tau_min_s) + genie_worth - reward
        gained[i, 1] = mu[genie].min() + genie_worth - mu[picked].min() - worth
        gained[i, 2] = reward
        gained[i, 3] = slowest
        for row in picked:
            chosen[row] += 1
            inverse_s[row] += 1 / max(latency_s[i, row], tau_min_s)
