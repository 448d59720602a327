"""PAUSE: privacy-aware active user selection (PAUSE v2, Algorithm 1), solved exactly under the rewards R1 and R2."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.number_types import Count, NonNegative, PositiveShare, Whole
from pausefl_server.clients import ClientTable
from pausefl_server.search import convex_pivot_and_fill, pivot_and_fill
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.latency import Recent, mean_and_count, remember
from pausefl_server.selection.observed import PolicyRound
from pausefl_server.selection.terms import generalisation, privacy, rows_in_tie_order, upper_confidence


@dataclass(frozen=True)
class Choice:
    """The optimisation problem of one round: the best m of n candidates, which must include the forced positions.

    Arrays have shape (n,). Position i is table row rows[i]; rows are in tie order.
    """

    m: int
    rows: IntArray
    ucb: FloatArray
    g: FloatArray
    p: FloatArray
    value: FloatArray
    """v_k = (α g_k + γ p_k)/m."""
    cluster: IntArray
    marginal: FloatArray
    """The cost of the first, second, ... member of a cluster. The last cost holds for all further members."""
    forced: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def energy(self, chosen: IntArray) -> float:
        """The objective of eq. (14) for the set at these positions."""
        return float(self.ucb[chosen].min()) + self.worth(chosen)

    def worth(self, chosen: IntArray) -> float:
        """αΦ_g + γΦ_p of the set at these positions."""
        return float(self.value[chosen].sum()) - self.penalty(chosen)

    def penalty(self, chosen: IntArray) -> float:
        """α times the cluster term of Φ_g, eq. (22), of the set at these positions."""
        if not self.marginal.any():
            return 0.0
        _, counts = np.unique(self.cluster[chosen], return_counts=True)
        return float(self._costs[counts - 1].sum())

    @cached_property
    def _costs(self) -> FloatArray:
        """The cost of a cluster with 1, 2, ... chosen members, (m or more,). Annealing may ask for it at every step."""
        return np.cumsum(np.pad(self.marginal, (0, self.m), mode="edge"))

    def finite(self) -> "Choice":
        """The same problem with great finite numbers for infinite ucb: sets keep their order, and energies subtract."""
        infinite = np.isinf(self.ucb)
        if not infinite.any():
            return self
        known = self.ucb[~infinite]
        above = known.max() if len(known) else 0.0
        beyond_any_gain = 1.0 + self.m * (np.ptp(self.value) + float(self.marginal[-1]))
        return replace(self, ucb=np.where(infinite, above + beyond_any_gain, self.ucb))

    def exact(self) -> IntArray:
        """The positions of an optimal set."""
        if not self.marginal.any():
            return pivot_and_fill(self.ucb, self.value, self.m, self.forced)
        return convex_pivot_and_fill(self.ucb, self.value, self.m, self.cluster, self.marginal, self.forced)


@dataclass(frozen=True)
class Pause(Policy):
    """Chooses argmax over |S| = m of min_S ucb + α Φ_g + γ Φ_p (PAUSE v2, eq. (14)), exactly.

    Unseen clients (T_k = 0) go first, up to m of them by greatest value. The rest of the set is the optimum given
    these. A miss is a censored measurement, so every client that was ever chosen has a finite ucb.

    In an asynchronous run, S has as many idle clients as places are free. Equations (8) and (13) then count C jobs as a
    round and use m = C.
    """

    alpha: NonNegative = 100.0
    """α, the weight of the generalisation term."""
    gamma: NonNegative = 5.0
    """γ, the weight of the privacy term."""
    beta: Annotated[float, Gt(1)] = 2.0
    """β > 1, the exponent of g_k, eq. (8)."""
    zeta: NonNegative = 1.0
    """ζ, the weight of the latency estimate against exploration, eq. (13)."""
    reward: Literal["R1", "R2"] = "R1"
    """R1: means of g and p over the set, eq. (18). R2: also a price on clients sharing an access point, eq. (22)."""
    clusters: Count | dict[str, int] = 6
    """R2: the number of random clusters (access points), or a table: client id = number of its cluster, from 0."""
    rho: float | list[float] = 0.01
    """R2: ρ, the price of each member of a cluster beyond the first, or a list of prices of the second, third, ...
    member. A list must not decrease. Its last price holds for all further members. No paper states ρ. With α = 100, the
    default makes a shared access point cost as much as the whole range of the latency term, which is 1."""
    delta_tau_s: NonNegative = 0.0
    """R2: δ_τ in seconds, logged in its own column for each member beyond the first. It is never added to a latency."""
    discount: PositiveShare = 1.0
    """The weights of earlier measurements are multiplied by this factor each round. 1: the plain mean of eq. (11)."""
    window: Whole = 0
    """Only the measurements of this many last rounds count. 0: the measurements of all rounds count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for client_id, cluster in self.clusters.items() if isinstance(self.clusters, dict) else ():
            if cluster < 0:  # negative numbers stand for clients without a cluster
                raise ValueError(f"clusters.{client_id} = {cluster}: must be at least 0")
        prices = np.atleast_1d(np.asarray(self.rho, np.float64))
        if prices.size == 0 or not np.isfinite(prices).all() or prices[0] < 0 or (np.diff(prices) < 0).any():
            raise ValueError(f"rho = {self.rho}: must be finite, at least 0 and, where it is a list, non-decreasing")
        if self.window and self.discount != 1:
            raise ValueError(f"window = {self.window}: must be 0 where discount is not 1")

    @property
    def is_plain(self) -> bool:
        """Whether the choice is eq. (14) under R1 with the plain mean of eq. (11): compiled rounds support only this.

        A subclass is plain too, unless it overrides one of the steps of the choice (`_STEPS`).
        """
        overridden = any(getattr(type(self), step) is not getattr(Pause, step) for step in _STEPS)
        return not overridden and self.reward == "R1" and not self.window and self.discount == 1

    @property
    def greatest_penalty(self) -> float:
        """α times the cluster term of Φ_g, eq. (22), of m clients that all share one cluster; 0 under R1."""
        return float(np.pad(self._marginal(), (0, self.m), mode="edge")[: self.m].sum())

    def warm_up(self) -> None:
        rows, zeros = np.arange(3), np.zeros(3)
        Choice(2, rows, zeros, zeros, zeros, zeros, np.zeros(3, np.int64), self._marginal()).exact()

    def check_clients(self, client_ids: Sequence[str], at_once: int) -> None:
        """Raise ValueError if `clusters` names an unknown client."""
        named = self.clusters.keys() if isinstance(self.clusters, dict) else set()
        if unknown := sorted(named - set(client_ids)):
            raise ValueError(f"clusters.{unknown[0]}: must be the id of a client, such as {client_ids[0]}")

    def start(self) -> Recent | None:
        """The empty state of a mean that forgets. None for the plain mean, which the client table holds."""
        return Recent() if self.window or self.discount < 1 else None

    def observe(self, state: Recent | None, record: PolicyRound, table: ClientTable) -> Recent | None:
        """The state with the round's latencies; None for the plain mean."""
        return state and remember(state, record, table, self.discount, self.window)

    def select(self, state: Recent | None, context: Context) -> Selection:
        """Unseen clients first, then the optimum of eq. (14)."""
        rows = context.eligible
        details: dict[str, float] = {}
        if len(rows) > self.m:
            choice = self.choice(state, context)
            positions, details = self._search(choice, context)
            rows = np.sort(choice.rows[positions])
        if self.reward == "R1":
            return Selection(rows, details=details)
        # The number of members that share a cluster with an earlier member.
        shared = len(rows) - len(np.unique(cluster_of(context.table, rows, self.clusters)))
        details = {**details, "cluster_crowding": float(shared)}
        return Selection(rows, details=details, cluster_penalty_s=self.delta_tau_s * shared)

    def choice(self, state: Recent | None, context: Context) -> Choice:
        """The problem of this round. Candidates are all clients, or only the unseen ones if these fill the round."""
        rows = rows_in_tie_order(context)
        unseen = np.flatnonzero(context.table.chosen[rows] == 0)
        if len(unseen) >= self.m:
            # All their latencies are unknown. With a constant ucb, the value decides, and energies stay finite.
            return replace(self._among(state, context, rows[unseen]), ucb=np.zeros(len(unseen)))
        return replace(self._among(state, context, rows), forced=unseen)

    def _among(self, state: Recent | None, context: Context, rows: IntArray) -> Choice:
        g = generalisation(context, rows, context.concurrency or self.m, self.beta)
        p = privacy(context, rows)
        one = np.zeros(len(rows), np.int64)
        return Choice(
            m=self.m,
            rows=rows,
            ucb=self._index(state, context, rows),
            g=g,
            p=p,
            value=(self.alpha * g + self.gamma * p) / self.m,
            cluster=cluster_of(context.table, rows, self.clusters) if self.reward == "R2" else one,
            marginal=self._marginal(),
        )

    def _marginal(self) -> FloatArray:
        """The cost of the first, second, ... member of a cluster: 0, then λ = αρ."""
        return self.alpha * np.append(0.0, self.rho) if self.reward == "R2" else np.zeros(1)

    def _index(self, state: Recent | None, context: Context, rows: IntArray) -> FloatArray:
        """ucb_k of eq. (13). With a forgetful mean, its ln t counts only the rounds that the mean still remembers."""
        mean, count = mean_and_count(context, rows, state)
        at_once, rounds = context.concurrency or self.m, context.rounds_before
        if state is not None:  # a round has m measurements; a step, to which `window` and `discount` apply, fewer
            rounds = min(rounds, float(state.weight.sum()) / at_once)
        return upper_confidence(mean, count, rounds, at_once, self.zeta)

    def _search(self, choice: Choice, context: Context) -> tuple[IntArray, dict[str, float]]:
        """The positions of the chosen set, and numbers to log about it."""
        positions = choice.exact()
        return positions, {"energy": choice.finite().energy(positions)}


def cluster_of(table: ClientTable, rows: IntArray, clusters: int | Mapping[str, int]) -> IntArray:
    """The cluster of each row, (n,) int64.

    A number R assigns each client to one of R clusters at random, by the table's hash of (seed, client id). So the
    assignment never changes, and clients that join later have one too. A mapping gives the cluster of each client id,
    from 0. A client that is not in the mapping is alone in its cluster.
    """
    if isinstance(clusters, int):
        return table.tie_key[rows] % clusters
    alone = -1 - rows
    return np.array([clusters.get(table.ids[row], own) for row, own in zip(rows, alone, strict=True)], np.int64)


_STEPS = ("start", "observe", "select", "choice", "_among", "_index", "_marginal", "_search")
"""The methods that together make PAUSE's choice."""
