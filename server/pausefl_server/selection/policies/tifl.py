"""TiFL (Chai et al., HPDC 2020, arXiv 2001.09249): one tier of clients of similar latency plays each round."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.number_types import Count
from pausefl_server.clients import ClientTable, grown
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import NO_TIER, quantile_tiers, rows_in_tie_order


@dataclass(frozen=True)
class Tiers:
    """TiFL's state beyond the client table. Tier 0 is the fastest."""

    of_row: IntArray
    """The tier of each row; -1 for clients that joined since the tiers were formed, and for retired ones."""
    credits: IntArray
    """(tiers,), how many more times each tier may be drawn, at least 0."""
    weight: FloatArray
    """(tiers,), in proportion to the tiers' probabilities."""
    loss: FloatArray
    """(tiers,), the mean loss of each tier when the tiers were last formed; NaN where no loss was known."""
    formed: int = 0
    """The round after which the tiers were last formed; 0 before."""


@dataclass(frozen=True)
class Tifl(Policy):
    """Draws a tier, more often one of great loss, and then m of its clients uniformly (TiFL, Algorithm 2).

    Clients that were never chosen go first. These rounds profile latencies and cost no credits. Then the clients are
    divided into tiers at quantiles of their measured latencies. Each round draws one of the tiers that have credits
    left. Every `interval` rounds, tiers are weighted anew unless the loss of the tier that played last has fallen since
    the last time. The tier of the greatest loss then gets weight T, the next one T − 1, and so on.

    docs/selection.md lists what differs from the paper. A tier that has not played for long keeps the loss of an older
    model, so it is drawn sooner. A client with only misses is among the slowest. There are fewer tiers if K/m is less
    than `tiers`. A tier with fewer than m eligible clients is not drawn. If there is no other, m of all clients are
    drawn without credits. When no tier that can be drawn has credits left, the credits of all tiers are renewed.
    """

    tiers: Count = 5
    """The number of tiers."""
    credits: Count = 20
    """How many times a tier is drawn before it must wait for the others."""
    interval: Count = 10
    """The number of rounds after which tiers are formed and weighted anew."""

    needs_loss: ClassVar[bool] = True
    needs_rounds: ClassVar[bool] = True

    def start(self) -> Tiers:
        full, unknown = np.full(self.tiers, self.credits), np.full(self.tiers, np.nan)
        return Tiers(np.empty(0, np.int64), full, np.ones(self.tiers), unknown)

    def observe(self, state: Tiers, record: PolicyRound, table: ClientTable) -> Tiers:
        """Charge the tier that played a credit. When it is time, form the tiers anew and weight them."""
        rows = table.rows(record.chosen)
        played = grown(state.of_row, len(table), NO_TIER)[rows]
        tier = int(played[0])
        is_drawn = tier != NO_TIER and bool((played == tier).all()) and not (table.chosen[rows] == 1).any()
        if is_drawn:
            left = state.credits.copy() if state.credits[tier] else np.full(self.tiers, self.credits)
            left[tier] -= 1
            state = replace(state, credits=left)
        is_profiled = state.formed or (table.chosen[table.eligible()] > 0).all()
        if is_profiled and (not state.formed or record.round >= state.formed + self.interval):
            return self._formed(state, record.round, table, tier if is_drawn else None)
        return state

    def select(self, state: Tiers, context: Context) -> Selection:
        """Unseen clients, or m of one tier."""
        rows = rows_in_tie_order(context)
        m = min(self.m, len(rows))
        unseen = rows[context.table.chosen[rows] == 0]
        if unseen.size:
            seen = rows[context.table.chosen[rows] > 0]
            others = context.rng.choice(seen, max(0, m - len(unseen)), replace=False)
            return Selection(np.sort(np.concatenate((unseen[:m], others))))
        tier_of = grown(state.of_row, len(context.table), NO_TIER)[rows]
        clients = np.bincount(tier_of[tier_of >= 0], minlength=self.tiers)
        can_play = clients >= self.m
        if not can_play.any():
            return Selection(np.sort(context.rng.choice(rows, m, replace=False)))
        has_credits = can_play & (state.credits > 0)
        weight = np.where(has_credits if has_credits.any() else can_play, state.weight, 0.0)
        tier = int(context.rng.choice(self.tiers, p=weight / weight.sum()))
        chosen = context.rng.choice(rows[tier_of == tier], m, replace=False)
        return Selection(np.sort(chosen), details={"tier": float(tier)})

    def _formed(self, state: Tiers, round: int, table: ClientTable, played: int | None) -> Tiers:
        """Newly formed tiers. They are weighted by their losses, unless the loss of the tier that played has fallen."""
        count = max(1, min(self.tiers, int((~table.retired).sum()) // self.m))
        of_row = quantile_tiers(table, count)
        known = np.isfinite(table.last_loss) & (of_row >= 0)
        members, losses = of_row[known], table.last_loss[known]
        with np.errstate(invalid="ignore"):
            loss = np.bincount(members, losses, self.tiers) / np.bincount(members, minlength=self.tiers)
        formed = replace(state, of_row=of_row, loss=loss, formed=round)
        if played is None or loss[played] < state.loss[played]:
            return formed
        greatest_first = np.argsort(-np.nan_to_num(loss, nan=-math.inf), kind="stable")
        weight = np.empty(self.tiers)
        weight[greatest_first] = np.maximum(np.arange(count, count - self.tiers, -1), 1)
        return replace(formed, weight=weight)
