"""Policy and latencies only, no network and no training: regret, reward, leakage and selections over many rounds.

Regret is counted as in PAUSE v2, eq. (15), with the genie of eq. (10) asked every round *on the policy's own history*:
g and p are those the policy's past choices led to. Both sets meet the same latency draws of that round.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TypeGuard

import numpy as np

from pausefl.delays import Delay, NoDelay, known_means, sampled_delays
from pausefl.population.availability import Presence
from pausefl.simulation import kernel
from pausefl.simulation.curves import Curves, SimulationResult
from pausefl_client.link import Mode
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, MissKind, Observation, RoundRecord, Signal, Timing
from pausefl_server.rounds.backoff import selectable_rows
from pausefl_server.rounds.budget_exhaustion import too_few_left
from pausefl_server.rounds.deadline import LEAST_S, answers_needed, derived_deadline_s
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
    """The law of each client's delay per exchange, by id."""
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
    """The seed of the latencies alone; None: it is `seed`."""
    examples_max: int | None = None
    """The greatest |D_k| that counts; None: 5 times the median of the connected clients'."""
    weight_share_max: float = 1.0
    """The greatest share of the data that one client counts for."""
    training: Mapping[str, Delay] = field(default_factory=dict)
    """The law of the real seconds that each client trains, by id; empty where training takes none."""
    mode: Mode = "additive"
    """Whether training comes on top of the delay, or is part of it where it takes no longer."""
    signal: Signal = "round_trip"
    """Whether training counts as latency; a round waits for it either way."""
    spare: int = 0
    """How many of the policy's m clients a round asks beyond those that it needs."""
    quorum: float = 1.0
    """The share of the clients needed whose answers end a round."""

    @cached_property
    def oracle(self) -> Oracle:
        """The truth about the delays, whatever the deadline; as in a run, nothing of training."""
        return Oracle(*known_means(self.laws, self.tau_min_s))

    @property
    def has_expectations(self) -> bool:
        """Whether there is such a truth: a law that changes with the round has none."""
        try:
            return self.oracle is not None
        except ConfigError:
            return False

    def waits_s(self, table: ClientTable, rows: IntArray) -> float:
        """How long a round with these rows waits."""
        if self.deadline_s is not None:
            return self.deadline_s
        return derived_deadline_s(table, rows, time_scale=self.time_scale) / self.time_scale

    @property
    def least_wait_s(self) -> float:
        """What any round waits at least."""
        return LEAST_S / self.time_scale if self.deadline_s is None else self.deadline_s

    def answers_needed(self, asked: int, m: int) -> int:
        """How many of the clients asked end a round with their answers, under a policy of this m, as on the server."""
        return answers_needed(asked, m - self.spare, self.spare, self.quorum)

    def latencies_s(self, rounds: int) -> Iterator[FloatArray]:
        """Blocks of (n, K) delays drawn, columns in the order of the sorted ids; the same for every policy."""
        return self._drawn(self.laws, "simulate", self.seed if self.latency_seed is None else self.latency_seed, rounds)

    def answers_s(self, rounds: int) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Blocks like those of `latencies_s`: after how long answers come, in the laws' seconds, and their latencies.

        Delays are stretched by the time scale, training is not (`pausefl_server.records.Timing.signal_s`).
        """
        for delay_s, trained_s in zip(self.latencies_s(rounds), self._training_s(rounds), strict=True):
            sent_s = delay_s if self.mode == "additive" else np.maximum(delay_s - trained_s, 0.0)
            came_s = sent_s + trained_s / self.time_scale
            yield came_s, sent_s + trained_s if self.signal == "round_trip" else sent_s

    def _training_s(self, rounds: int) -> Iterator[FloatArray]:
        laws = self.training or dict.fromkeys(self.laws, NoDelay())
        return self._drawn(laws, "simulate-training", self.seed, rounds)

    @staticmethod
    def _drawn(laws: Mapping[str, Delay], name: str, seed: int, rounds: int) -> Iterator[FloatArray]:
        ids = sorted(laws)
        rngs = [generator(seed, name, client_id) for client_id in ids]
        for start in range(0, rounds, BLOCK):
            n = min(BLOCK, rounds - start)
            yield np.stack(
                [sampled_delays(laws[i], rng, n, start + 1) for i, rng in zip(ids, rngs, strict=True)], axis=1
            )


def simulate(
    policy: Policy,
    setting: Setting,
    rounds: int,
    *,
    with_regret: bool = True,
    watch: Callable[[Selection], object] | None = None,
) -> SimulationResult:
    """Run `policy` for `rounds` rounds, one call of it a round, against the genie that weighs as it does.

    Ends early, as a run does, once budgets leave fewer clients than a round takes. A round without clients passes. So
    does one that no client answers in time, which a server would try again.

    Without regret, or where no genie weighs as the policy does, reward and both regrets are NaN, and a policy that
    needs no oracle costs no expectation of a law. `watch` is shown every selection. ConfigError for a policy that needs
    what clients disclose, or chooses what cannot be played.
    """
    refuse_disclosures(policy)
    genie = genie_of(policy) if with_regret else None
    table, state = ClientTable(setting.seed, setting.tau_min_s, setting.examples_max), policy.start()
    ids, presence = sorted(setting.laws), setting.presence or Presence.of_all(sorted(setting.laws))
    curves, missed, penalty_s, t = Curves(rounds), np.zeros(len(ids), np.int64), 0.0, 0
    for block in setting.answers_s(rounds):
        for of_ids in zip(*block, strict=True):
            t += 1
            table.apply_events(arrivals(presence, t, setting.examples), t)
            known = np.searchsorted(ids, table.ids) if setting.presence else slice(None)
            came_s, latency_s = (of_id[known] for of_id in of_ids)
            if too_few_left(table, policy.m - setting.spare):
                return curves.result(table, missed, penalty_s)
            context = _context(policy, setting, table, t)
            if not context.eligible.size:
                curves.add(t, np.zeros((1, 4)), np.array([table.epsilon_spent.max()]))
                continue
            selection = checked(policy.select(state, context), context)
            if watch:
                watch(selection)
            problem = None
            if genie:
                problem = genie.choice(None, replace(context, oracle=setting.oracle, eligible=table.eligible()))
            record = _record(context, selection, came_s, latency_s, setting, policy.m)
            gained = _gained(selection, problem, setting, latency_s, record.round_latency_s)
            missed[table.rows(miss.client_id for miss in record.missed)] += 1
            table.apply_round(record)
            table.apply_events(releases_of_misses(record, table, setting.budget), t)
            _retire(table, setting.budget, selection.rows)
            state = policy.observe(state, seen_by_policy(record), table)
            penalty_s += selection.cluster_penalty_s
            curves.add(t, gained[None], np.array([table.epsilon_spent.max()]))
    return curves.result(table, missed, penalty_s)


def _context(policy: Policy, setting: Setting, table: ClientTable, t: int) -> Context:
    """What the policy is told before round t."""
    return Context(
        round=t,
        table=table,
        eligible=selectable_rows(table, t, policy.m, setting.rest_rounds_max),
        rng=generator(setting.seed, "selection", t, 0),
        epsilon_budget=setting.budget.epsilon_budget if setting.budget else None,
        oracle=setting.oracle if policy.needs_oracle else None,
        clock=time.monotonic,
        weight_share_max=setting.weight_share_max,
    )


def simulate_pause(policy: Pause, setting: Setting, rounds: int) -> SimulationResult:
    """`simulate` for plain PAUSE under R1, compiled: some hundred times faster, the same numbers.

    Where a latency passes the deadline, `simulate` plays all rounds instead. ValueError for any other policy or for
    options the compiled rounds do not know.
    """
    if not is_compiled(policy, setting):
        raise ValueError(
            "only pause with R1, a plain mean, m <= K, everyone there and needed, no training, floor or share_max is"
            " compiled"
        )
    table, oracle = ClientTable(setting.seed, setting.tau_min_s, setting.examples_max), setting.oracle
    table.apply_events(arrivals(Presence.of_all(sorted(setting.laws)), 1, setting.examples), 1)
    order = np.argsort(table.tie_key)
    share = policy.m * table.n_examples[order] / table.n_examples.sum()
    mu = setting.tau_min_s * np.array([oracle.mean_inverse_latency[table.ids[row]] for row in order])
    eta = setting.budget.eta if setting.budget else 0.0
    chosen, inverse_s = np.zeros(len(table), np.int64), np.zeros(len(table))
    curves, t = Curves(rounds), 1
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
    return curves.result(table, np.zeros(len(table), np.int64))


def arrivals(presence: Presence, t: int, examples: Mapping[str, int] | None = None) -> list[LogEvent]:
    """The events of clients that come and go before round t; |D_k| by id, 1 unless said otherwise."""
    come, gone = presence.changes(t)
    joined = [LogEvent("joined", i, n_examples=examples[i] if examples else 1) for i in come]
    return joined + [LogEvent("left", i) for i in gone]


def is_compiled(policy: Policy, setting: Setting) -> TypeGuard[Pause]:
    """Whether `simulate_pause` knows this policy and setting."""
    if setting.presence or (setting.budget and setting.budget.epsilon_floor) or policy.m > len(setting.laws):
        return False
    if setting.training or setting.spare or setting.quorum < 1:
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


def _retire(table: ClientTable, budget: Budget | None, rows: IntArray) -> None:
    """Clients whose next ε_i would lie below the floor take part no more."""
    for row in rows.tolist() if budget and budget.epsilon_floor else ():
        if budget and not budget.affords(int(table.released[row]) + 1):
            table.retired[row] = True


def _gained(
    selection: Selection, problem: Choice | None, setting: Setting, latency_s: FloatArray, waited_s: float
) -> FloatArray:
    """(4,) of one round: regret, genie regret, reward, latency.

    Rewards are of the latencies of all clients asked, waited for or not: the genie is one that nothing keeps from the
    truth.
    """
    tau_min_s = setting.tau_min_s
    slowest = latency_s[selection.rows].max()
    chosen = np.flatnonzero(np.isin(problem.rows, selection.rows)) if problem else np.empty(0, np.int64)
    if problem is None or len(chosen) != problem.m:
        return np.array([math.nan, math.nan, math.nan, waited_s])
    best = problem.exact()
    reward = tau_min_s / max(slowest, tau_min_s) + problem.worth(chosen)
    genie_reward = tau_min_s / max(latency_s[problem.rows[best]].max(), tau_min_s) + problem.worth(best)
    return np.array([genie_reward - reward, problem.energy(best) - problem.energy(chosen), reward, waited_s])


def _record(
    context: Context, selection: Selection, came_s: FloatArray, latency_s: FloatArray, setting: Setting, m: int
) -> RoundRecord:
    """What the server would have written down: it waits for the answers that it needs, at most until the deadline."""
    table, chosen = context.table, np.array([*dict.fromkeys(selection.rows.tolist())])
    deadline_s = setting.waits_s(table, selection.rows)
    needed = setting.answers_needed(len(chosen), m)
    end_s = min(float(np.sort(came_s[chosen])[needed - 1]), deadline_s)
    kind: MissKind = "unneeded" if end_s < deadline_s else "timeout"
    is_in_time = came_s[chosen] <= end_s if kind == "unneeded" else came_s[chosen] < deadline_s
    missed = tuple(Miss(table.ids[row], kind, end_s * setting.time_scale, end_s) for row in chosen[~is_in_time])
    in_time = chosen[is_in_time]
    waited_s = [end_s] if missed and kind == "timeout" else []
    return RoundRecord(
        round=context.round,
        attempt=0,
        chosen=tuple(table.ids[row] for row in selection.rows.tolist()),
        weights=None,
        observations=tuple(_observation(row, came_s, latency_s, table, setting) for row in in_time.tolist()),
        events=(),
        round_latency_s=max([*latency_s[in_time].tolist(), *waited_s]),
        wall_clock_s=0.0,
        selection_s=0.0,
        model_digest="",
        misses=missed,
        deadline_s=deadline_s * setting.time_scale,
    )


def _observation(
    row: int, came_s: FloatArray, latency_s: FloatArray, table: ClientTable, setting: Setting
) -> Observation:
    budget = setting.budget
    i = int(table.released[row]) + 1 if budget else 0
    return Observation(
        client_id=table.ids[row],
        timing=Timing(round_trip_s=float(came_s[row]) * setting.time_scale),
        latency_s=float(latency_s[row]),
        n_examples=int(table.n_examples[row]),
        participation=i,
        epsilon=budget.epsilon(i) if budget else 0.0,
        epsilon_spent=budget.spent(i) if budget else 0.0,
    )


def releases_of_misses(record: RoundRecord, table: ClientTable, budget: Budget | None) -> list[LogEvent]:
    """The events of a round's missed jobs: an update may have left its client, so each counts as released.

    A client that refused its job has released nothing.
    """
    if budget is None:
        return []
    missed = (miss.client_id for miss in record.misses if miss.kind != "refused")
    released = {client_id: int(table.released[table.row_of[client_id]]) + 1 for client_id in missed}
    return [LogEvent("reconciled", c, epsilon_spent=budget.spent(i), released=i) for c, i in released.items()]
