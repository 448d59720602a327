"""Estimates of μ_k = E[τ_min/τ_k]: the mean over all of a client's rounds, or a forgetful mean for links that drift."""

from dataclasses import dataclass, field

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.clients import ClientTable, grown
from pausefl_server.selection.base import Context
from pausefl_server.selection.observed import PolicyRound


@dataclass(frozen=True)
class Recent:
    """The state of a forgetful mean, beyond the client table. Arrays have the table's rows, at first none."""

    weight: FloatArray = field(default_factory=lambda: np.empty(0))
    """Σ of the weights of each row's measurements: the discounted T_k."""
    weighted_inverse_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """Σ of weight/τ over each row's measurements, in 1/s."""
    window: tuple[tuple[IntArray, FloatArray], ...] = ()
    """(rows, 1/τ) of each round in the window, oldest first; empty without a window."""
    round: int = 0
    """The round that was folded last, 0 for none."""


def remember(recent: Recent, record: PolicyRound, table: ClientTable, discount: float, window: int) -> Recent:
    """The state after one more round. Earlier weights are multiplied by `discount`, or only `window` rounds are kept.

    A further attempt at the same round adds its measurements to the earlier attempts', and nothing is forgotten.
    As in the client table, a miss counts as a reward of 0 and no reward exceeds 1.
    This is the discounted or the sliding-window UCB of Garivier and Moulines (ALT 2011) with τ_min/τ as reward.
    """
    taught = [o for o in record.observations if o.teaches]
    answered = table.rows(o.client_id for o in taught)
    missed = table.rows(miss.client_id for miss in record.misses if miss.teaches)
    rewards = 1.0 / np.maximum([o.latency_s for o in taught], table.effective_tau_min_s)
    rows, inverse_s = np.concatenate((answered, missed)), np.concatenate((rewards, np.zeros(len(missed))))
    is_again = record.round == recent.round
    if window:
        earlier = recent.window
        if is_again:
            earlier, (rows_before, before) = earlier[:-1], earlier[-1]
            rows, inverse_s = np.concatenate((rows_before, rows)), np.concatenate((before, inverse_s))
        kept = (*earlier, (rows, inverse_s))[-window:]
        rows, inverse_s = (np.concatenate(column) for column in zip(*kept, strict=True))
        weight, weighted = np.zeros(len(table)), np.zeros(len(table))
    else:
        kept = ()
        weight, weighted = (
            (1.0 if is_again else discount) * grown(column, len(table))
            for column in (recent.weight, recent.weighted_inverse_s)
        )
    np.add.at(weight, rows, 1.0)
    np.add.at(weighted, rows, inverse_s)
    return Recent(weight, weighted, kept, record.round)


def mean_and_count(context: Context, rows: IntArray, recent: Recent | None) -> tuple[FloatArray, FloatArray]:
    """μ̄_k (PAUSE v2, eq. (11)) with misses as rewards of 0, and its number of measurements T_k. μ̄_k is 0 if T_k is 0.

    docs/selection.md says why misses count so, and what that costs.
    """
    table = context.table
    if recent is None:
        count, inverse_s = table.measured[rows].astype(np.float64), table.inverse_latency_sum[rows]
    else:
        columns = recent.weight, recent.weighted_inverse_s
        count, inverse_s = (grown(column, len(table))[rows] for column in columns)  # clients may have joined since
    tau_min_s = context.effective_tau_min_s if inverse_s.any() else 0.0
    mean = np.divide(tau_min_s * inverse_s, count, out=np.zeros(len(rows)), where=count > 0)
    # A reward is clamped when it is measured. An estimated τ_min may have risen since then.
    return np.minimum(mean, 1.0), count
