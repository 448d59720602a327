"""Policy and latencies only, no network and no training: regret, reward, leakage and selections over many rounds.

Regret is counted as in PAUSE v2, eq. (15), with the genie of eq. (10) asked every round *on the policy's own history*:
g and p are those the policy's past choices led to. Both sets meet the same latency draws of that round.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeGuard

import numpy as np

from pausefl.delays import Delay, known_means, sampled_delays
from pausefl.population.availability import Presence
from pausefl.simulation import kernel
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.rounds.backoff import selectable_rows
from pausefl_server.rounds.deadline import LEAST_S, derived_deadline_s
from pausefl_server.selection import Context, Oracle, Policy, Selection, checked
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_server.selection.policies.ucb import Ucb

BLOCK = 4096
"""Rounds whose latencies are drawn at once."""


@dataclass(frozen=True)
class Setting:
    """What a policy is simulated in."""

    laws: Mapping[str, Delay]
    """Each client's latency law, by id."""
    examples: Mapping[str, int]
    """|D_k| by id."""
    tau_min_s: float
    budget: Budget | None = None
    seed: int = 1
    presence: Presence | None = None
    """Who is there in which round; None: everyone, always."""
    deadline_s: float | None = math.inf
    """How long a round waits, in the laws' seconds; None: as the server derives it (`pausefl_server.rounds.deadline`).
    A client that takes longer misses it; the policy learns no more than that."""
    time_scale: float = 1.0
    """Real seconds for one of the laws' seconds: a server derives its deadlines from real seconds."""
    rest_rounds_max: int = 64
    """The longest rest after misses in a row, in rounds (`pausefl_server.rounds.backoff`)."""
    latency_seed: int | None = None
    """Of the latencies alone; None: `seed`."""
    examples_max: int | None = None
    """The greatest |D_k| that counts; None: 5 times the median of the connected clients'."""
    weight_share_max: float = 1.0
    """The greatest share of the data that one client counts for."""

    @cached_property
    def oracle(self) -> Oracle:
        """The truth about the laws, whatever the deadline."""
        return Oracle(*known_means(self.laws, self.tau_min_s))

    def waits_s(self, table: ClientTable, rows: IntArray) -> float:
        """How long a round with these rows waits."""
        if self.deadline_s is not None:
            return self.deadline_s
        return derived_deadline_s(table, rows, time_scale=self.time_scale) / self.time_scale

    @property
    def least_wait_s(self) -> float:
        """What any round waits at least."""
        return LEAST_S / self.time_scale if self.deadline_s is None else self.deadline_s

    def latencies_s(self, rounds: int) -> Iterator[FloatArray]:
        """Blocks of (n, K) draws, columns in the order of the sorted ids; the same for every policy."""
        ids = sorted(self.laws)
        seed = self.seed if self.latency_seed is None else self.latency_seed
        rngs = [generator(seed, "simulate", client_id) for client_id in ids]
        for start in range(0, rounds, BLOCK):
            n = min(BLOCK, rounds - start)
            yield np.stack(
                [sampled_delays(self.laws[i], rng, n, start + 1) for i, rng in zip(ids, rngs, strict=True)], axis=1
            )


@dataclass(frozen=True)
class SimulationResult:
    """Curves at the recorded rounds, (n,), and totals. Regret is NaN where a set's size is not m."""

    client_ids: tuple[str, ...]
    round: IntArray
    """The recorded rounds, ascending; the last one is the last of the run."""
    regret: FloatArray
    """Σ r(G_t) − r(S_t) so far (eq. (15)), realised."""
    genie_regret: FloatArray
    """The same in the objective the genie maximises (eq. (10)), min μ in place of min τ_min/τ: never falls."""
    reward: FloatArray
    """Σ r(S_t, t) so far (eq. (9))."""
    total_latency_s: FloatArray
    """Σ over rounds of the greatest latency (eq. (3)); a miss costs the deadline."""
    max_epsilon_spent: FloatArray
    """The greatest leakage of any client; 0 without privacy."""
    chosen: IntArray
    """(K,) how often each client was chosen, in the order of client_ids."""
    cluster_penalty_s: float = 0.0
    """Σ of R2's δ_τ terms, apart from total_latency_s."""
    missed: IntArray | None = None
    """(K,) how often each client missed its round; None where no deadline was passed."""


