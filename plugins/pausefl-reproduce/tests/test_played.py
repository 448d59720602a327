"""The figures of a reproduction's runs: best accuracies, times to an accuracy, and differences seed by seed."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pausefl.results.reading import read_run
from pausefl.results.statistics import Interval
from pausefl_reproduce.played import ACCURACIES, _against, _best, _by_speed, _leakage_of, _waits, time_to
from pausefl_reproduce.waits import Waits
from pausefl_server.records import LogEvent
from rigs.log import record
from rigs.reports import write_run


def test_where_clients_join_later_the_best_is_of_the_evaluations_since_then() -> None:
    class Evaluated:
        groups: Mapping[str, Any] = {}

        def curve(self, _split: str, _by: str) -> tuple[Any, Any]:
            return np.array([2, 8, 10, 12]), np.array([0.5, 0.8, 0.6, 0.4])

    run: Any = Evaluated()
    assert _best(run) == 0.8
    run.groups = {"original": SimpleNamespace(join_round=1), "poisoned": SimpleNamespace(join_round=10)}
    assert _best(run) == 0.6


def test_a_series_of_short_runs_cuts_no_other_series_times() -> None:
    """The runs of the fastest clients end after 40 s; some seeds never reach the accuracy."""
    slow = Waits(np.array([100.0, 120.0, 150.0]), np.array([True, True, False]))
    base = Waits(np.array([200.0, 210.0, 220.0]), np.array([True, True, True]))
    short = Waits(np.array([10.0, 40.0, 41.0]), np.array([True, False, False]))
    assert time_to(slow, base)["horizon_s"] == 150.0
    assert time_to(slow, base)["mean"] == pytest.approx((100 + 120 + 150) / 3)
    assert time_to(short, base)["horizon_s"] == 41.0
    assert time_to(base, base) == {
        "reached": 3, "horizon_s": None, "mean": 210.0, "low": None, "high": None, "n_seeds": 3,
    }  # fmt: skip


def test_a_model_that_diverged_needs_longer_than_any_run_and_has_no_total() -> None:
    def run(seconds: float, accuracy: float, *, diverged: bool = False) -> Any:
        evaluations = {"seconds": [seconds], "accuracy": [accuracy]}
        said = {"diverged": diverged, "is_whole": not diverged, "total_latency_s": seconds}
        return SimpleNamespace(**said, evaluations=evaluations)

    runs: Any = {"a": [run(3, 0.1, diverged=True), run(50, 0.9)], "random": [run(60, 0.9), run(60, 0.9)]}
    waits = {name: _waits(of_series, 60.0) for name, of_series in runs.items()}
    lost, reached = (waits[name][0.8] for name in runs)
    assert lost.seconds.tolist() == [60, 50]
    assert time_to(lost, reached)["mean"] == pytest.approx(55)
    assert (_against(runs, waits, "a", "random") or {}).keys() == {"time_to_0.6_s", "time_to_0.7_s", "time_to_0.8_s"}


def test_a_run_that_its_budgets_ended_has_no_total() -> None:
    def run(rounds: int) -> Any:
        return SimpleNamespace(is_whole=rounds == 9, total_latency_s=float(rounds))

    short, random = [run(9), run(8)], [run(9), run(9)]
    unreached = dict.fromkeys(ACCURACIES, Waits(np.array([9.0, 9.0]), np.array([False, False])))
    waits = {"short": unreached, "random": unreached}
    assert _against({"short": short, "random": random}, waits, "short", "random") == {}
    assert _against({"short": [run(9), run(9)], "random": random}, waits, "short", "random") == {
        "total_latency_s": {"difference": asdict(Interval(0.0, None, None, 2)), "win_rate": 0.5}
    }


def test_what_failed_attempts_and_the_end_tell_of_budgets_counts_too(tmp_path: Path) -> None:
    """A release comes to light in a failed attempt, another after the last round, and budgets end there."""
    run = read_run(write_run(tmp_path / "run"))
    failed = record(2, events=(LogEvent("reconciled", "c", epsilon_spent=4.0, released=8),))
    attempts = {2: (failed,)}
    rounds = [replace(r, elapsed_s=r.round / 3, failed_attempts=attempts.get(r.round, ())) for r in run.records]
    clients = {**run.clients, "epsilon_spent": np.array([1.5, 9.0, 4.0]), "retired_before": np.array([4, 0, 2])}
    leak, by_speed = _leakage_of(replace(run, records=rounds, clients=clients))
    assert leak == {"round": [1, 2, 3], "epsilon": [1.0, 4.0, 9.0], "median": [0.5, 1.0, 4.0]}
    assert by_speed["retired_s"] == [0.0, 1.0, pytest.approx(1 / 3)], "the commit before the round without them"
    until_its_end: Any = [SimpleNamespace(by_speed=by_speed | {"retired_s": [float(f"{2 / 3:.7g}"), 0.0, 0.0]})]
    assert _by_speed(until_its_end, 2 / 3)["retired_by_fifth"] == [1.0, 0.0, 0.0, 0.0, 0.0]
