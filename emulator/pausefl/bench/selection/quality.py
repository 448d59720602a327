"""How good the policies' choices are under the published latencies: SA against the optimum, and whole runs."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from pausefl.delays import published_halves
from pausefl.simulation.engine import Setting, simulate
from pausefl_proto.budget import Budget
from pausefl_server.selection import Policy, Selection
from pausefl_server.selection.pause import Pause
from pausefl_server.selection.sa_pause import SaPause
from pausefl_server.selection.uniform import Random

ROUNDS = 300
AFTER = (50, 100, 200, 300)
"""Rounds after which the archived runs' leakage is known."""
SIZES: tuple[tuple[int, int, int, float, dict[str, Any]], ...] = (
    (30, 5, 6, 1.0, {"kappa": 30.0, "steps": 500}),
    (300, 15, 20, 3.0, {"kappa": 70.0, "steps": 3000}),
)
"""(K, m, clusters, ζ, the annealing of the authors' code)."""

ANNEALINGS: tuple[dict[str, Any], ...] = (
    {"start_set": "exact"},
    *(
        {"start_set": "random", "neighbourhood": neighbourhood, "temperature": temperature}
        for neighbourhood in ("v2", "v1", "swap")
        for temperature in ("spread", "printed")
    ),
)


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Gap tables, then whole runs."""
    for clients, m, clusters, zeta, annealing in SIZES:
        published = {"zeta": zeta, **annealing}
        for reward, options in itertools.product(("R1", "R2"), ANNEALINGS):
            annealed = SaPause(m, **{"reward": reward, "clusters": clusters, **published, **options})
            what = f"{annealed.neighbourhood}, C {annealed.temperature}, {annealed.start_set} start"
            yield _gaps(f"gap to the optimum, {reward}, {clients} / {m}, {what}", annealed, clients, min(seeds, 3))
        policies: tuple[tuple[str, Policy], ...] = (
            ("pause", Pause(m, zeta=zeta)),
            ("pause, gamma 50", Pause(m, zeta=zeta, gamma=50.0)),
            ("sa-pause v2, random start", SaPause(m, start_set="random", **published)),
            ("sa-pause v1, random start", SaPause(m, start_set="random", neighbourhood="v1", **published)),
            ("random", Random(m)),
        )
        for name, policy in policies:
            yield _runs(f"{ROUNDS} rounds, {clients} / {m}, {name}", policy, clients, seeds)


def published_setting(clients: int, seed: int) -> Setting:
    """The published latencies, ε̄ = 100 and η = 0.04, equal data."""
    ids = [f"client-{k:03}" for k in range(clients)]
    laws = dict(zip(ids, published_halves(clients), strict=True))
    return Setting(laws, dict.fromkeys(ids, 100), 0.05, Budget(100.0, 0.04), seed)


def _gaps(case: str, policy: SaPause, clients: int, seeds: int) -> dict[str, Any]:
    """How often a round's set is an optimal one, and by how much its energy falls short, on the policy's own runs.

    The first K/m rounds do not count: their clients are all unseen and, with equal data, all sets are optimal.
    """
    gaps: list[float] = []

    def note(selection: Selection) -> None:
        gaps.append(selection.details["gap"])

    for seed in range(1, seeds + 1):
        simulate(policy, published_setting(clients, seed), ROUNDS, with_regret=False, watch=note)
    gaps = [gap for i, gap in enumerate(gaps) if i % ROUNDS >= clients // policy.m]
    return {
        "name": "selection",
        "case": case,
        "hit_rate": float(np.mean(np.array(gaps) < 1e-9)),
        "gap_mean": float(np.mean(gaps)),
        "gap_p95": float(np.quantile(gaps, 0.95)),
    }


def _runs(case: str, policy: Policy, clients: int, seeds: int) -> dict[str, Any]:
    """Simulated total latency and greatest leakage, mean and standard deviation over seeds."""
    runs = [
        simulate(policy, published_setting(clients, seed), ROUNDS, with_regret=False) for seed in range(1, seeds + 1)
    ]
    totals = np.array([run.total_latency_s[-1] for run in runs])
    leaks = np.array([run.max_epsilon_spent[np.array(AFTER) - 1] for run in runs]).mean(axis=0)
    return {
        "name": "selection",
        "case": case,
        "total_latency_s": float(totals.mean()),
        "total_latency_sd_s": float(totals.std()),
        **{f"max_epsilon_at_{t}": float(leak) for t, leak in zip(AFTER, leaks, strict=True)},
    }
