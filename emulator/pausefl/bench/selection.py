"""Measures how long the exact searches, the annealing and updates of the client table take.

Times of a search are over several states. Realistic ones lie on the trajectory of PAUSE itself under the published
latencies. In adversarial ones, no row can be skipped. `median_s` and `p99_s` are over the calls on realistic states.
`worst_s` is the greatest median of any state, adversarial ones included.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from timeit import repeat, timeit
from typing import Any

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable
from pausefl_server.records import Observation, RoundRecord, Timing
from pausefl_server.search import convex_pivot_and_fill, pivot_and_fill
from pausefl_server.selection import Context, Selection
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.policies.sa_pause import SaPause

_SIZES: tuple[tuple[int, int, int], ...] = ((300, 15, 20), (100_000, 1_000, 1_000), (1_000_000, 1_000, 1_000))
"""(K, m, clusters)."""
_TAU_MIN_S = 0.05
_BUDGET = Budget(100.0, 0.04)


def cases(clients_max: int = 1_000_000) -> Iterator[dict[str, Any]]:
    """Cases of searches among up to `clients_max` clients, of annealing, and of the client table."""
    for clients, m, clusters in (size for size in _SIZES if size[0] <= clients_max):
        yield from _searches(clients, m, clusters)
    yield from _annealing()
    yield _table_update(clients_max, 1_000)


def _searches(clients: int, m: int, clusters: int) -> Iterator[dict[str, Any]]:
    policy = Pause(m, reward="R2", clusters=clusters, zeta=3.0)
    contexts = list(_after_rounds(clients, m))
    realistic = [policy.choice(None, context) for context in contexts]
    adversarial = _adversarial(clients, m, clusters)

    def r1(choice: Choice) -> object:
        return pivot_and_fill(choice.ucb, choice.value, m)

    def r2(choice: Choice) -> object:
        return convex_pivot_and_fill(choice.ucb, choice.value, m, choice.cluster, choice.marginal)

    size = f"{clients:,} / {m:,}"
    yield _timed(f"R1 exact, {size}", r1, realistic, adversarial)
    yield _timed(f"R2 exact, {size} / {clusters:,} clusters", r2, realistic, adversarial)
    for whole in (replace(policy, reward="R1"), policy):
        yield _timed(f"whole selection, pause {whole.reward}, {size}", partial(whole.select, None), contexts)


def _annealing() -> Iterator[dict[str, Any]]:
    contexts = list(_after_rounds(300, 15))
    fixed: dict[str, Any] = {"steps": 3000, "kappa": 70.0, "start_set": "random"}
    annealed = {
        "SA with R1": SaPause(15, **fixed),
        "SA with R2": SaPause(15, reward="R2", clusters=20, **fixed),
        "SA v1 with R1": SaPause(15, neighbourhood="v1", **fixed),
        "SA with a Φ in Python, followed swap by swap": SaPause(15, phi_g="label_diversity", **fixed),
        "SA with a Φ in Python, a plain function": SaPause(15, phi_g=f"{__name__}:plain_diversity", **fixed),
    }
    for name, policy in annealed.items():
        yield _timed(f"{name}, 300 / 15, 3,000 steps", partial(_anneal, policy), contexts)
    capped = replace(annealed["SA with a Φ in Python, a plain function"], steps=10**6, time_cap_s=0.02)
    yield _timed("SA with a Φ in Python, time cap 20 ms", partial(_anneal, capped), contexts)


def plain_diversity(context: Context, rows: Any) -> Callable[[Any], float]:
    """Label diversity as a user would first write it: a function of the set, computed anew for each proposal."""
    histograms = np.random.default_rng(0).random((len(rows), 10))
    histograms *= context.table.n_examples[rows, None]

    def entropy(positions: Any) -> float:
        share = histograms[positions].sum(axis=0)
        share /= share.sum()
        return float(-(share * np.log(share)).sum() / np.log(10))

    return entropy


def _table_update(clients: int, m: int) -> dict[str, Any]:
    """Measure the update of a table of `clients` rows by one committed round, in which `m` were observed."""
    table, budget = _table_of(clients), _BUDGET
    rng = generator(1, "bench", "table")

    def record(t: int) -> RoundRecord:
        ids = [table.ids[row] for row in rng.choice(clients, m, replace=False)]
        answers = tuple(Observation(i, Timing(0.3), 0.3, 100, t, budget.epsilon(t), budget.spent(t)) for i in ids)
        return RoundRecord(t, 0, tuple(ids), None, answers, (), 0.3)

    case = f"client table after a round, {clients:,} clients, {m:,} chosen"
    return _timed(case, table.apply_round, [record(t) for t in range(1, 16)], repeats=1)


def _adversarial(clients: int, m: int, clusters: int) -> list[Choice]:
    """States in which every row enters the heap, all rows are equal, or there are few distinct values."""
    rng = generator(1, "bench", "adversarial", clients)
    shuffled = rng.permutation(clients)
    rising, zeros = np.arange(clients, dtype=np.float64), np.zeros(clients)
    cluster = rng.integers(0, clusters, clients)
    problems = (
        # Values rise as ucb falls, by so much that no threshold can be excluded early.
        (-1e-9 * rising[shuffled], rising[shuffled] / clients),
        (zeros, zeros),
        (rng.integers(0, 8, clients) / 8, rng.integers(0, 8, clients) / 8),
        (rng.random(clients), rng.random(clients) / m),
    )
    rows = np.arange(clients)
    return [Choice(m, rows, u, zeros, zeros, v, cluster, np.array([0.0, 0.1 / m])) for u, v in problems]


def _timed(
    case: str,
    call: Callable[[Any], Any],
    realistic: Sequence[Any],
    adversarial: Sequence[Any] = (),
    repeats: int | None = None,
) -> dict[str, Any]:
    call(realistic[0])
    if repeats is None:
        repeats = int(np.clip(0.3 / timeit(partial(call, realistic[-1]), number=1), 3, 100))
    usual, hard = (
        [repeat(partial(call, state), number=1, repeat=repeats) for state in states]
        for states in (realistic, adversarial)
    )
    return {
        "name": "selection",
        "case": case,
        "median_s": float(np.median(np.concatenate(usual))),
        "p99_s": float(np.quantile(np.concatenate(usual), 0.99)),
        "worst_s": float(max(np.median(times) for times in (*usual, *hard))),
    }


def _anneal(policy: SaPause, context: Context) -> Selection:
    rng = generator(1, "bench", "annealing", context.round)
    return policy.select(None, replace(context, rng=rng, clock=time.monotonic))


def _table_of(clients: int) -> ClientTable:
    """A table of connected clients with equal data, built column by column: hashing 10⁶ ids takes seconds."""
    rng = generator(1, "bench", "ids", clients)
    ids = [f"client-{k:07}" for k in range(clients)]
    return ClientTable(
        tau_min_s=_TAU_MIN_S,
        ids=ids,
        row_of={client_id: row for row, client_id in enumerate(ids)},
        n_examples=np.full(clients, 100),
        connected=np.ones(clients, np.bool_),
        tie_key=rng.integers(2**62, size=clients),
    )


def _after_rounds(clients: int, m: int) -> Iterator[Context]:
    """Three states of PAUSE's own trajectory: 16 rounds after each client was chosen once, about 3 and 10 times."""
    for typical in (1, 3, 10):
        rng = generator(1, "bench", "history", clients, typical)
        half = clients // 2
        mean_s = np.append(np.linspace(_TAU_MIN_S, 0.2, half + 1)[1:], np.linspace(0.7, 0.9, clients - half + 1)[1:])
        table = _table_of(clients)
        counts = 1 + rng.poisson(typical - 1, clients)
        first_round = 1 + -(-int(counts.sum()) // m)
        # About the mean of n draws of 1/τ, whose spread shrinks with √n.
        noisy_s = np.maximum(mean_s + rng.normal(0, 0.05, clients) / np.sqrt(counts), _TAU_MIN_S)
        _count(table, np.arange(clients), counts, counts / noisy_s)
        for t in range(first_round, first_round + 17):
            context = Context(
                round=t,
                table=table,
                eligible=table.eligible(),
                rng=generator(1, "bench", t),
                epsilon_budget=_BUDGET.epsilon_budget,
            )
            if t == first_round + 16:
                yield context  # only the last: later rounds change the table, which contexts share
            else:
                rows = Pause(m).select(None, context).rows
                latency_s = np.maximum(mean_s[rows] + rng.normal(0, 0.05, m), _TAU_MIN_S)
                _count(table, rows, np.ones(m, np.int64), 1 / latency_s)


def _count(table: ClientTable, rows: IntArray, times: IntArray, inverse_latency_sum: FloatArray) -> None:
    for column in (table.chosen, table.measured, table.released):
        column[rows] += times
    table.inverse_latency_sum[rows] += inverse_latency_sum
    table.epsilon_spent[rows] = -_BUDGET.epsilon_budget * np.expm1(-_BUDGET.eta * table.released[rows])
