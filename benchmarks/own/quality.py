"""Simulates whole runs of the policies under the published latencies, for a comparison with the archived runs."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pausefl.experiment.delay_laws.combined import published_delay
from pausefl.studies.simulation.engine import Setting, server_of, simulate
from pausefl_proto.budget import Budget
from pausefl_server.selection import Policy
from pausefl_server.selection.policies.baselines import Random
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.policies.sa_pause import SaPause

ROUNDS = 300
AFTER = (50, 100, 200, 300)
"""Rounds after which the archived runs' leakage is known."""
SIZES: tuple[tuple[int, int, int, float, dict[str, Any]], ...] = (
    (30, 5, 6, 1.0, {"kappa": 30.0, "steps": 500}),
    (300, 15, 20, 3.0, {"kappa": 70.0, "steps": 3000}),
)
"""The sizes: (K, m, number of clusters, ζ, the annealing of the authors' code)."""


def cases(seeds: int = 10) -> Iterator[dict[str, Any]]:
    """Yields a case per size and policy, over `seeds` seeds."""
    for clients, m, _, zeta, annealing in SIZES:
        published = {"zeta": zeta, **annealing}
        policies: tuple[tuple[str, Policy], ...] = (
            ("pause", Pause(m, zeta=zeta)),
            ("pause, gamma 50", Pause(m, zeta=zeta, gamma=50.0)),
            ("sa-pause v2, random start", SaPause(m, start_set="random", **published)),
            ("sa-pause v1, random start", SaPause(m, start_set="random", neighbourhood="v1", **published)),
            ("random", Random(m)),
        )
        for name, policy in policies:
            yield _runs(f"{ROUNDS} rounds, {clients} / {m}, {name}", policy, clients, seeds)


def published_setting(clients: int, seed: int, naming: str = "client") -> Setting:
    """The published latencies, ε̄ = 100, η = 0.04 and equal data. Clients are called NAMING-000 and so on."""
    ids = [f"{naming}-{k:03}" for k in range(clients)]
    laws = {client_id: published_delay(k, clients) for k, client_id in enumerate(ids)}
    return Setting(laws, dict.fromkeys(ids, 100), server_of(0.05, Budget(100.0, 0.04), seed))


def _runs(case: str, policy: Policy, clients: int, seeds: int) -> dict[str, Any]:
    """The simulated total latency, with its mean and standard deviation over seeds, and the mean greatest leakage."""
    runs = [
        simulate(policy, published_setting(clients, seed), ROUNDS, with_regret=False) for seed in range(1, seeds + 1)
    ]
    totals = np.array([run.total_latency_s[-1] for run in runs])
    leaks = np.array([run.max_epsilon_spent[np.array(AFTER) - 1] for run in runs]).mean(axis=0)
    return {
        "name": "quality",
        "case": case,
        "total_latency_s": float(totals.mean()),
        "total_latency_sd_s": float(totals.std(ddof=1)),
        **{f"max_epsilon_at_{t}": float(leak) for t, leak in zip(AFTER, leaks, strict=True)},
    }
