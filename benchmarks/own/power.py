"""Computes the ε that a run's audit can prove, by releases, if guesses are right as often as Laplace noise implies.

Two bounds, each divided by the claim: by binomials, as audits report it, and by the trade-off curve of dependent noise.
"""

import math
from collections.abc import Iterator
from typing import Any

from benchmarks.own.trade_off import epsilon_by_trade_off
from pausefl.experiment.experiment import load_experiment
from pausefl_audit.audit import FALSE_ALARM
from pausefl_audit.findings import Guesses, guesses_all, multiple_of_claims

_PRESETS = ("demo", "small_cifar", "small_mnist")
_CANARIES = 64
_RELEASES = (5, 15, 75, 500)


def cases() -> Iterator[dict[str, Any]]:
    """Yields a case for each preset, at the ε of its first release, and each number of releases."""
    for preset in _PRESETS:
        budget = load_experiment(preset).privacy.budget
        assert budget is not None
        for releases in _RELEASES:
            epsilon, canaries = budget.epsilon(1), _CANARIES * releases
            clear = Guesses(epsilon, releases, canaries, round(canaries * (1 + math.exp(-epsilon)) / 2), canaries // 2)
            every = Guesses(epsilon, releases, canaries, canaries, round(canaries * (1 - math.exp(-epsilon / 2) / 2)))
            reported = every if guesses_all(epsilon) else clear
            yield {
                "name": "power",
                "case": f"{preset}, {releases} releases",
                "epsilon": epsilon,
                "multiple": multiple_of_claims([reported], FALSE_ALARM),
                "by_trade_off": max(epsilon_by_trade_off(g, FALSE_ALARM) for g in (clear, every)) / epsilon,
            }
