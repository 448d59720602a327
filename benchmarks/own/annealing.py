"""How near annealing comes to the optimum that the exact search finds, under the published latencies.

A run's seed draws latencies and the chain. Its clients' ids break ties and, under R2, say which access point they
share. So each run here has a seed and ids of its own: what is said holds for more than one naming of the clients.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from benchmarks.own.quality import ROUNDS, SIZES, published_setting
from pausefl.results.statistics import mean_interval
from pausefl.studies.simulation.engine import simulate
from pausefl_proto.arrays import FloatArray
from pausefl_server.selection import Selection
from pausefl_server.selection.policies.sa_pause import SaPause

ANNEALINGS: tuple[dict[str, Any], ...] = (
    *(
        {"neighbourhood": neighbourhood, "temperature": temperature, "start_set": "random"}
        for neighbourhood in ("v2", "v1", "swap")
        for temperature in ("spread", "printed")
    ),
    {"neighbourhood": "v2", "temperature": "spread", "start_set": "exact"},
)
"""With the effort of the authors' code; then, for the smaller size, with this project's defaults."""
DEFAULT_EFFORT: dict[str, Any] = {"kappa": SaPause.kappa, "steps": SaPause.steps}
_REWARDS: tuple[Literal["R1", "R2"], ...] = ("R1", "R2")


def cases(seeds: int = 24) -> Iterator[dict[str, Any]]:
    """A case per size, reward and way of annealing, over `seeds` runs."""
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
    """How often a round's set is optimal, and by how much its energy falls short, on the policy's own runs."""
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
    """(n,) energy gaps of the rounds after everyone was seen: before, with equal data, all sets are optimal."""
    gaps: list[float] = []

    def note(selection: Selection) -> None:
        gaps.append(selection.details["gap"])

    setting = published_setting(clients, run, naming=f"run-{run}")
    simulate(policy, setting, ROUNDS, with_regret=False, watch=note)
    return np.array(gaps[clients // policy.m :])


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % bootstrap interval of the values' mean, each value being one run's; None with too few runs."""
    found = mean_interval(values)
    return found.low, found.high
