"""What the audit of a run shows after how many releases, where guesses are right as often as Laplace noise has it.

By binomials, which audits report, and by the trade-off curve for dependent noise; both as multiples of the claim.
"""

import math
from collections.abc import Iterator
from typing import Any

from pausefl.experiment.client_records import budget_of
from pausefl.experiment.loading import load_experiment
from pausefl_audit.audit import FALSE_ALARM
from pausefl_audit.findings import Guesses, guesses_all, multiple_of_claims
from pausefl_audit.trade_off import epsilon_by_trade_off

_PRESETS = ("demo", "small_cifar", "small_mnist")
_CANARIES = 64
_RELEASES = (5, 15, 75, 500)


def cases() -> Iterator[dict[str, Any]]:
    """A case for each setting, at its first ε, and number of releases."""
    for preset in _PRESETS:
        budget = budget_of(load_experiment(preset).privacy)
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
