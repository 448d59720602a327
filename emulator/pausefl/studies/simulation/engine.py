"""Simulates a policy on drawn latencies, without network and training: regret, reward, leakage and selections.

Regret is that of PAUSE v2, eq. (15). The genie of eq. (10) is asked every round *on the policy's own history*: its g
and p follow from the policy's past choices. The policy's set and the genie's have the same latency draws in a round.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import count, islice, repeat
from typing import Any

import numpy as np

from pausefl.experiment.delay_laws.base import Delay, known_means, sampled_delays
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.population.availability import Presence
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.server.plan import settings_of
from pausefl.studies.simulation import kernel
from pausefl.studies.simulation.curves import Curves, SimulationResult
from pausefl.studies.simulation.steps import Answers, Steps, answer
from pausefl_client.link import Mode
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator, generators
from pausefl_proto.errors import ConfigError
from pausefl_server.records import LogEvent, Miss, RoundRecord
from pausefl_server.rounds.attempt import attempt_end, attempt_record, releases_of_misses
from pausefl_server.rounds.budget_exhaustion import too_few_left, used_up
from pausefl_server.rounds.choosing import choose, context_of
from pausefl_server.rounds.deadline import LEAST_S, answers_needed, round_timeout_s
from pausefl_server.selection import Oracle, Policy, Selection
from pausefl_server.selection.policies.baselines import All, Clustered, Fastest, Random, Ucb
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_server.settings import PrivacySettings, ServerSettings
from pausefl_server.state import RunState

BLOCK = 4096
"""How many rounds' latencies are drawn at once."""
_MOST_AT_ONCE = 2**27
"""The most latencies drawn at once, a gigabyte. With very many clients, fewer rounds are drawn at once."""
_AHEAD = Random, Fastest, Clustered, All
"""The policies whose choices depend on no earlier round while all clients are there. Those of subclasses may."""


def server_of(tau_min_s: float, budget: Budget | None = None, seed: int = 1, **settings: Any) -> ServerSettings:
    """The default settings of a server with these changes, and without a deadline unless `settings` has one."""
    privacy = None if budget is None else PrivacySettings(budget, "vector", "")
    chosen = {"round_timeout_s": math.inf, **settings}
    return replace(_by_default(), seed=seed, tau_min_s=tau_min_s, privacy=privacy, **chosen)


@cache
def _by_default() -> ServerSettings:
    experiment = Experiment()
    return settings_of(experiment, "", client_plan(experiment))


