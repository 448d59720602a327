"""How long the exact searches, the annealing and the client table take, and how good whole runs are.

Times of a search are over several states: realistic ones, on the trajectory of PAUSE itself under the published
latencies, and adversarial ones, in which no row can be skipped. `median_s` and `p99_s` are over the calls on
realistic states; `worst_s` is the greatest median of any state, adversarial ones included.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pausefl.bench.selection import quality
from pausefl.bench.selection.states import after_rounds, table_of
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_server.records import Observation, RoundRecord, Timing
from pausefl_server.search import clustered_pivot_and_fill, pivot_and_fill
from pausefl_server.selection import Context, Selection
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.policies.sa_pause import SaPause

_SIZES: tuple[tuple[int, int, int], ...] = ((300, 15, 20), (100_000, 1_000, 1_000), (1_000_000, 1_000, 1_000))
"""(K, m, clusters)."""


def cases(seeds: int = 10, clients_max: int = 1_000_000) -> Iterator[dict[str, Any]]:
    """Searches of up to `clients_max` clients, annealing, the client table; whole runs over `seeds` seeds, or none."""
    for clients, m, clusters in (size for size in _SIZES if size[0] <= clients_max):
        yield from _searches(clients, m, clusters)
    yield from _annealing()
    yield _table_update(clients_max, 1_000)
    if seeds:
        yield from quality.cases(seeds)


def _searches(clients: int, m: int, clusters: int) -> Iterator[dict[str, Any]]:
    policy = Pause(m, reward="R2", clusters=clusters, zeta=3.0)
    contexts = list(after_rounds(clients, m))
    realistic = [policy.choice(None, context) for context in contexts]
    adversarial = _adversarial(clients, m, clusters)

    def r1(choice: Choice) -> object:
        return pivot_and_fill(choice.ucb, choice.value, m)

    def r2(choice: Choice) -> object:
        penalty = float(choice.marginal[-1])
        return clustered_pivot_and_fill(choice.ucb, choice.value, m, choice.cluster, penalty)

    size = f"{clients:,} / {m:,}"
    yield _timed(f"R1 exact, {size}", r1, realistic, adversarial)
    yield _timed(f"R2 exact, {size} / {clusters:,} clusters", r2, realistic, adversarial)
    for whole in (replace(policy, reward="R1"), policy):
        yield _timed(f"whole selection, pause {whole.reward}, {size}", partial(whole.select, None), contexts)


def _annealing() -> Iterator[dict[str, Any]]:
    contexts = list(after_rounds(300, 15))
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
    """Label diversity as a user would first write it: a function of the set, computed anew for every proposal."""
    histograms = np.random.default_rng(0).random((len(rows), 10))
    histograms *= context.table.n_examples[rows, None]

    def entropy(positions: Any) -> float:
        share = histograms[positions].sum(axis=0)
        share /= share.sum()
        return float(-(share * np.log(share)).sum() / np.log(10))

    return entropy


def _table_update(clients: int, m: int) -> dict[str, Any]:
    """One committed round folded into a table of `clients` rows, `m` of them observed."""
    table, budget = table_of(clients), Budget(100.0, 0.04)
    rng = generator(1, "bench", "table")

    def record(t: int) -> RoundRecord:
        ids = [table.ids[row] for row in rng.choice(clients, m, replace=False)]
        answers = tuple(Observation(i, Timing(0.3), 0.3, 100, t, budget.epsilon(t), budget.spent(t)) for i in ids)
        return RoundRecord(t, 0, tuple(ids), None, answers, (), 0.3, 0.0, 0.0, "")

    case = f"client table after a round, {clients:,} clients, {m:,} chosen"
    return _timed(case, table.apply_round, [record(t) for t in range(1, 16)], repeats=1)


def _adversarial(clients: int, m: int, clusters: int) -> list[Choice]:
    """States in which every row enters the heap, all rows are equal, or there are few distinct values."""
    rng = generator(1, "bench", "adversarial", clients)
    shuffled = rng.permutation(clients)
    rising, zeros = np.arange(clients, dtype=np.float64), np.zeros(clients)
    cluster = rng.integers(0, clusters, clients)
    problems = (
        # Values rise as ucb falls, by so much that no threshold can be ruled out early.
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
    started = time.perf_counter()
    if repeats is None:
        call(realistic[-1])
        repeats = int(np.clip(0.3 / (time.perf_counter() - started), 3, 100))
    usual = [_times_s(call, state, repeats) for state in realistic]
    hard = [_times_s(call, state, repeats) for state in adversarial]
    return {
        "name": "selection",
        "case": case,
        "median_s": float(np.median(np.concatenate(usual))),
        "p99_s": float(np.quantile(np.concatenate(usual), 0.99)),
        "worst_s": float(max(np.median(times) for times in (*usual, *hard))),
    }


def _times_s(call: Callable[[Any], Any], state: Any, repeats: int) -> Any:
    times = np.empty(repeats)
    for i in range(repeats):
        started = time.perf_counter()
        call(state)
        times[i] = time.perf_counter() - started
    return times


def _anneal(policy: SaPause, context: Context) -> Selection:
    """A round's choice, from a fresh generator."""
    rng = generator(1, "bench", "annealing", context.round)
    return policy.select(None, replace(context, rng=rng, clock=time.monotonic))
