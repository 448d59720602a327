"""A small search, and a fake measurement that fails at chosen settings and seeds."""

from pausefl_tune.measure import Figures, SettingRefused
from pausefl_tune.plan import Point, TuningPlan

SMALL = """
[experiment]
rounds = 30
[clients]
count = 8
[selection]
m = 2
[workload]
model = "synthetic"
"""

SEARCH = ["selection.pause.alpha=log:0.1..1000", "selection.pause.gamma=0..20", "selection.m=1,2,3"]


def plan(**changes: object) -> TuningPlan:
    return TuningPlan(**{"source": SMALL, "search": SEARCH, "trials": 8, "seeds": 2, "fresh_seeds": 3} | changes)  # type: ignore[arg-type]  # of several types


class FailingAt:
    """Measures a setting by its alpha. The given (alpha, seed) pairs fail."""

    def __init__(self, *failing: tuple[float | None, int]) -> None:
        self._failing = failing

    def __call__(self, point: Point, seed: int) -> Figures:
        alpha = point.get("selection.pause.alpha")
        if (alpha, seed) in self._failing:
            raise SettingRefused("runs/ab12: the run failed (too few updates)")
        return {
            "total_latency_s": 9.0 if alpha is None else alpha, "max_epsilon_spent": 4.0, "imbalance": 0.5,
            "final_accuracy": 0.7,
        }  # fmt: skip