@dataclass(frozen=True)
class Setting:
    """The clients, their latencies and the server's settings that a policy is simulated with."""

    laws: Mapping[str, Delay]
    """The law of each client's delay per exchange, by client id."""
    examples: Mapping[str, int]
    """|D_k|, how many examples each client has, by client id."""
    server: ServerSettings
    """The settings of the simulated server. Its τ_min must be a number."""
    presence: Presence | None = None
    """Which clients are connected in each round; None: all clients, always."""
    latency_seed: int | None = None
    """The seed of the latencies; None: the server's seed."""
    training: Mapping[str, Delay] = field(default_factory=dict)
    """The law of each client's training time in real seconds, by client id. Empty if training takes no time."""
    mode: Mode = "additive"
    """How training time counts. "additive": on top of the delay. "total": within the delay, unless it takes longer."""

    @property
    def tau_min_s(self) -> float:
        """The server's τ_min, in seconds."""
        assert self.server.tau_min_s is not None
        return self.server.tau_min_s

    @cached_property
    def oracle(self) -> Oracle:
        """The true means of the delays, without deadlines. As in a run, training times are not included."""
        return Oracle(*known_means(self.laws, self.tau_min_s))

    @property
    def least_wait_s(self) -> float:
        """The shortest deadline that any round can have, in the laws' seconds."""
        waits_s = self.server.round_timeout_s
        return (LEAST_S if waits_s is None else waits_s) / self.server.time_scale

    def latencies_s(self, rounds: int) -> Iterator[FloatArray]:
        """Blocks of drawn delays, (n, K), a row per round and a column per sorted client id; equal for all policies."""
        seed = self.server.seed if self.latency_seed is None else self.latency_seed
        return self._drawn(self.laws, "simulate", seed, rounds)

    def answers_s(self, rounds: int) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Blocks like those of `latencies_s`: when answers arrive, in the laws' seconds, elapsed times and latencies.

        The time scale shortens delays and not training (see `pausefl_server.records.Timing.signal_s`).
        """
        if not self.training:
            yield from ((delay_s, delay_s, delay_s) for delay_s in self.latencies_s(rounds))
            return
        all_trained_s = self._drawn(self.training, "simulate-training", self.server.seed, rounds)
        for delay_s, trained_s in zip(self.latencies_s(rounds), all_trained_s, strict=True):
            sent_s = delay_s if self.mode == "additive" else np.maximum(delay_s - trained_s, 0.0)
            came_s = sent_s + trained_s / self.server.time_scale
            took_s = sent_s + trained_s
            yield came_s, took_s, took_s if self.server.signal == "round_trip" else sent_s

    @staticmethod
    def _drawn(laws: Mapping[str, Delay], name: str, seed: int, rounds: int) -> Iterator[FloatArray]:
        ids = sorted(laws)
        rngs = [generator(seed, name, client_id) for client_id in ids]
        at_once = min(BLOCK, max(1, _MOST_AT_ONCE // len(ids)))
        for start in range(0, rounds, at_once):
            drawn_s = np.empty((len(ids), min(at_once, rounds - start)))
            for row, (client_id, rng) in enumerate(zip(ids, rngs, strict=True)):
                drawn_s[row] = sampled_delays(laws[client_id], rng, drawn_s.shape[1], start + 1)
            yield drawn_s.T


def simulate(policy: Policy, setting: Setting, rounds: int, *, with_regret: bool = True) -> SimulationResult:
    """Simulate `policy` for `rounds` rounds, calling it once per round, against the genie with the same weights.

    As a run does, the simulation ends early once budgets leave fewer clients than a round needs, or none of those that
    are there. A round without clients passes empty. A round that no client answers in time counts as played.

    Without `with_regret`, or without a genie for the policy, reward and both regrets are NaN. A law's mean is then only
    computed if the policy needs the oracle. ConfigError for a policy that needs clients' disclosures, or whose
    selection is invalid.

    With an asynchronous server, `rounds` are its steps of K updates each, and the policy's m is C. The latency of a
    step is the time since the step before, so the sum of latencies is the elapsed time. Reward and regrets are NaN.
    """
    refuse_disclosures(policy)
    server, ids = replace(setting.server, rounds=rounds), sorted(setting.laws)
    genie = genie_of(policy) if with_regret and not server.is_asynchronous else None
    state = RunState.start(policy, server.seed, tau_min_s=server.tau_min_s, examples_max=server.examples_max)
    table, presence = state.table, setting.presence or Presence.of_all(ids)
    oracle = setting.oracle if policy.needs_oracle else None
    steps = Steps(server, state, oracle) if server.is_asynchronous else None
    curves, missed, penalty_s, known = Curves(rounds), np.zeros(len(ids), np.int64), 0.0, np.empty(0, np.int64)
    draws = (of_ids for block in setting.answers_s(rounds) for of_ids in zip(*block, strict=True))
    for t, of_ids in enumerate(draws, 1):
        state.before_round(t, [*arrivals(presence, t, setting.examples), *used_up(table, server.budget)])
        is_empty = not table.eligible().size
        if too_few_left(state, server.updates_needed(policy.m)) or (is_empty and table.connected.any()):
            break  # once all that are there have spent their budgets, a run ends, whoever is away
        if len(known) < len(table):
            known = np.searchsorted(ids, table.ids)
        came_s, took_s, latency_s = (of_id[known] for of_id in of_ids)
        if steps:
            record = steps.step(t, Answers(came_s, took_s, latency_s))
            gained = np.array([math.nan, math.nan, math.nan, record.elapsed_s - state.elapsed_s])
        elif is_empty:
            curves.add(t, np.zeros((1, 4)), table.epsilon_spent.max())
            continue
        else:
            context = context_of(server, state, oracle, t, 0)
            selection = choose(context, state)
            problem = None
            if genie:
                problem = genie.choice(None, replace(context, oracle=setting.oracle, eligible=table.eligible()))
            record = _record(t, state, selection, came_s, latency_s, server)
            gained = _gained(selection, problem, setting, latency_s, record.round_latency_s)
            penalty_s += selection.cluster_penalty_s
        missed[table.rows(miss.client_id for miss in record.missed)] += 1
        state.after_round(record)
        state.before_round(t, releases_of_misses(record, table, server.budget))
        curves.add(t, gained[None], table.epsilon_spent.max())
    return curves.result(table, missed, penalty_s)


def simulate_fast(policy: Policy, setting: Setting, rounds: int) -> SimulationResult:
    """`simulate` in compiled code where `is_compiled` allows it and all answers come before the deadline.

    This is ten to a hundred times faster. Choices, latencies and leakage are equal; rewards, up to rounding.
    """
    if not is_compiled(policy, setting):
        return simulate(policy, setting, rounds)
    server, genie, budget = setting.server, genie_of(policy), setting.server.budget
    assert genie is not None
    state = RunState.start(policy, server.seed, tau_min_s=server.tau_min_s, examples_max=server.examples_max)
    state.before_round(1, arrivals(Presence.of_all(sorted(setting.laws)), 1, setting.examples))
    table, problem = state.table, genie.choice(None, context_of(server, state, setting.oracle, 1, 0))
    order, mu = problem.rows, problem.ucb
    place = np.argsort(order)
    share = policy.m * (table.n_examples[order] / max(table.n_examples.sum(), 1))
    schedule = (budget.epsilon_budget, budget.eta) if budget else (1.0, 0.0)
    weights = genie.alpha, genie.gamma, genie.beta, genie.zeta, *schedule
    chosen, released, inverse_s = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64), np.zeros(len(table))
    curves, t, ahead = Curves(rounds), 1, _choices_ahead(state, setting)
    for came_s, _, block in setting.answers_s(rounds):
        if (came_s >= setting.least_wait_s).any():
            return simulate(policy, setting, rounds)
        for latency_s in curves.pieces(block, t):
            gained = np.empty((len(latency_s), 4))
            ordered_s = np.ascontiguousarray(latency_s[:, order])
            picks = np.sort(place[np.array([*islice(ahead, len(latency_s))])], axis=1)
            known = t, ordered_s, picks, isinstance(policy, Ucb), share, mu, setting.tau_min_s, policy.m
            kernel.play(*known, weights, chosen, released, inverse_s, gained)
            t += len(latency_s)
            curves.add(t - 1, gained, budget.spent(int(released.max())) if budget else 0.0)
    table.chosen[order] = chosen
    return curves.result(table, np.zeros(len(table), np.int64))


def _choices_ahead(state: RunState, setting: Setting) -> Iterator[IntArray]:
    """The rows that a policy chooses in each round, in any order, if it looks at no earlier round; else no rows."""
    policy, context = state.policy, context_of(setting.server, state, setting.oracle, 1, 0)
    if type(policy) not in _AHEAD:
        return repeat(np.empty(0, np.int64))
    if isinstance(policy, Random | Clustered) and len(context.eligible) > policy.m:
        return policy.draws(context, generators(setting.server.seed, "selection", ((t, 0) for t in count(1))))
    return repeat(policy.select(None, context).rows)


def arrivals(presence: Presence, t: int, examples: Mapping[str, int] | None = None) -> list[LogEvent]:
    """The events of clients that join or leave before round t. `examples` is |D_k| by client id; None: all 1."""
    come, gone = presence.changes(t)
    joined = [LogEvent("joined", i, n_examples=examples[i] if examples else 1) for i in come]
    return joined + [LogEvent("left", i) for i in gone]


def is_compiled(policy: Policy, setting: Setting) -> bool:
    """Whether compiled code plays this policy in this setting: all clients are there and needed, and none retires."""
    server = setting.server
    if setting.presence or policy.m > len(setting.laws) or (server.budget and server.budget.epsilon_floor):
        return False
    if server.is_asynchronous or server.spare or server.quorum < 1 or server.aggregation.weight_share_max < 1:
        return False
    weighing = policy.as_pause() if type(policy) is Ucb else policy
    return type(policy) in _AHEAD or (isinstance(weighing, Pause) and weighing.is_plain)


def genie_of(policy: Policy) -> Genie | None:
    """The genie with this policy's weights; PAUSE's default weights if the policy is none of PAUSE's.

    None if Φ_g or Φ_p is not a mean: the genie can only find the optimum of R1 and R2.
    """
    if isinstance(policy, SaPause) and not policy.weighs_means:
        return None
    weighing = policy.as_pause() if isinstance(policy, Ucb) else policy
    names = {field.name for field in fields(Genie) if field.init} if isinstance(weighing, Pause) else {"m"}
    return Genie(**{f.name: getattr(weighing, f.name) for f in fields(weighing) if f.name in names})


def refuse_disclosures(policy: Policy) -> None:
    """Raise ConfigError if the policy needs disclosed losses or labels: a simulation has none, as it does not train."""
    if needed := " and ".join(sorted(policy.disclosures)):
        name = type(policy).__name__
        raise ConfigError(
            f"selection.policy: {name} needs clients to disclose their {needed}, which a simulation has not: must be a"
            " policy that needs nothing disclosed"
        )


def regret_bound(setting: Setting, policy: Pause, n: IntArray | FloatArray, delta: float) -> FloatArray:
    """Theorem 3, PAUSE v2, eq. (17): K(Δ_max + δ)(4(m+1) ln n/δ² + 1 + 2π²/3).

    Δ_max is that of Lemma 1 for R1. For R2, where the paper states none, the range of the cluster term is added. The
    paper's own proof ends with 4π²/3 instead of 2π²/3. Compare the bound with measurements: see docs/regret.md.
    """
    mu = setting.tau_min_s * np.array(list(setting.oracle.mean_inverse_latency.values()))
    greatest_gap = mu.max() - mu.min() + 2 * policy.alpha + policy.greatest_penalty + policy.gamma
    per_client = 4 * (policy.m + 1) * np.log(np.asarray(n, np.float64)) / delta**2 + 1 + 2 * math.pi**2 / 3
    bound: FloatArray = len(mu) * (greatest_gap + delta) * per_client
    return bound


def least_gap(values: FloatArray | Sequence[float]) -> float:
    """δ = min over i ≠ j of |values_i − values_j|; infinite for one value. In the paper, values = E[τ_k]."""
    return float(np.diff(np.sort(values)).min()) if len(values) > 1 else math.inf


def _gained(
    selection: Selection, problem: Choice | None, setting: Setting, latency_s: FloatArray, waited_s: float
) -> FloatArray:
    """(4,) of one round: regret, genie regret, reward, latency.

    Rewards use the latencies of all chosen clients, also of those that the server did not wait for.
    """
    tau_min_s, rows = setting.tau_min_s, set(selection.rows.tolist())
    chosen = np.array([i for i, row in enumerate(problem.rows.tolist()) if row in rows] if problem else [])
    if problem is None or len(chosen) != problem.m:
        return np.array([math.nan, math.nan, math.nan, waited_s])
    best = problem.exact() if problem.marginal.any() else kernel.choose(problem.ucb, problem.value, problem.m)
    worth, genie_worth = problem.worth(chosen), problem.worth(best)
    reward = tau_min_s / max(latency_s[selection.rows].max(), tau_min_s) + worth
    genie_reward = tau_min_s / max(latency_s[problem.rows[best]].max(), tau_min_s) + genie_worth
    genie_regret = (problem.ucb[best].min() + genie_worth) - (problem.ucb[chosen].min() + worth)
    return np.array([genie_reward - reward, genie_regret, reward, waited_s])


def _record(
    t: int, state: RunState, selection: Selection, came_s: FloatArray, latency_s: FloatArray, server: ServerSettings
) -> RoundRecord:
    """The server's record of the round, which ends with the last answer that is needed, or at the deadline."""
    table, asked, scale = state.table, np.array([*dict.fromkeys(selection.rows.tolist())]), server.time_scale
    deadline_s = round_timeout_s(server, table, selection.rows) / scale
    beyond = int((~state.policy.counted(table)[asked]).sum())
    needed = answers_needed(len(asked), state.policy.m - server.spare, server.spare, server.quorum, beyond)
    end_s, in_time, kind = attempt_end(came_s[asked], needed, deadline_s)
    answered = asked[in_time].tolist()
    observations = [answer(state, row, float(came_s[row]), float(latency_s[row]), server) for row in answered]
    misses = [Miss(table.ids[row], kind, end_s * scale, end_s, "", end_s) for row in asked[~in_time].tolist()]
    return attempt_record(t, 0, [table.ids[row] for row in selection.rows.tolist()], observations, misses)
