"""Measures how close annealing comes to the optimum of the exact search, under the published latencies.

A run's seed determines its latencies and its annealing chain. The clients' ids break ties and, under R2, determine
which clients share an access point. So each run here has its own seed and ids: results then hold for any naming.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np

from benchmarks.own.quality import ROUNDS, SIZES, published_setting
from pausefl.results.statistics import mean_interval
from pausefl.studies.simulation.engine import simulate
from pausefl_proto.arrays import FloatArray
from pausefl_server.selection import Context, Selection
from pausefl_server.selection.policies.sa_pause import SaPause

ANNEALINGS: tuple[dict[str, Any], ...] = (
    *(
        {"neighbourhood": neighbourhood, "temperature": temperature, "start_set": "random"}
        for neighbourhood in ("v2", "v1", "swap")
        for temperature in ("spread", "printed")
    ),
    {"neighbourhood": "v2", "temperature": "spread", "start_set": "exact"},
)
"""The ways of annealing. All have the effort of the authors' code; two get `DEFAULT_EFFORT` too, at the small size."""
DEFAULT_EFFORT: dict[str, Any] = {"kappa": SaPause.kappa, "steps": SaPause.steps}
_REWARDS: tuple[Literal["R1", "R2"], ...] = ("R1", "R2")


def cases(seeds: int = 24) -> Iterator[dict[str, Any]]:
    """Yields a case per size, reward and way of annealing, over `seeds` runs."""
    for (clients, m, clusters, zeta, published), reward in itertools.product(SIZES, _REWARDS):
        small = clients == SIZES[0][0]
        ways = [way | published for way in ANNEALINGS]
        ways += [way | DEFAULT_EFFORT for way in (ANNEALINGS[0], ANNEALINGS[-1]) if small]
        for way in ways:
            policy = SaPause(m, reward=reward, clusters=clusters, zeta=zeta, **way)
            yield {
                "name": "annealing",
                "clients": clients,
                "m": m,
                "reward": reward,
                **way,
                **_gaps(policy, clients, seeds),
            }


def _gaps(policy: SaPause, clients: int, runs: int) -> dict[str, Any]:
    """The share of rounds with an optimal set and the mean energy gap, with intervals over the policy's own runs."""
    gaps = [_gaps_of_run(policy, clients, run) for run in range(1, runs + 1)]
    optimal = [float(np.mean(of_run < 1e-9)) for of_run in gaps]
    means = [float(np.mean(of_run)) for of_run in gaps]
    return {
        "runs": runs,
        "optimal_share": float(np.mean(optimal)),
        "optimal_share_ci95": _interval(optimal),
        "gap_mean": float(np.mean(means)),
        "gap_mean_ci95": _interval(means),
        "optimal_share_by_run": [round(share, 4) for share in optimal],
    }


def _gaps_of_run(policy: SaPause, clients: int, run: int) -> FloatArray:
    """The energy gaps, (n,), after all clients were seen. Before, since data is equal, all sets are optimal."""
    gaps: list[float] = []

    class Noting(SaPause):
        def select(self, state: Any, context: Context) -> Selection:
            selection = super().select(state, context)
            gaps.append(selection.details["gap"])
            return selection

    noting = Noting(**{field.name: getattr(policy, field.name) for field in fields(policy) if field.init})
    simulate(noting, published_setting(clients, run, naming=f"run-{run}"), ROUNDS, with_regret=False)
    return np.array(gaps[clients // policy.m :])


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % bootstrap interval of the mean of `values`, one per run. (None, None) with too few runs."""
    found = mean_interval(values)
    return found.low, found.high
