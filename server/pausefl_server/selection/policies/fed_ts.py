"""Fed-TS (Li, Yan and Ding): Thompson sampling of clients that join while training runs; and UCB on its rewards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.selection.base import Context, Inspection
from pausefl_server.selection.drift import leave_one_out_drifts, path_drifts, two_means
from pausefl_server.selection.newcomers import NewcomerPolicy, is_original
from pausefl_server.selection.observed import PolicyRound

Guard = Literal["none", "leave-one-out"]


@dataclass(frozen=True)
class Posteriors:
    """What is known of the clients' chances of a small drift. Rows count as in the table; later rows have no entry."""

    successes: IntArray
    """s − 1: how often a row's drift was small."""
    failures: IntArray
    """f − 1: how often it was not."""
    centroids: tuple[float, float] | None = None
    """Of the last round with drifts; None: the next one starts from its least and greatest drift."""

    @property
    def threshold(self) -> float | None:
        """α, up to which a drift is small (Fed-TS, eq. (10)): the mean of the centroids; None without them."""
        return None if self.centroids is None else _threshold(self.centroids)

    def counts(self, rows: IntArray, clients: int) -> tuple[IntArray, IntArray]:
        """s and f of Beta(s, f) for these rows of a table of so many clients, from (1, 1)."""
        grown = self.grown(clients)
        return 1 + grown.successes[rows], 1 + grown.failures[rows]

    def grown(self, clients: int) -> "Posteriors":
        """The same with an entry (a copy) for every row."""
        new = np.zeros(clients - len(self.successes), np.int64)
        return Posteriors(np.concatenate((self.successes, new)), np.concatenate((self.failures, new)), self.centroids)


@dataclass(frozen=True)
class FedTs(NewcomerPolicy):
    """Takes of every insertion the p newcomers with the greatest samples of Beta(s, f) (Fed-TS, eq. (5)).

    A newcomer succeeds in a round when its drift is at most the mean of the centroids of all newcomers' drifts
    (eqs. (7)–(10)); a single drift counts as a success, and so do all where two-means finds but one cluster, after
    which it starts afresh.
    """

    drift_weight: float | None = None
    """ε, the weight of a newcomer among the originals in eq. (8); |S_o| unless said otherwise, as recommended."""
    search_after: int | None = None
    """L: once every newcomer of an insertion who is there was chosen more often than this, its p is the number of
    those with s >= f (Alg. 3, by the printed sign of the skewness). None: no search."""
    guard: Guard = "none"
    """ "leave-one-out": a newcomer whose drift exceeds the greatest one an original would have as a newcomer among
    the other originals fails, and its update stays out of the model. Two-means alone finds a better half even among
    newcomers who are all harmful. In a round with fewer than two originals' updates there is no comparison: no
    newcomer's enters the model, and none is classified."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drift_weight is not None and not (math.isfinite(self.drift_weight) and self.drift_weight > 0):
            raise ValueError(f"drift_weight = {self.drift_weight}: must be a finite number above 0")
        if self.search_after is not None and self.search_after < 0:
            raise ValueError(f"search_after = {self.search_after}: must be at least 0")
        if self.guard not in get_args(Guard):
            raise ValueError(f"guard = {self.guard!r}: must be one of {', '.join(get_args(Guard))}")
        if self.guard != "none" and self.m < 2:
            raise ValueError(f'guard = "{self.guard}": needs m of at least 2, as it compares originals with each other')

    def start(self) -> Posteriors:
        """Beta(1, 1), the prior, for every client."""
        return Posteriors(np.empty(0, np.int64), np.empty(0, np.int64))

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection | None:
        """The drift of everyone: of an original, the one it would have as a newcomer among the others.

        No drift without an original's update, and none for an original who is alone.
        """
        original = is_original(table, rows)
        originals = [update for update, is_one in zip(updates, original, strict=True) if is_one]
        newcomers = [update for update, is_one in zip(updates, original, strict=True) if not is_one]
        if not originals:
            return None if self.guard == "none" else Inspection([{}] * len(rows), original)
        drift = np.full(len(rows), np.nan)
        drift[~original] = path_drifts(originals, newcomers, self.drift_weight)
        if len(originals) > 1:
            drift[original] = leave_one_out_drifts(originals, self.drift_weight)
        admitted = original | self._within_guard(drift, drift[original])
        return Inspection([{} if math.isnan(d) else {"drift": float(d)} for d in drift], admitted)

    def observe(self, state: Posteriors, record: PolicyRound, table: ClientTable) -> Posteriors:
        """Classify the drifts and count successes and failures (Fed-TS, eqs. (6) and (7), Alg. 2 with k certain)."""
        measured = [o for o in record.observations if "drift" in o.statistics]
        rows = table.rows(o.client_id for o in measured)
        drift = np.array([o.statistics["drift"] for o in measured])
        original = is_original(table, rows)
        if original.all() or (self.guard != "none" and not original.any()):
            return state
        small, centroids = _classify(drift[~original], state.centroids)
        small &= self._within_guard(drift[~original], drift[original])
        grown, newcomers = state.grown(len(table)), rows[~original]
        grown.successes[newcomers[small]] += 1
        grown.failures[newcomers[~small]] += 1
        return Posteriors(grown.successes, grown.failures, centroids)

    def _promise(self, state: Posteriors, context: Context, newcomers: IntArray) -> FloatArray:
        successes, failures = state.counts(newcomers, len(context.table))
        return context.rng.beta(successes, failures)

    def _size(self, state: Posteriors, table: ClientTable, newcomers: IntArray) -> int:
        if self.search_after is None or (table.chosen[newcomers] <= self.search_after).any():
            return super()._size(state, table, newcomers)
        successes, failures = state.counts(newcomers, len(table))
        return int((successes >= failures).sum())

    def _within_guard(self, drift: FloatArray, originals_drift: FloatArray) -> BoolArray:
        """(n,) which drifts an original might have too: all without a guard, with one and no two originals none."""
        if self.guard == "none":
            return np.ones(len(drift), np.bool_)
        if not np.isfinite(originals_drift).any():
            return np.zeros(len(drift), np.bool_)
        within: BoolArray = drift <= originals_drift.max()
        return within


@dataclass(frozen=True)
class DriftUcb(FedTs):
    """Takes newcomers by UCB1 on Fed-TS's rewards (Auer, Cesa-Bianchi and Fischer, 2002).

    The index is the mean reward + sqrt(2 ln t / T_k).

    A round in which a newcomer was chosen and gave no answer counts as one without reward.
    """

    def _promise(self, state: Posteriors, context: Context, newcomers: IntArray) -> FloatArray:
        table = context.table
        successes, _ = state.counts(newcomers, len(table))
        chosen = table.chosen[newcomers]
        index = (successes - 1) / np.maximum(chosen, 1) + np.sqrt(2 * math.log(context.round) / np.maximum(chosen, 1))
        return np.where(chosen == 0, np.inf, index)


def _classify(drift: FloatArray, centroids: tuple[float, float] | None) -> tuple[BoolArray, tuple[float, float] | None]:
    """Which of n > 0 newcomers' drifts are small, and the centroids the next round starts from."""
    everyone = np.ones(len(drift), np.bool_)
    if len(drift) == 1:
        return everyone, centroids
    found = two_means(drift.tolist(), centroids or (drift.min(), drift.max()))
    small = drift <= _threshold(found)
    return (small, found) if small.any() and not small.all() else (everyone, None)


def _threshold(centroids: tuple[float, float]) -> float:
    return sum(centroids) / 2
