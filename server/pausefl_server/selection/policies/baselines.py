"""Baselines: every client, m at random, the fastest, by data size, by loss, and by latency alone.

`Clustered` is Algorithm 1 of Fraboni, Vidal, Kameni and Lorenzi (ICML 2021), and `PowD` the power of choice of Cho,
Wang and Joshi (AISTATS 2022). `All` is FedAvg with full participation, with or without privacy.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.number_types import Count, NonNegative, PositiveShare, Whole
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.latency import Recent
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.terms import losses, rows_in_tie_order


@dataclass(frozen=True)
class All(Policy):
    """Chooses every eligible client, whatever m is."""

    needs_rounds: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        return Selection(context.eligible)


@dataclass(frozen=True)
class Random(Policy):
    """Chooses m of the eligible clients, uniformly, without replacement: PAUSE's first baseline."""

    def select(self, state: Any, context: Context) -> Selection:
        (rows,) = self.draws(context, [context.rng])
        return Selection(np.sort(rows))

    def draws(self, context: Context, rngs: Iterable[np.random.Generator]) -> Iterator[IntArray]:
        """The rows that each of these generators draws in this context."""
        rows = rows_in_tie_order(context)  # so that the draw does not depend on the order of rows
        return (rng.choice(rows, min(self.m, len(rows)), replace=False) for rng in rngs)


@dataclass(frozen=True)
class Fastest(Policy):
    """Chooses the m eligible clients with the least E[τ_k]: PAUSE's baseline that ignores leakage and data."""

    needs_oracle: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        """The m fastest eligible clients: the same in every round while these are eligible."""
        if context.oracle is None:
            raise ValueError("fastest needs the true mean latencies")
        rows = rows_in_tie_order(context)
        means = np.array([context.oracle.mean_latency_s[context.table.ids[row]] for row in rows.tolist()])
        return Selection(np.sort(rows[np.argsort(means, kind="stable")[: self.m]]))


@dataclass(frozen=True)
class Clustered(Policy):
    """Draws one client from each of m urns. A client is drawn m|D_k|/|D| times on average, so the choice is unbiased.

    The clients lie on a line, largest first, each as a segment of length m|D_k|. Urn r is the r-th stretch of length
    |D|. A client may lie in several urns. If it is drawn twice, it trains once and counts twice. Each draw weighs 1/m.
    """

    needs_rounds: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        """The clients drawn by this round's generator, one per urn."""
        if len(context.eligible) <= self.m:
            return Selection(context.eligible)
        (rows,) = self.draws(context, [context.rng])
        return Selection(np.sort(rows), weights=np.full(self.m, 1.0 / self.m))

    def draws(self, context: Context, rngs: Iterable[np.random.Generator]) -> Iterator[IntArray]:
        """The rows that each of these generators draws in this context, one per urn."""
        rows = rows_in_tie_order(context)
        sizes = context.table.n_examples[rows]
        largest_first = (-sizes).argsort(kind="stable")
        ends, urn = (self.m * sizes[largest_first]).cumsum(), int(sizes.sum())
        begins, rows = np.arange(self.m) * urn, rows[largest_first]
        return (rows[ends.searchsorted(begins + rng.integers(urn, size=self.m), side="right")] for rng in rngs)


@dataclass(frozen=True)
class PowD(Policy):
    """Draws d candidates with probabilities p_k = |D_k|/|D|, without replacement, and chooses the m of greatest loss.

    The model averages their updates uniformly, as in the paper: data size counts once, in the draw. Losses are those
    reported last, as in the paper's variant rpow-d, which asks candidates for nothing. A client that was never chosen
    has the greatest loss, as there.
    """

    d: Count = 10
    """The number of candidates in a round. It counts as m if m is greater."""

    needs_loss: ClassVar[bool] = True
    needs_rounds: ClassVar[bool] = True  # its weights are shares of one choice

    def select(self, state: Any, context: Context) -> Selection:
        """The m clients of greatest loss among the candidates, which this round's generator draws."""
        rows = rows_in_tie_order(context)
        sizes = np.maximum(context.table.n_examples[rows], 1)
        d = min(max(self.d, self.m), len(rows))
        candidates = rows[np.sort(context.rng.choice(len(rows), d, replace=False, p=sizes / sizes.sum()))]
        loss = np.nan_to_num(losses(context, candidates), nan=np.inf)
        chosen = np.sort(candidates[np.argsort(-loss, kind="stable")[: self.m]])
        return Selection(chosen, weights=np.full(len(chosen), 1.0 / len(chosen)))


@dataclass(frozen=True)
class Ucb(Policy):
    """Chooses unseen clients first, then those of greatest ucb (PAUSE v2, eq. (13)), after Xia et al. (IEEE TWC 2020).

    The index and the reward τ_min/τ are PAUSE's. A client that always misses has a mean reward of 0. Only exploration
    chooses it again, after its rest.
    """

    zeta: NonNegative = 1.0
    """ζ, the weight of the latency estimate against exploration."""
    discount: PositiveShare = 1.0
    """The weights of earlier measurements are multiplied by this factor each round. 1: the plain mean."""
    window: Whole = 0
    """Only the measurements of this many last rounds count. 0: the measurements of all rounds count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.as_pause()

    def start(self) -> Recent | None:
        return self.as_pause().start()

    def observe(self, state: Recent | None, record: PolicyRound, table: ClientTable) -> Recent | None:
        return self.as_pause().observe(state, record, table)

    def select(self, state: Recent | None, context: Context) -> Selection:
        """Unseen clients, then those of greatest ucb. Ties are broken by the tie key.

        PAUSE's search is not used. To PAUSE, sets with the same least ucb are equal, even if other ucb differ.
        """
        if len(context.eligible) <= self.m:
            return Selection(context.eligible)
        choice = self.as_pause().choice(state, context)
        seen = context.table.chosen[choice.rows] > 0
        positions = np.lexsort((-choice.ucb, seen))[: self.m]
        return Selection(np.sort(choice.rows[positions]), details={"energy": choice.finite().energy(positions)})

    def as_pause(self) -> Pause:
        """The PAUSE policy that computes the index, with α = γ = 0, so that only latency counts."""
        return Pause(self.m, alpha=0.0, gamma=0.0, zeta=self.zeta, discount=self.discount, window=self.window)