def simulate(
    policy: Policy,
    setting: Setting,
    rounds: int,
    *,
    with_regret: bool = True,
    watch: Callable[[Selection], object] | None = None,
) -> SimulationResult:
    """Run `policy` for `rounds` rounds, one call of it a round, against the genie that weighs as it does.

    Ends early, at the last recorded round, if every client's budget has retired it; a round without clients passes.

    Without regret, or where no genie weighs as the policy does, reward and both regrets are NaN, and a policy that
    needs no oracle costs no expectation of a law. `watch` is shown every selection. ConfigError for a policy that needs
    what clients disclose, or chooses what cannot be played.
    """
    refuse_disclosures(policy)
    genie = genie_of(policy) if with_regret else None
    table, state = ClientTable(setting.seed, setting.tau_min_s, setting.examples_max), policy.start()
    ids, presence = sorted(setting.laws), setting.presence or Presence.of_all(sorted(setting.laws))
    curves, penalty_s, t = _Curves(rounds), 0.0, 0
    for block in setting.latencies_s(rounds):
        for of_ids in block:
            t += 1
            table.apply_events(arrivals(presence, t, setting.examples), t)
            latency_s = of_ids[np.searchsorted(ids, table.ids)] if setting.presence else of_ids
            context = Context(
                round=t,
                table=table,
                eligible=selectable_rows(table, t, policy.m, setting.rest_rounds_max),
                rng=generator(setting.seed, "selection", t, 0),
                epsilon_budget=setting.budget.epsilon_budget if setting.budget else None,
                oracle=setting.oracle if policy.needs_oracle else None,
                clock=time.monotonic,
                weight_share_max=setting.weight_share_max,
            )
            if len(table) == len(ids) and table.retired.all():
                return curves.result(table, penalty_s)
            if not context.eligible.size:
                curves.add(t, np.zeros((1, 4)), np.array([table.epsilon_spent.max()]))
                continue
            selection = checked(policy.select(state, context), context)
            if watch:
                watch(selection)
            unrested = replace(context, oracle=setting.oracle, eligible=table.eligible())
            problem = genie.choice(None, unrested) if genie else None
            deadline_s = setting.waits_s(table, selection.rows)
            gained = _gained(selection, problem, setting, latency_s, deadline_s)
            record = _record(t, selection, latency_s, table, setting, deadline_s)
            table.apply_round(record)
            table.apply_events(releases_of_misses(record, table, setting.budget), t)
            _retire(table, setting.budget, selection.rows)
            state = policy.observe(state, seen_by_policy(record), table)
            penalty_s += selection.cluster_penalty_s
            curves.add(t, gained[None], np.array([table.epsilon_spent.max()]))
    return curves.result(table, penalty_s)


def simulate_pause(policy: Pause, setting: Setting, rounds: int) -> SimulationResult:
    """`simulate` for plain PAUSE under R1, compiled: some hundred times faster, the same numbers.

    Where a latency passes the deadline, `simulate` plays all rounds instead. ValueError for any other policy or for
    options the compiled rounds do not know.
    """
    if not is_compiled(policy, setting):
        raise ValueError("only pause with R1, a plain mean, m <= K, everyone there, no floor or share_max is compiled")
    table, oracle = ClientTable(setting.seed, setting.tau_min_s, setting.examples_max), setting.oracle
    table.apply_events(arrivals(Presence.of_all(sorted(setting.laws)), 1, setting.examples), 1)
    order = np.argsort(table.tie_key)
    share = policy.m * table.n_examples[order] / table.n_examples.sum()
    mu = setting.tau_min_s * np.array([oracle.mean_inverse_latency[table.ids[row]] for row in order])
    eta = setting.budget.eta if setting.budget else 0.0
    chosen, inverse_s = np.zeros(len(table), np.int64), np.zeros(len(table))
    curves, t = _Curves(rounds), 1
    for block in setting.latencies_s(rounds):
        if (block >= setting.least_wait_s).any():
            return simulate(policy, setting, rounds)
        for latency_s in curves.pieces(block, t):
            gained = np.empty((len(latency_s), 4))
            kernel.play(
                t,
                np.ascontiguousarray(latency_s[:, order]),
                share,
                mu,
                setting.tau_min_s,
                policy.m,
                policy.alpha,
                policy.gamma,
                policy.beta,
                policy.zeta,
                eta,
                chosen,
                inverse_s,
                gained,
            )
            t += len(latency_s)
            spent = setting.budget.spent(int(chosen.max())) if setting.budget else 0.0
            curves.add(t - 1, gained, np.array([spent]))
    table.chosen[order] = chosen
    return curves.result(table)


