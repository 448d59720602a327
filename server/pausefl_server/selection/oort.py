"""Oort (Lai, Zhu, Madhyastha and Chowdhury, OSDI 2021): statistical utility, discounted for slow clients."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pausefl_server.clients import ClientTable, FloatArray, IntArray
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Pace:
    """What Oort remembers beyond the client table."""

    last_round: IntArray
    """The last round each row took part in, 0 for none."""
    percentile: float
    """The preferred round duration T, as a percentile of the clients' durations."""
    utilities: tuple[float, ...] = ()
    """Statistical utility gained in each of the last 2W rounds, oldest first."""


@dataclass(frozen=True)
class Oort(Policy):
    """Exploits clients of great utility |D_k|·loss_k·(T/duration_k)^penalty if slower than T, and explores new ones.

    The statistical utility is |D_k| times the root mean square loss in the paper; clients report their mean loss
    alone, which stands in for it. Durations are harmonic means of the measured latencies. Robustness to outliers: the
    utility is clipped at its 95th percentile, as in the paper; its removal of often-chosen clients is left out.
    """

    exploration: float = 0.9
    """ε in round 1: the share of unseen clients in a round."""
    exploration_decay: float = 0.98
    """Factor of ε per round."""
    exploration_min: float = 0.2
    """ε never falls below this."""
    penalty: float = 2.0
    """α of Oort, eq. (1): how strongly slowness counts."""
    cutoff: float = 0.95
    """c: clients down to this share of the last admitted utility are sampled in proportion to their utility."""
    pacer_window: int = 20
    """W: rounds compared by the pacer, which prefers longer rounds once utility falls."""
    pacer_percentile: float = 50.0
    """T in round 1, as a percentile of the clients' durations."""
    pacer_step: float = 10.0
    """Percentiles by which the pacer raises T."""

    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exploration", "exploration_decay", "exploration_min", "cutoff"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be from 0 to 1")
        if not (math.isfinite(self.penalty) and self.penalty >= 0):
            raise ValueError(f"penalty = {self.penalty}: must be a finite number, at least 0")
        if self.pacer_window < 1:
            raise ValueError(f"pacer_window = {self.pacer_window}: must be at least 1")
        for name in ("pacer_percentile", "pacer_step"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name} = {getattr(self, name)}: must be from 0 to 100")

    def start(self) -> Pace:
        """Nobody has taken part."""
        return Pace(np.empty(0, np.int64), self.pacer_percentile)

    def observe(self, state: Pace, record: PolicyRound, table: ClientTable) -> Pace:
        """Note who took part; every W rounds, relax T if the utility gained has fallen (Oort, Algorithm 1)."""
        last_round = np.pad(state.last_round, (0, len(table) - len(state.last_round)))
        last_round[table.rows(record.chosen)] = record.round
        gained = sum(o.n_examples * o.loss for o in record.observations if o.loss is not None)
        w = self.pacer_window
        utilities = (*state.utilities, gained)[-2 * w :]
        state = replace(state, last_round=last_round, utilities=utilities)
        if record.round % w == 0 and len(utilities) == 2 * w and sum(utilities[:w]) > sum(utilities[w:]):
            return replace(state, percentile=min(100.0, state.percentile + self.pacer_step))
        return state

    def select(self, state: Pace, context: Context) -> Selection:
        """ε m unseen clients at random, the others by utility."""
        rows, table = rows_in_tie_order(context), context.table
        m = min(self.m, len(rows))
        known = np.isfinite(table.last_loss[rows]) & (table.measured[rows] > 0)
        seen, unseen = rows[known], rows[~known]
        share = max(self.exploration * self.exploration_decay ** (context.round - 1), self.exploration_min)
        explored = min(max(round(share * m), m - len(seen)), len(unseen))
        new = context.rng.choice(unseen, explored, replace=False)
        return Selection(np.sort(np.concatenate((new, self._exploited(state, context, seen, m - explored)))))

    def _exploited(self, state: Pace, context: Context, rows: IntArray, count: int) -> IntArray:
        """`count` rows, sampled by utility among those within the cutoff of the count-th greatest."""
        if count == 0:
            return rows[:0]
        utility = self._utility(state, context, rows)
        last_admitted = np.partition(utility, len(utility) - count)[len(utility) - count]
        pool = np.flatnonzero(utility >= self.cutoff * last_admitted)
        weight = np.maximum(utility[pool], np.finfo(np.float64).tiny)
        return context.rng.choice(rows[pool], count, replace=False, p=weight / weight.sum())

    def _utility(self, state: Pace, context: Context, rows: IntArray) -> FloatArray:
        """Clipped statistical utility, plus what is due for not having been asked lately, times the system's part."""
        table = context.table
        statistical = table.n_examples[rows] * np.maximum(table.last_loss[rows], 0.0)
        statistical = np.minimum(statistical, np.percentile(statistical, 95))
        last_round = np.maximum(state.last_round[rows], 1)
        # Oort, Algorithm 1, line 11 adds the square root to the utility; here to the utility over its greatest value,
        # as in the authors' code, so that it does not depend on the unit of the loss.
        utility: FloatArray = statistical / max(statistical.max(), np.finfo(np.float64).tiny)
        utility = utility + np.sqrt(0.1 * math.log(max(context.round, 1)) / last_round)
        duration_s = table.measured[rows] / table.inverse_latency_sum[rows]
        preferred_s = np.percentile(duration_s, state.percentile)
        slower = duration_s > preferred_s
        utility[slower] *= (preferred_s / duration_s[slower]) ** self.penalty
        return utility
