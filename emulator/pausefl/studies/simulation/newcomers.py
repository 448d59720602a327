"""Simulates policies that classify newcomers, on drawn drifts only: no network, no training, no latency.

Regret is that of Fed-TS, Theorem 1. Each time an irrelevant newcomer is chosen costs Δ: the difference between its
chance of a small drift and that of the *critical* newcomer. The critical newcomer is the relevant one of the same
insertion with the least chance. So regret is measured against a player that chooses all relevant newcomers and no
other. The policy itself is called every round and classifies the drifts that it receives by its own threshold.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from pausefl.experiment.population.availability import Presence
from pausefl.experiment.population.simulated_drifts import DriftLaw
from pausefl.studies.simulation.engine import BLOCK, arrivals, refuse_disclosures, server_of
from pausefl.studies.simulation.steps import answer
from pausefl_process.plugins import name_of
from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_server.clients import ClientTable
from pausefl_server.records import RoundRecord
from pausefl_server.rounds.attempt import attempt_record
from pausefl_server.rounds.choosing import choose, context_of
from pausefl_server.selection.drift import two_means
from pausefl_server.selection.newcomers import NewcomerPolicy, is_original
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

_DUMMY_S = 1.0
"""A dummy latency: it has no influence here, but a client table needs one above 0."""


@dataclass(frozen=True)
class DriftSetting:
    """The clients and their drift laws that a policy is simulated with."""

    laws: Mapping[str, DriftLaw]
    """The law of each client's drift, by client id. An original's drift is the one that it would have as a newcomer."""
    presence: Presence
    seed: int = 1

    def __post_init__(self) -> None:
        for law in self.laws.values():
            if not (isinstance(mean := getattr(law, "mean", None), Real) and math.isfinite(mean)):
                raise ConfigError(f"clients.groups: {name_of(law)}.mean = {mean}: must be a finite number")
            if not 0 <= (share := law.share_up_to(float(mean))) <= 1:
                raise ConfigError(f"clients.groups: {name_of(law)}.share_up_to: returned {share}, no probability")

    def drifts(self, rounds: int) -> Iterator[FloatArray]:
        """The drifts of each round, (K,), in the order of the presence's ids. They are the same for every policy.

        ConfigError if a law draws anything but finite numbers.
        """
        ids = self.presence.client_ids
        rngs = [generator(self.seed, "drift", client_id) for client_id in ids]
        for start in range(0, rounds, BLOCK):
            n = min(BLOCK, rounds - start)
            yield from np.stack([_drawn(self.laws[i], rng, n) for i, rng in zip(ids, rngs, strict=True)], axis=1)


@dataclass(frozen=True)
class Insertion:
    """The n newcomers that joined before the same round, and the rounds in which they were chosen."""

    round: int
    client_ids: tuple[str, ...]
    small: FloatArray
    """(n,) the chance u_i that a newcomer's drift is small."""
    relevant: BoolArray
    """(n,) whether a newcomer's mean drift is small. Their u_i exceed those of irrelevant newcomers (Definition 1)."""
    chosen: BoolArray
    """(rounds, n) whether a newcomer was chosen in a round."""

    @property
    def critical(self) -> int | None:
        """The index of the relevant newcomer with the least u_i; None unless there are relevant and irrelevant ones."""
        if self.relevant.all() or not self.relevant.any():
            return None
        return int(np.where(self.relevant, self.small, np.inf).argmin())

    @property
    def gaps(self) -> FloatArray:
        """(n,) Δ: for an irrelevant newcomer, the critical one's u_i minus its own; 0 for a relevant newcomer."""
        if self.critical is None:
            return np.zeros(len(self.client_ids))
        return np.where(self.relevant, 0.0, self.small[self.critical] - self.small)

    @property
    def regret(self) -> FloatArray:
        """(rounds,) the sum of Δ over the newcomers chosen in each round."""
        return self.chosen @ self.gaps

    def intervals(self) -> tuple[IntArray, FloatArray]:
        """The number of rounds and the regret of each training interval I(m), m = 1, 2, ...

        I(m) holds the rounds after the m-th selection of the critical newcomer, up to and including the (m + 1)-th.
        Without a critical newcomer, both arrays are empty.
        """
        if self.critical is None:
            return np.empty(0, np.int64), np.empty(0)
        selections = np.flatnonzero(self.chosen[:, self.critical])
        return np.diff(selections), np.diff(np.cumsum(self.regret)[selections])


