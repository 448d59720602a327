"""Policies that classify newcomers, against drawn drifts alone: no network, no training, no latency; and their regret.

Regret is that of Fed-TS, Theorem 1: each round that an irrelevant newcomer is chosen costs Δ, by how much its chance of
a small drift is below that of the *critical* newcomer, the relevant one of its insertion with the least chance. So it
is regret against a player who knows who is relevant, and takes them and no other newcomer. The policy itself is called
every round, and classifies the drifts it is shown by its own threshold.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl.experiment.population.availability import Presence
from pausefl.experiment.population.simulated_drifts import DriftLaw
from pausefl.studies.simulation.engine import BLOCK, arrivals, refuse_disclosures, server_of
from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_server.clients import ClientTable
from pausefl_server.records import Observation, RoundRecord, Timing
from pausefl_server.rounds.attempt import attempt_record
from pausefl_server.rounds.choosing import chosen_in, context_of
from pausefl_server.selection.drift import two_means
from pausefl_server.selection.newcomers import NewcomerPolicy, is_original
from pausefl_server.state import RunState

_NO_TIME = Timing(round_trip_s=1.0)
"""Latency plays no part here, but a client table wants one above 0."""


@dataclass(frozen=True)
class DriftSetting:
    """The setting that a policy is simulated in."""

    laws: Mapping[str, DriftLaw]
    """Each client's drifts, by id. What is drawn for an original is the drift it would have as a newcomer."""
    presence: Presence
    seed: int = 1

    def drifts(self, rounds: int) -> Iterator[FloatArray]:
        """(K,) a round, in the order of the presence's ids; the same for every policy.

        ConfigError where a law draws something else.
        """
        ids = self.presence.client_ids
        rngs = [generator(self.seed, "drift", client_id) for client_id in ids]
        for start in range(0, rounds, BLOCK):
            n = min(BLOCK, rounds - start)
            yield from np.stack([_drawn(self.laws[i], rng, n) for i, rng in zip(ids, rngs, strict=True)], axis=1)


@dataclass(frozen=True)
class Insertion:
    """The n newcomers that joined before one round, and their rounds."""

    round: int
    client_ids: tuple[str, ...]
    small: FloatArray
    """(n,) each one's chance of a small drift, u_i."""
    relevant: BoolArray
    """(n,) whose mean drift is small; their chances exceed those of all irrelevant newcomers (Definition 1)."""
    chosen: BoolArray
    """(rounds, n)."""

    @property
    def critical(self) -> int | None:
        """The relevant newcomer with the least chance of a small drift; None unless there are both kinds."""
        if self.relevant.all() or not self.relevant.any():
            return None
        return int(np.where(self.relevant, self.small, np.inf).argmin())

    @property
    def gaps(self) -> FloatArray:
        """(n,) Δ of the irrelevant newcomers to the critical one, 0 for relevant ones."""
        if self.critical is None:
            return np.zeros(len(self.client_ids))
        return np.where(self.relevant, 0.0, self.small[self.critical] - self.small)

    @property
    def regret(self) -> FloatArray:
        """(rounds,) Σ of the Δ of those chosen."""
        regret: FloatArray = self.chosen @ self.gaps
        return regret

    def intervals(self) -> tuple[IntArray, FloatArray]:
        """Rounds and regret of each training interval I(m), m = 1, 2, ...; empty without a critical newcomer.

        I(m) is the rounds after the m-th selection of the critical newcomer, up to and with the (m + 1)-th.
        """
        if self.critical is None:
            return np.empty(0, np.int64), np.empty(0)
        selections = np.flatnonzero(self.chosen[:, self.critical])
        total = np.cumsum(self.regret)
        return np.diff(selections), np.diff(total[selections])


@dataclass(frozen=True)
class NewcomerResult:
    """The result of a simulation. Rounds are those simulated, in order."""

    insertions: tuple[Insertion, ...]
    """In the order they joined."""
    threshold: float
    """α with both centroids where the newcomers' mean drifts have theirs: small drifts are those up to it."""
    rounds: int
    state: Any
    """The policy's memory at the end."""
    table: ClientTable

    @property
    def regret(self) -> FloatArray:
        """(rounds,) of all insertions."""
        return sum((insertion.regret for insertion in self.insertions), np.zeros(self.rounds))


def simulate_newcomers(policy: NewcomerPolicy, setting: DriftSetting, rounds: int) -> NewcomerResult:
    """Run `policy` for so many rounds, one call of it a round.

    ConfigError for a policy that needs what clients disclose, and for drift laws under which no regret is defined.
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
            rows = chosen_in(context, state).rows
            chosen[t - 1, columns[rows]] = True
            state.after_round(_record(t, table, rows, drift[columns[rows]]))
    return _result(setting, table, state.policy_state, chosen[:, columns])


def _record(t: int, table: ClientTable, rows: IntArray, drift: FloatArray) -> RoundRecord:
    """The server's record of the round. Of an original who is alone nothing is known."""
    original = is_original(table, rows)
    measured = ~original | (original.sum() > 1)
    # `chr` asks for a cosine: it is shown the same draws, so that a small drift is a great cosine.
    observations = [
        Observation(
            client_id=table.ids[row],
            timing=_NO_TIME,
            latency_s=_NO_TIME.round_trip_s,
            n_examples=1,
            participation=0,
            epsilon=0.0,
            epsilon_spent=0.0,
            statistics={"drift": d, "cosine": 1 - d} if m else {},
        )
        for row, d, m in zip(rows.tolist(), drift.tolist(), measured.tolist(), strict=True)
    ]
    return attempt_record(t, 0, [table.ids[row] for row in rows.tolist()], observations)


def _result(setting: DriftSetting, table: ClientTable, state: Any, chosen: BoolArray) -> NewcomerResult:
    rows = np.flatnonzero(~is_original(table, np.arange(len(table))))
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
        method = f"{type(law).__module__}:{type(law).__name__}.sample"
        raise ConfigError(f"clients.groups: {method}: must return an array of {n} finite numbers")
    return drawn


def _refuse_contradiction(insertion: Insertion) -> None:
    """ConfigError where an irrelevant newcomer has no less a chance than the critical one, and regret could fall."""
    critical = insertion.critical
    if critical is None:
        return
    irrelevant = int(np.where(insertion.relevant, -np.inf, insertion.small).argmax())
    (name, chance), (other, least) = ((insertion.client_ids[i], insertion.small[i]) for i in (irrelevant, critical))
    if chance >= least:
        raise ConfigError(
            "clients.groups: these drift laws do not tell relevant from irrelevant newcomers: drifts of"
            f" {name} have the greater mean, yet are small with a chance of {chance:.3g}, {other} of {least:.3g}"
        )
