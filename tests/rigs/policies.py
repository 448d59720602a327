"""The policies that the contract tests check, and rounds of one policy without a network."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import pytest

from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.rounds.choosing import selectable_rows
from pausefl_server.selection import POLICIES, Context, Oracle, Policy, Selection, policy_class
from pausefl_server.selection.observed import seen_by_policy

SPECIAL: dict[str, tuple[str, dict[str, Any]]] = {
    "pause R2": ("pause", {"reward": "R2", "clusters": 4, "delta_tau_s": 0.05}),
    "pause R2 convex": ("pause", {"reward": "R2", "clusters": 4, "rho": [0.0, 0.1, 0.3]}),
    "pause discounted": ("pause", {"discount": 0.9}),
    "pause window": ("pause", {"window": 8}),
    "pause-brute": ("pause-brute", {"reward": "R2", "clusters": 4}),
    "sa-pause": ("sa-pause", {"steps": 50}),
    "sa-pause v1": ("sa-pause", {"steps": 50, "neighbourhood": "v1", "start_set": "random", "temperature": "printed"}),
    "sa-pause R2": ("sa-pause", {"steps": 50, "reward": "R2", "neighbourhood": "swap"}),
    "sa-pause labels": ("sa-pause", {"steps": 50, "phi_g": "label_diversity", "window": 8}),
    "oort": ("oort", {"pacer_window": 3}),
    "pow-d": ("pow-d", {"d": 6}),
    "fed-ts": ("fed-ts", {"search_after": 3}),
    "fed-ts guarded": ("fed-ts", {"guard": "leave-one-out", "drift_weight": 1.0}),
}
CASES = {name: (name, dict[str, Any]()) for name in POLICIES} | SPECIAL
"""Every named policy with its defaults, new ones included, and the variants of `SPECIAL`, as (name, parameters)."""

M = 4
DEADLINE_S = 2.0
BUDGET = Budget(100.0, 0.04)
IDS = tuple(f"client-{k:02}" for k in range(13))

every_policy = pytest.mark.parametrize("case", CASES)
unseen_first = pytest.mark.parametrize("case", [c for c in CASES if c.startswith(("pause", "sa-pause", "ucb"))])


def policy_of(case: str, m: int = M) -> Policy:
    name, parameters = CASES[case]
    return policy_class(name)(m=m, **parameters)


def joined(ids: Iterable[str], examples: int = 100) -> list[LogEvent]:
    return [LogEvent("joined", client_id, n_examples=examples + 7 * (hash_of(client_id) % 5)) for client_id in ids]


def hash_of(client_id: str) -> int:
    return int(client_id.split("-")[1])


def true_mean_s(client_id: str) -> float:
    return 0.1 + 0.07 * hash_of(client_id)


ORACLE = Oracle({i: true_mean_s(i) for i in IDS}, {i: 1 / true_mean_s(i) for i in IDS})


def context_of(table: ClientTable, round: int, seed: int = 1, **changes: Any) -> Context:
    fields: dict[str, Any] = {
        "round": round,
        "table": table,
        "eligible": table.eligible(),
        "rng": generator(seed, "selection", round, 0),
        "epsilon_budget": BUDGET.epsilon_budget,
        "oracle": ORACLE,
    }
    return Context(**(fields | changes))


class Play:
    """Rounds of one policy on a client table. Latencies are functions of (client, round)."""

    def __init__(
        self,
        policy: Policy,
        ids: Iterable[str] = IDS,
        seed: int = 1,
        silent: Iterable[str] = (),
        tau_min_s: float | None = 0.05,
    ) -> None:
        self.policy, self.seed, self.silent = policy, seed, frozenset(silent)
        self.table = ClientTable(seed, tau_min_s)
        self.events = tuple(joined(ids))
        self.table.apply_events(self.events, round=1)
        self.state = policy.start()
        self.records: list[RoundRecord] = []

    def rounds(self, count: int) -> Self:
        for _ in range(count):
            self.one_round()
        return self

    def select(self) -> Selection:
        """The policy's choice for the next round."""
        t = len(self.records) + 1
        eligible = selectable_rows(self.table, t, self.policy.m, rest_rounds_max=64)
        return self.policy.select(self.state, context_of(self.table, t, self.seed, eligible=eligible))

    def answers(self, selection: Selection, t: int) -> tuple[Observation, ...]:
        """The answers of the chosen clients in round t; silent clients do not answer."""
        chosen = dict.fromkeys(self.table.ids[row] for row in selection.rows)
        return tuple(self.observation(i, t) for i in chosen if i not in self.silent)

    def one_round(self) -> RoundRecord:
        t, selection = len(self.records) + 1, self.select()
        answers = self.answers(selection, t)
        chosen = dict.fromkeys(self.table.ids[row] for row in selection.rows)
        missed = tuple(Miss(i, "timeout", DEADLINE_S, DEADLINE_S) for i in chosen if i in self.silent)
        record = RoundRecord(
            round=t,
            attempt=0,
            chosen=tuple(self.table.ids[row] for row in selection.rows),
            weights=None if selection.weights is None else tuple(selection.weights.tolist()),
            observations=answers,
            events=self.events if t == 1 else (),
            round_latency_s=max([DEADLINE_S] * bool(missed) + [o.latency_s for o in answers]),
            details=selection.details,
            cluster_penalty_s=selection.cluster_penalty_s,
            misses=missed,
        )
        self.table.apply_round(record)
        self.state = self.policy.observe(self.state, seen_by_policy(record), self.table)
        self.records.append(record)
        return record

    def observation(self, client_id: str, t: int) -> Observation:
        rng = generator(self.seed, "test", client_id, t)
        latency_s = true_mean_s(client_id) * rng.uniform(0.7, 1.4)
        i = int(self.table.released[self.table.row_of[client_id]]) + 1
        return Observation(
            client_id=client_id,
            timing=Timing(latency_s),
            latency_s=latency_s,
            n_examples=100,
            participation=i,
            epsilon=BUDGET.epsilon(i),
            epsilon_spent=BUDGET.spent(i),
            loss=2.0 / t + 0.1 * rng.random(),
            statistics={"label_0": hash_of(client_id), "label_1": 10.0, "label_2": 3.0},
        )


def unchanged(before: Any, after: Any) -> bool:
    """Deep equality of tables and states, arrays and NaN included."""
    if dataclasses.is_dataclass(before):
        return all(unchanged(getattr(before, f.name), getattr(after, f.name)) for f in dataclasses.fields(before))
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(unchanged(before[k], after[k]) for k in before)
    if isinstance(before, tuple):
        return len(before) == len(after) and all(map(unchanged, before, after))
    return bool(before == after)


@dataclasses.dataclass(frozen=True)
class FirstTwice(Policy):
    """Chooses the first client twice, all others once."""

    def select(self, state: Any, context: Context) -> Selection:
        rows = np.sort(np.append(context.eligible, context.eligible[0]))
        return Selection(rows, weights=np.ones(len(rows)))