def arrivals(presence: Presence, t: int, examples: Mapping[str, int] | None = None) -> list[LogEvent]:
    """The events of clients that come and go before round t; |D_k| by id, 1 unless said otherwise."""
    come, gone = presence.changes(t)
    joined = [LogEvent("joined", i, n_examples=examples[i] if examples else 1) for i in come]
    return joined + [LogEvent("left", i) for i in gone]


def is_compiled(policy: Policy, setting: Setting) -> TypeGuard[Pause]:
    """Whether `simulate_pause` knows this policy and setting."""
    if setting.presence or (setting.budget and setting.budget.epsilon_floor) or policy.m > len(setting.laws):
        return False
    return setting.weight_share_max == 1 and isinstance(policy, Pause) and policy.is_plain


def genie_of(policy: Policy) -> Genie | None:
    """The genie that weighs as this policy does; with PAUSE's defaults for a policy that has no such weights.

    None where Φ_g or Φ_p is no mean: the genie finds the optimum of R1 and R2 alone.
    """
    if isinstance(policy, SaPause) and not policy.weighs_means:
        return None
    weighing = policy.as_pause() if isinstance(policy, Ucb) else policy
    names = {field.name for field in fields(Genie) if field.init}
    return Genie(**{f.name: getattr(weighing, f.name) for f in fields(weighing) if f.name in names})


def refuse_disclosures(policy: Policy) -> None:
    """ConfigError for a policy that lives on what a simulation cannot draw: losses and labels come of training."""
    if needed := " and ".join(sorted(policy.disclosures)):
        name = type(policy).__name__
        raise ConfigError(
            f"selection.policy: {name} needs clients to disclose their {needed}, which a simulation has not: must be a"
            " policy that needs nothing disclosed"
        )


def regret_bound(setting: Setting, policy: Pause, n: IntArray | FloatArray, delta: float) -> FloatArray:
    """Theorem 3, PAUSE v2, eq. (17): K(Δ_max + δ)(4(m+1) ln n/δ² + 1 + 2π²/3).

    Δ_max is Lemma 1's for R1, and under R2, for which the paper states none, that plus the range of the cluster term.
    The paper's own proof ends with 4π²/3; either way it is a thing to measure, not to trust: see docs/regret.md.
    """
    mu = setting.tau_min_s * np.array(list(setting.oracle.mean_inverse_latency.values()))
    greatest_gap = mu.max() - mu.min() + 2 * policy.alpha + policy.greatest_penalty + policy.gamma
    per_client = 4 * (policy.m + 1) * np.log(np.asarray(n, np.float64)) / delta**2 + 1 + 2 * math.pi**2 / 3
    bound: FloatArray = len(mu) * (greatest_gap + delta) * per_client
    return bound


def printed_delta(setting: Setting) -> float:
    """δ as the paper defines it: the least gap of the mean latencies E[τ_k]."""
    return least_gap(np.array(list(setting.oracle.mean_latency_s.values())))


def least_gap(values: FloatArray | Sequence[float]) -> float:
    """δ = min over i ≠ j of |values_i − values_j|; the paper takes values = E[τ_k]."""
    return float(np.diff(np.sort(values)).min()) if len(values) > 1 else math.inf


def recorded_rounds(rounds: int) -> IntArray:
    """Every round of a short run, else some 200 linearly and 200 logarithmically spaced; the last one among them."""
    spaced = np.concatenate((np.geomspace(1, rounds, 200), np.linspace(1, rounds, 200)))
    return np.arange(1, rounds + 1) if rounds <= 400 else np.unique(np.rint(spaced).astype(np.int64))