@dataclass(frozen=True)
class NewcomerResult:
    """The result of a simulation. Arrays by round hold the simulated rounds in order."""

    insertions: tuple[Insertion, ...]
    """The insertions in the order in which they joined."""
    threshold: float
    """α, computed from the newcomers' mean drifts by two-means. Drifts up to it are small. NaN without newcomers."""
    rounds: int
    state: Any
    """The policy's state at the end."""
    table: ClientTable

    @property
    def regret(self) -> FloatArray:
        """(rounds,) the regret of each round, summed over all insertions."""
        return sum((insertion.regret for insertion in self.insertions), np.zeros(self.rounds))


def simulate_newcomers(policy: NewcomerPolicy, setting: DriftSetting, rounds: int) -> NewcomerResult:
    """Simulate `policy` for `rounds` rounds, calling it once per round.

    ConfigError for a policy that needs clients' disclosures, and for drift laws under which no regret is defined.
    """
    refuse_disclosures(policy)
    server, state = server_of(tau_min_s=1.0, seed=setting.seed), RunState.start(policy, setting.seed, tau_min_s=1.0)
    table = state.table
    column_of = {client_id: column for column, client_id in enumerate(setting.presence.client_ids)}
    columns, chosen = np.empty(0, np.int64), np.zeros((rounds, len(column_of)), np.bool_)
    for t, drift in enumerate(setting.drifts(rounds), start=1):
        state.before_round(t, arrivals(setting.presence, t))
        if len(columns) < len(table):
            columns = np.array([column_of[client_id] for client_id in table.ids])
        context = context_of(server, state, None, t, 0)
        if context.eligible.size:
            rows = choose(context, state).rows
            chosen[t - 1, columns[rows]] = True
            state.after_round(_record(t, state, server, rows, drift[columns[rows]]))
    return _result(setting, table, state.policy_state, chosen[:, columns])


def _record(t: int, state: RunState, server: ServerSettings, rows: IntArray, drift: FloatArray) -> RoundRecord:
    """The server's record of the round. A single original has no drift, as there is no other to compare it with."""
    original = is_original(state.table)[rows]
    measured = ~original | (original.sum() > 1)
    # The policy `chr` needs a cosine. It is 1 − drift, so that a small drift is a great cosine.
    observations = [
        replace(answer(state, row, _DUMMY_S, _DUMMY_S, server), statistics={"drift": d, "cosine": 1 - d} if m else {})
        for row, d, m in zip(rows.tolist(), drift.tolist(), measured.tolist(), strict=True)
    ]
    return attempt_record(t, 0, [state.table.ids[row] for row in rows.tolist()], observations)


def _result(setting: DriftSetting, table: ClientTable, state: Any, chosen: BoolArray) -> NewcomerResult:
    rows = np.flatnonzero(~is_original(table))
    means = np.array([setting.laws[table.ids[row]].mean for row in rows])
    threshold = sum(two_means(means.tolist(), (means.min(), means.max()))) / 2 if rows.size else np.nan
    insertions = []
    for joined in np.unique(table.joined_round[rows]):
        of_it = table.joined_round[rows] == joined
        ids = tuple(table.ids[row] for row in rows[of_it])
        small = np.array([setting.laws[client_id].share_up_to(threshold) for client_id in ids])
        insertion = Insertion(int(joined), ids, small, means[of_it] <= threshold, chosen[:, rows[of_it]])
        _refuse_contradiction(insertion)
        insertions.append(insertion)
    return NewcomerResult(tuple(insertions), float(threshold), len(chosen), state, table)


def _drawn(law: DriftLaw, rng: np.random.Generator, n: int) -> FloatArray:
    drawn = law.sample(rng, n)
    is_numeric = isinstance(drawn, np.ndarray) and drawn.dtype.kind in "iuf"
    if not (is_numeric and drawn.shape == (n,) and np.isfinite(drawn).all()):
        raise ConfigError(f"clients.groups: {name_of(law)}.sample: must return an array of {n} finite numbers")
    return drawn


def _refuse_contradiction(insertion: Insertion) -> None:
    """Raise ConfigError if an irrelevant newcomer's chance is not below the critical one's: regret could then fall."""
    if (critical := insertion.critical) is None:
        return
    irrelevant = int(np.where(insertion.relevant, -np.inf, insertion.small).argmax())
    name, chance = insertion.client_ids[irrelevant], insertion.small[irrelevant]
    other, least = insertion.client_ids[critical], insertion.small[critical]
    if chance >= least:
        raise ConfigError(
            "clients.groups: these drift laws do not tell relevant from irrelevant newcomers: drifts of"
            f" {name} have the greater mean, yet are small with a chance of {chance:.3g}, {other} of {least:.3g}"
        )
