"""The terms that policies combine, from the client table: g_k, p_k and the index ucb_k of PAUSE, losses, and tiers.

Arrays are (n,): an entry for each of n clients. `rows`, int64, are their table rows. Terms are float64.
"""

import math

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context

NO_TIER = -1  # in place of a tier, for a client that is in none


def rows_in_tie_order(context: Context) -> IntArray:
    """The eligible rows, sorted by seeded tie key. A search that prefers the first of equals then favours no client."""
    return context.eligible[context.table.tie_key[context.eligible].argsort()]


def generalisation(context: Context, rows: IntArray, m: int, beta: float) -> FloatArray:
    """g_k = sign(x)|x|^β with x = m|D_k|/|D| − T_k/t (PAUSE v2, eq. (8)); m = C in an asynchronous run.

    |D| sums over the connected clients. The share |D_k|/|D| is capped at `context.weight_share_max`. In round t, t − 1
    rounds are over, and a client that joined before round j was present in t − j of them. T_k is divided by this
    number, or by 1 if it is 0. In an asynchronous run, C jobs count as a round.
    """
    table = context.table
    examples = table.n_examples[table.connected].sum()
    if context.concurrency is None:
        rounds = np.maximum(context.round - table.joined_round[rows], 1)
    else:
        rounds = np.maximum((context.jobs - table.jobs_before[rows]) / context.concurrency, 1)
    share = np.minimum(table.n_examples[rows] / max(examples, 1), context.weight_share_max)
    x: FloatArray = m * share - table.chosen[rows] / rounds
    g: FloatArray = np.sign(x) * np.abs(x) ** beta
    return g


def privacy(context: Context, rows: IntArray) -> FloatArray:
    """p_k = 1 − (ε spent so far)/ε̄ (PAUSE v2, eq. (7)); 1 in a run without privacy, so p_k(0) = 1."""
    if context.epsilon_budget is None:
        return np.ones(len(rows))
    return 1.0 - context.table.epsilon_spent[rows] / context.epsilon_budget


def losses(context: Context, rows: IntArray) -> FloatArray:
    """The loss that each client reported last; NaN for a client that was never chosen.

    A client that was chosen but reported no loss, or NaN, gets the median of the eligible clients' losses. With NaN it
    would look never chosen, and could be chosen for ever by reporting nothing.
    """
    table = context.table
    loss: FloatArray = table.last_loss[rows]
    reported = table.last_loss[context.eligible]
    reported = reported[np.isfinite(reported)]
    loss[np.isnan(loss) & (table.chosen[rows] > 0)] = np.median(reported) if reported.size else 0.0
    return loss


def upper_confidence(mean: FloatArray, count: FloatArray, rounds: float, m: int, zeta: float = 1.0) -> FloatArray:
    """ucb_k = ζ μ̄_k + sqrt((m + 1) ln t / T_k), +inf while T_k = 0 (PAUSE v2, eq. (13)).

    `mean`: μ̄_k, ignored where `count` is 0. `count`: T_k, the number of measured rounds, possibly discounted.
    `rounds`: the number of rounds so far, which is t in the formula.
    """
    width = math.sqrt((m + 1) * math.log(max(rounds, 1)))
    seen = count > 0
    index = np.full(len(count), np.inf)
    index[seen] = zeta * mean[seen] + width / np.sqrt(count[seen])
    return index


def quantile_tiers(table: ClientTable, count: int) -> IntArray:
    """(K,), the tier of each row. Clients with budget left are sorted by latency and cut into `count` equal parts.

    The parts' sizes differ by one at most. A latency is the harmonic mean of a client's measurements, which misses
    lengthen. It is infinite before the first answer.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        latency_s = np.nan_to_num(table.measured / table.inverse_latency_sum, nan=math.inf, posinf=math.inf)
    left = np.flatnonzero(~table.retired)
    ordered = left[np.lexsort((table.tie_key[left], latency_s[left]))]
    tiers = np.full(len(table), NO_TIER, np.int64)
    tiers[ordered] = np.arange(len(ordered)) * count // max(1, len(ordered))
    return tiers
