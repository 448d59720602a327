"""Fed-TS (Li, Yan and Ding): Thompson sampling of clients that join while training runs. Also UCB1 on its rewards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.number_types import Positive, Whole
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable, grown
from pausefl_server.selection.base import Context, Inspection
from pausefl_server.selection.drift import leave_one_out_drifts, path_drifts, two_means
from pausefl_server.selection.newcomers import NewcomerPolicy, is_original
from pausefl_server.selection.observed import PolicyRound

Centroids = Literal["kept", "rescaled", "restart"]
Guard = Literal["none", "leave-one-out"]


@dataclass(frozen=True)
class Posteriors:
    """Beta posteriors of each client's chance of a small drift, by row of the table. New rows may have no entry yet."""

    successes: IntArray
    """s − 1, the number of rounds in which the row's drift was small."""
    failures: IntArray
    """f − 1, the number of rounds in which it was not."""
    centroids: tuple[float, float] | None = None
    """The final centroids of the last two-means. None: the next one starts from its least and greatest drift."""
    originals_drift: float = 0.0
    """The mean drift of the originals in that round; 0 before the first."""

    @property
    def threshold(self) -> float | None:
        """α, the greatest drift that is small (Fed-TS, eq. (10)): the mean of the centroids. None without centroids."""
        return None if self.centroids is None else sum(self.centroids) / 2

    def counts(self, rows: IntArray, clients: int) -> tuple[IntArray, IntArray]:
        """s and f of Beta(s, f) for these rows of a table of `clients` rows. Rows without an entry have (1, 1)."""
        known = self.grown(clients)
        return 1 + known.successes[rows], 1 + known.failures[rows]

    def grown(self, clients: int) -> "Posteriors":
        """A copy with an entry for every row of a table of `clients` rows."""
        return replace(self, successes=grown(self.successes, clients), failures=grown(self.failures, clients))


@dataclass(frozen=True)
class FedTs(NewcomerPolicy):
    """Chooses from every insertion the p newcomers with the greatest samples of Beta(s, f) (Fed-TS, eq. (5)).

    A newcomer succeeds in a round if its drift is at most the threshold: the mean of the two centroids of all
    newcomers' drifts (eqs. (7)–(10)). A single drift succeeds; so do all if they lie on one side (see `centroids`).
    """

    drift_weight: Positive | None = None
    """ε, the weight of a newcomer beside the originals in eq. (8). Default: |S_o|, as the paper recommends."""
    search_after: Whole | None = None
    """L: once every present newcomer of an insertion was chosen more than L times, p becomes the number of them with
    s >= f (Alg. 3, with the printed sign of the skewness). Not set: p stays `newcomer_share` of them."""
    centroids: Centroids = "kept"
    """The start of two-means. "kept": the last round's centroids, as printed. "rescaled": these, multiplied by the
    change of the originals' mean drift since then; if all drifts are above the threshold, all fail. "restart": like
    "kept", but the least and the greatest drift after a round with all drifts on one side of the threshold."""
    guard: Guard = "none"
    """An extra check of newcomers. "leave-one-out": computes which drift each original would have as a newcomer among
    the others. A newcomer with a greater drift than all of these fails, and its update stays out of the model.
    Two-means alone finds a better half even if all newcomers are harmful. In a round with fewer than two originals'
    updates, no newcomer's update enters the model, and none is classified."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guard != "none" and self.m < 2:
            raise ValueError(f'guard = "{self.guard}": needs m of at least 2, as it compares originals with each other')

    def start(self) -> Posteriors:
        """The prior Beta(1, 1) for every client."""
        return Posteriors(np.empty(0, np.int64), np.empty(0, np.int64))

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection | None:
        """The drift of each client's update. An original gets the drift it would have as a newcomer among the others.

        There are no drifts if no original sent an update, and none for an original that is the only one.
        """
        original = is_original(table)[rows]
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
        original = is_original(table)[rows]
        if original.all() or (self.guard != "none" and not original.any()):
            return state
        originals_drift = float(drift[original].mean()) if original.any() else state.originals_drift
        small, centroids = self._classify(drift[~original], self._start(state, originals_drift))
        small &= self._within_guard(drift[~original], drift[original])
        counts, newcomers = state.grown(len(table)), rows[~original]
        counts.successes[newcomers[small]] += 1
        counts.failures[newcomers[~small]] += 1
        return replace(counts, centroids=centroids, originals_drift=originals_drift)

    def _promise(self, state: Posteriors, context: Context, newcomers: IntArray) -> FloatArray:
        successes, failures = state.counts(newcomers, len(context.table))
        return context.rng.beta(successes, failures)

    def _size(self, state: Posteriors, table: ClientTable, newcomers: IntArray) -> int:
        if self.search_after is None or (table.chosen[newcomers] <= self.search_after).any():
            return super()._size(state, table, newcomers)
        successes, failures = state.counts(newcomers, len(table))
        return int((successes >= failures).sum())

    def _start(self, state: Posteriors, originals_drift: float) -> tuple[float, float] | None:
        """The centroids from which two-means starts; None: the least and the greatest drift."""
        if self.centroids != "rescaled" or state.centroids is None or not state.originals_drift:
            return state.centroids
        low, high = state.centroids
        change = originals_drift / state.originals_drift
        return low * change, high * change

    def _classify(
        self, drift: FloatArray, start: tuple[float, float] | None
    ) -> tuple[BoolArray, tuple[float, float] | None]:
        """Whether each of n > 0 newcomers' drifts is small, (n,), and the centroids to remember."""
        if len(drift) == 1:
            return np.ones(1, np.bool_), start
        found = two_means(drift.tolist(), start or (drift.min(), drift.max()))
        small = drift <= sum(found) / 2
        on_one_side = small.all() or not small.any()
        small |= on_one_side and self.centroids != "rescaled"
        return small, None if on_one_side and self.centroids == "restart" else found

    def _within_guard(self, drift: FloatArray, originals_drift: FloatArray) -> BoolArray:
        """(n,), whether each drift passes the guard: all without a guard, none with fewer than two originals."""
        greatest = np.inf if self.guard == "none" else np.fmax.reduce(originals_drift, initial=-np.inf)
        within: BoolArray = drift <= greatest
        return within


@dataclass(frozen=True)
class DriftUcb(FedTs):
    """Chooses newcomers by UCB1 on Fed-TS's rewards (Auer, Cesa-Bianchi and Fischer, 2002).

    The index is the mean reward + sqrt(2 ln t / T_k). A chosen newcomer that gives no answer has reward 0.
    """

    centroids: Centroids = "rescaled"
    """See `centroids` of fed-ts. UCB1 often chooses harmful newcomers alone; with "kept", all of them would succeed."""

    def _promise(self, state: Posteriors, context: Context, newcomers: IntArray) -> FloatArray:
        successes, _ = state.counts(newcomers, len(context.table))
        chosen = context.table.chosen[newcomers]
        index = (successes - 1) / np.maximum(chosen, 1) + np.sqrt(2 * math.log(context.round) / np.maximum(chosen, 1))
        return np.where(chosen == 0, np.inf, index)
