"""Oort (Lai, Zhu, Madhyastha and Chowdhury, OSDI 2021): statistical utility, discounted for slow clients."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.number_types import Count, NonNegative, Share
from pausefl_server.clients import ClientTable, grown
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import losses, rows_in_tie_order

_EXPLORATION_WINDOW = 5
"""n unseen clients are drawn among the 5 n most promising ones (the default of the authors' code)."""


@dataclass(frozen=True)
class Pace:
    """Oort's state beyond the client table."""

    last_round: IntArray
    """The last round each row was chosen in, 0 for none."""
    percentile: float
    """The preferred round duration T, as a percentile of the clients' durations."""
    utilities: tuple[float, ...] = ()
    """Statistical utility gained in each of the last 2W rounds, oldest first."""
    round: int = 0
    """The last of these rounds, 0 for none."""
    percentile_before: float = 0.0
    """`percentile` before that round."""


@dataclass(frozen=True)
class Oort(Policy):
    """Exploits clients of great utility, which falls for clients slower than T. Explores fast clients with much data.

    It follows the paper's Algorithm 1 with its defaults. The authors' code (github.com/SymbioticLab/Oort) gives the
    scaling and clipping of utilities, their bonus for long absence, and the draw of unseen clients.

    docs/selection.md lists what differs. Utilities are scaled over the clients seen; the code also scales over the data
    sizes of unseen clients.
    """

    exploration: Share = 0.9
    """ε in round 1, the share of unseen clients in a round."""
    exploration_decay: Share = 0.98
    """The factor by which ε falls each round."""
    exploration_min: Share = 0.2
    """ε never falls below this."""
    penalty: NonNegative = 2.0
    """α of Oort, eq. (1): how strongly slowness counts."""
    cutoff: Share = 0.95
    """c. To choose n seen clients, Oort draws among those with at least c times the n-th greatest utility."""
    pacer_window: Count = 20
    """W. Every W rounds, the pacer raises T if the last W rounds gained less utility than the W before."""
    pacer_percentile: Annotated[float, Ge(0), Le(100)] = 50.0
    """T in round 1, as a percentile of the clients' durations."""
    pacer_step: Annotated[float, Ge(0), Le(100)] = 10.0
    """How many percentiles the pacer raises T by."""

    known_speeds: bool = True
    """Whether the policy knows unseen clients' mean latencies. If not, it explores by data size alone."""

    needs_loss: ClassVar[bool] = True

    @property
    def needs_oracle(self) -> bool:
        return self.known_speeds

    def start(self) -> Pace:
        return Pace(np.empty(0, np.int64), self.pacer_percentile)

    def observe(self, state: Pace, record: PolicyRound, table: ClientTable) -> Pace:
        """Note which clients were chosen. Every W rounds, raise T if the utility gained has fallen (Oort, Algorithm 1).

        The pacer counts all attempts at a round as one round, and decides anew after each of them.
        """
        last_round = grown(state.last_round, len(table))
        last_round[table.rows(record.chosen)] = record.round
        gained = sum(o.n_examples * o.loss for o in record.observations if o.loss is not None)
        w, earlier, percentile = self.pacer_window, state.utilities, state.percentile
        if record.round == state.round:
            earlier, gained, percentile = earlier[:-1], earlier[-1] + gained, state.percentile_before
        utilities = (*earlier, gained)[-2 * w :]
        is_relaxed = record.round % w == 0 and len(utilities) == 2 * w and sum(utilities[:w]) > sum(utilities[w:])
        relaxed = min(100.0, percentile + self.pacer_step) if is_relaxed else percentile
        return Pace(last_round, relaxed, utilities, record.round, percentile)

    def select(self, state: Pace, context: Context) -> Selection:
        """ε m unseen clients by data size and speed, the others by utility."""
        rows = rows_in_tie_order(context)
        m = min(self.m, len(rows))
        loss = losses(context, rows)
        known = np.isfinite(loss)
        share = max(self.exploration * self.exploration_decay ** (context.round - 1), self.exploration_min)
        explored = min(max(round(share * m), m - int(known.sum())), int((~known).sum()))
        speed = self._speed(state, context, rows)
        new = self._explored(context, rows[~known], speed[~known], explored)
        seen = self._exploited(state, context, rows[known], loss[known], speed[known], m - explored)
        return Selection(np.sort(np.concatenate((new, seen))))

    def _explored(self, context: Context, rows: IntArray, speed: FloatArray, count: int) -> IntArray:
        """`count` unseen rows, drawn in proportion to data size times speed among those where it is greatest."""
        promise: FloatArray = speed * context.table.n_examples[rows]
        pool = np.argsort(-promise, kind="stable")[: _EXPLORATION_WINDOW * count]
        return _drawn(context.rng, rows[pool], promise[pool], count)

    def _exploited(
        self, state: Pace, context: Context, rows: IntArray, loss: FloatArray, speed: FloatArray, count: int
    ) -> IntArray:
        """`count` seen rows, drawn in proportion to utility among those within the cutoff of the count-th greatest."""
        if count == 0:
            return rows[:0]
        statistical: FloatArray = np.maximum(loss, 0.0) * context.table.n_examples[rows]
        utility = scaled_utility(statistical, np.maximum(state.last_round[rows], 1), context.round) * speed
        last_admitted = np.partition(utility, len(utility) - count)[len(utility) - count]
        pool = np.flatnonzero(utility >= self.cutoff * last_admitted)
        return _drawn(context.rng, rows[pool], utility[pool], count)

    def _speed(self, state: Pace, context: Context, rows: IntArray) -> FloatArray:
        """(T/duration)^penalty for rows slower than T; 1 for the others and those of unknown duration."""
        table = context.table
        duration_s = np.full(len(rows), np.nan)
        if self.known_speeds:
            if context.oracle is None:
                raise ValueError("oort needs the true mean latencies, or known_speeds = false")
            duration_s = np.array([context.oracle.mean_latency_s[table.ids[row]] for row in rows])
        measured = table.inverse_latency_sum[rows] > 0  # has an answer; misses lengthen its duration
        duration_s[measured] = table.measured[rows][measured] / table.inverse_latency_sum[rows][measured]
        known_s = duration_s[~np.isnan(duration_s)]
        if not known_s.size:
            return np.ones(len(rows))
        preferred_s = _at_percentile(known_s, state.percentile)
        slower = duration_s > preferred_s
        speed = np.ones(len(rows))
        speed[slower] = (preferred_s / duration_s[slower]) ** self.penalty
        return speed


def scaled_utility(statistical: FloatArray, last_round: IntArray, round: int) -> FloatArray:
    """Utilities scaled to 0..1, clipped at their 95th percentile, plus a bonus for clients that were not chosen lately.

    The min-max scaling is that of the authors' code. It multiplies the least value by 0.999, so that no utility is 0.
    The bonus is Algorithm 1's sqrt(0.1 ln R / L): R is the round, L the last one with the client. Arrays: (n,), n >= 1.
    """
    clipped = np.minimum(statistical, _at_percentile(statistical, 95.0))
    least = 0.999 * statistical.min()
    scaled: FloatArray = (clipped - least) / max(statistical.max() - least, 1e-4)
    return scaled + np.sqrt(0.1 * math.log(max(round, 1)) / last_round)


def _drawn(rng: np.random.Generator, rows: IntArray, weight: FloatArray, count: int) -> IntArray:
    """`count` of these rows without replacement, with probabilities proportional to their weights."""
    if count == 0:
        return rows[:0]
    positive = np.maximum(weight, np.finfo(np.float64).tiny)
    return rng.choice(rows, count, replace=False, p=positive / positive.sum())


def _at_percentile(values: FloatArray, percentile: float) -> float:
    """The value at this percentile of the values, (n,), n >= 1: an element of theirs, without interpolation."""
    return float(np.sort(values)[min(int(len(values) * percentile / 100), len(values) - 1)])