class _Curves:
    """Running sums, kept at the recorded rounds."""

    def __init__(self, rounds: int) -> None:
        self._recorded = recorded_rounds(rounds)
        self._sums, self._next = np.zeros(4), 0
        self._rows: list[FloatArray] = []

    def pieces(self, block: FloatArray, first_round: int) -> list[FloatArray]:
        """A block of rounds cut behind every recorded round, so that `add` meets each."""
        cuts = self._recorded - first_round + 1
        return [piece for piece in np.split(block, cuts[(cuts > 0) & (cuts < len(block))]) if len(piece)]

    def add(self, last_round: int, gained: FloatArray, max_epsilon_spent: FloatArray) -> None:
        """Count the rounds up to `last_round`: (n, 4) regret, genie regret, reward, latency."""
        self._sums += gained.sum(axis=0)
        if last_round == self._recorded[self._next]:
            self._rows.append(np.concatenate((self._sums, max_epsilon_spent)))
            self._next += 1

    def result(self, table: ClientTable, cluster_penalty_s: float = 0.0) -> SimulationResult:
        regret, genie_regret, reward, latency_s, spent = np.array(self._rows).T
        return SimulationResult(
            client_ids=tuple(table.ids),
            round=self._recorded[: len(self._rows)],
            regret=regret,
            genie_regret=genie_regret,
            reward=reward,
            total_latency_s=latency_s,
            max_epsilon_spent=spent,
            chosen=table.chosen.copy(),
            cluster_penalty_s=cluster_penalty_s,
            missed=table.missed.copy() if table.missed.any() else None,
        )


def _retire(table: ClientTable, budget: Budget | None, rows: IntArray) -> None:
    """Clients whose next ε_i would lie below the floor take part no more."""
    for row in rows.tolist() if budget and budget.epsilon_floor else ():
        if budget and not budget.affords(int(table.released[row]) + 1):
            table.retired[row] = True


def _gained(
    selection: Selection, problem: Choice | None, setting: Setting, latency_s: FloatArray, deadline_s: float
) -> FloatArray:
    """(4,) of one round: regret, genie regret, reward, latency.

    Rewards are of the latencies drawn, censored or not: the genie is one that no deadline keeps from the truth.
    """
    tau_min_s = setting.tau_min_s
    slowest = latency_s[selection.rows].max()
    waited_s = min(slowest, deadline_s)
    chosen = np.flatnonzero(np.isin(problem.rows, selection.rows)) if problem else np.empty(0, np.int64)
    if problem is None or len(chosen) != problem.m:
        return np.array([math.nan, math.nan, math.nan, waited_s])
    best = problem.exact()
    reward = tau_min_s / max(slowest, tau_min_s) + problem.worth(chosen)
    genie_reward = tau_min_s / max(latency_s[problem.rows[best]].max(), tau_min_s) + problem.worth(best)
    return np.array([genie_reward - reward, problem.energy(best) - problem.energy(chosen), reward, waited_s])


def _record(
    t: int, selection: Selection, latency_s: FloatArray, table: ClientTable, setting: Setting, deadline_s: float
) -> RoundRecord:
    """What the server would have written down: a client answers, or it misses the deadline."""
    budget, real_deadline_s = setting.budget, deadline_s * setting.time_scale
    chosen = dict.fromkeys(selection.rows.tolist())
    late = [row for row in chosen if latency_s[row] >= deadline_s]
    observations = []
    for row in chosen.keys() - set(late) if late else chosen:
        i = int(table.released[row]) + 1 if budget else 0
        observations.append(
            Observation(
                client_id=table.ids[row],
                timing=Timing(round_trip_s=float(latency_s[row]) * setting.time_scale),
                latency_s=float(latency_s[row]),
                n_examples=int(table.n_examples[row]),
                participation=i,
                epsilon=budget.epsilon(i) if budget else 0.0,
                epsilon_spent=budget.spent(i) if budget else 0.0,
            )
        )
    return RoundRecord(
        round=t,
        attempt=0,
        chosen=tuple(table.ids[row] for row in selection.rows.tolist()),
        weights=None,
        observations=tuple(observations),
        events=(),
        round_latency_s=float(min(latency_s[selection.rows].max(), deadline_s)),
        wall_clock_s=0.0,
        selection_s=0.0,
        model_digest="",
        misses=tuple(Miss(table.ids[row], "timeout", real_deadline_s, deadline_s) for row in late),
        deadline_s=real_deadline_s,
    )


def releases_of_misses(record: RoundRecord, table: ClientTable, budget: Budget | None) -> list[LogEvent]:
    """The events of a round's missed jobs: an update may have left its client, so each counts as released."""
    if budget is None:
        return []
    released = {miss.client_id: int(table.released[table.row_of[miss.client_id]]) + 1 for miss in record.misses}
    return [LogEvent("reconciled", c, epsilon_spent=budget.spent(i), released=i) for c, i in released.items()]
