"""Estimates of μ_k = E[τ_min/τ_k]: the mean over all of a client's rounds, or one that forgets where links drift."""

from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context
from pausefl_server.selection.observed import PolicyRound


@dataclass(frozen=True)
class Recent:
    """Memory of a forgetful mean beyond the client table. Rows count as in the table."""

    weight: FloatArray
    """Σ of the weights of each row's measurements: T_k discounted."""
    weighted_inverse_s: FloatArray
    """Σ of weight/τ, in 1/s."""
    window: tuple[tuple[IntArray, FloatArray], ...] = ()
    """The last rounds' (rows, 1/τ), oldest first."""
    round: int = 0
    """The last of them, 0 for none."""

    @classmethod
    def nothing(cls) -> "Recent":
        """Before round 1."""
        return cls(np.empty(0), np.empty(0))


def remember(recent: Recent, record: PolicyRound, table: ClientTable, discount: float, window: int) -> Recent:
    """Fold one round: earlier measurements lose the factor `discount`, those over `window` rounds old are dropped.

    A further attempt at the same round adds its measurements to those before it, and nothing is forgotten.
    As in the client table, a miss counts as a reward of 0 and no reward exceeds 1.
    These are the discounted and the sliding-window UCB of Garivier and Moulines (ALT 2011) with τ_min/τ as reward.
    """
    taught = [o for o in record.observations if o.teaches]
    answered = table.rows(o.client_id for o in taught)
    missed = table.rows(miss.client_id for miss in record.misses if miss.teaches)
    tau_min_s = table.effective_tau_min_s
    rewards = 1.0 / np.maximum([o.latency_s for o in taught], tau_min_s)
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
            (1.0 if is_again else discount) * np.pad(column, (0, len(table) - len(column)))
            for column in (recent.weight, recent.weighted_inverse_s)
        )
    np.add.at(weight, rows, 1.0)
    np.add.at(weighted, rows, inverse_s)
    return Recent(weight, weighted, kept, record.round)


def mean_and_count(context: Context, rows: IntArray, recent: Recent | None) -> tuple[FloatArray, FloatArray]:
    """μ̄_k (PAUSE v2, eq. (11)) with misses as rewards of 0, and the T_k it rests on; μ̄_k is 0 where T_k is 0.

    A miss says τ ≥ d: its reward τ_min/τ lies in [0, τ_min/d], and 0 is the lower end of what is thus identified
    (Manski, Partial Identification of Probability Distributions, 2003, ch. 1). The mean estimates
    E[τ_min/τ; τ < d], a reward within [0, 1] that is observed without censoring and lies below μ_k by at most
    P(τ ≥ d) τ_min/d. See docs/selection.md.
    """
    table = context.table
    if recent is None:
        count, inverse_s = table.measured[rows].astype(np.float64), table.inverse_latency_sum[rows]
    else:
        missing = len(table) - len(recent.weight)  # clients that joined since the last round
        count = np.pad(recent.weight, (0, missing))[rows]
        inverse_s = np.pad(recent.weighted_inverse_s, (0, missing))[rows]
    tau_min_s = context.effective_tau_min_s if inverse_s.any() else 0.0
    mean = np.divide(tau_min_s * inverse_s, count, out=np.zeros(len(rows)), where=count > 0)
    # An estimated τ_min may have risen since a reward was clamped.
    return np.minimum(mean, 1.0), count
