"""A small search, and fake measurements: one fails at chosen settings and seeds, the other plays no run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pausefl.studies.campaign import Missing, Planned
from pausefl.studies.playing import OneByOne
from pausefl_tune import measure
from pausefl_tune.measure import Figures, Measure, SettingRefused
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


def measure_by_m(asked: TuningPlan, folder: Path, figures: Mapping[int, Figures], patch: pytest.MonkeyPatch) -> Measure:
    """A measurement whose runs have the figures that are given for their m."""
    found = dict[Path, Figures]()

    def play(_: OneByOne, runs: Sequence[Planned], into: Path) -> Missing:
        found.update({into / run.name: figures[run.experiment.selection.m] for run in runs})
        return {}

    patch.setattr(OneByOne, "play", play)
    patch.setattr(measure, "figures_of_run", lambda run_dir, _: found[run_dir])
    return Measure(asked, folder, OneByOne(lambda _: pytest.fail("shows nothing")))
