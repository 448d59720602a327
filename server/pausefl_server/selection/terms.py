"""The terms that policies weigh, as functions of the client table: g_k, p_k and the index ucb_k of PAUSE, and losses.

All take `rows`, the table rows asked about, (n,) int64, and return (n,) float64.
"""

import math

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.selection.base import Context


def rows_in_tie_order(context: Context) -> IntArray:
    """The eligible rows by their seeded tie key: where a search prefers the first of equals, no client is favoured."""
    return context.eligible[np.argsort(context.table.tie_key[context.eligible])]


def generalisation(context: Context, rows: IntArray, m: int, beta: float) -> FloatArray:
    """g_k = sign(x)|x|^β with x = m|D_k|/|D| − T_k/t (PAUSE v2, eq. (8)); m = C in an asynchronous run.

    |D| is over the connected clients. Round t sees T_k after t − 1 rounds, and a client that joined at round j has
    had t − j of them; with none it has T_k/t = 0. In an asynchronous run a round is C jobs. No share |D_k|/|D| counts
    above `context.weight_share_max`.
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

    One that was chosen and reported none, or no number, counts as the median of the eligible clients' losses. Were it
    taken for one never chosen, a client could be chosen for ever by reporting nothing.
    """
    table = context.table
    loss: FloatArray = table.last_loss[rows]
    reported = table.last_loss[context.eligible]
    reported = reported[np.isfinite(reported)]
    loss[np.isnan(loss) & (table.chosen[rows] > 0)] = np.median(reported) if reported.size else 0.0
    return loss


def upper_confidence(mean: FloatArray, count: FloatArray, rounds: float, m: int, zeta: float = 1.0) -> FloatArray:
    """ucb_k = ζ μ̄_k + sqrt((m + 1) ln t / T_k), +inf while T_k = 0 (PAUSE v2, eq. (13)).

    mean: μ̄_k, anything where count is 0; count: T_k, the measured rounds (or their discounted number);
    rounds: how many there have been, t − 1 in round t.
    """
    width = math.sqrt((m + 1) * math.log(max(rounds, 1)))
    seen = count > 0
    index = np.full(len(count), np.inf)
    index[seen] = zeta * mean[seen] + width / np.sqrt(count[seen])
    return index
