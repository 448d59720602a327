"""What a reproduction's runs say: figures of series whose runs differ, the page of results, and its drawings."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from docs.write_results import results_page
from pausefl.results.report.style import rendered
from pausefl.results.statistics import Interval
from pausefl_reproduce.figure import draw_reproduction
from pausefl_reproduce.played import ACCURACIES, _against, _best, _waits, time_to
from pausefl_reproduce.waits import Waits


def stored(drawing: str) -> dict[str, Any]:
    """A summary as reproduction.json holds it, of six seeds."""
    interval = {"mean": 0.7, "low": 0.6, "high": 0.8, "n_seeds": 6}
    long = {"mean": 150.0, "low": 140.0, "high": 160.0, "n_seeds": 6}
    curve = {"x": [0.0, 50.0, 100.0], "mean": [0.1, 0.5, 0.8], "low": [0.0, 0.4, 0.7], "high": [0.2, 0.6, 0.9]}
    time = {"reached": 4, "horizon_s": 90.0, "mean": 40.0, "low": 30.0, "high": 50.0, "n_seeds": 6}
    by_all = {**time, "reached": 6, "horizon_s": None}
    difference = {"difference": {"mean": -9.0, "low": -12.0, "high": -5.0, "n_seeds": 6}, "win_rate": 0.75}
    selections = {"relevant-000": {"role": "relevant", "mean": 9.0}, "bad-000": {"role": "irrelevant", "mean": 2.0}}
    series = {
        "seeds": [1, 2, 3, 4, 5, 6],
        "rounds": 100,
        **dict.fromkeys(("last_accuracy", "best_accuracy"), interval),
        **dict.fromkeys(("total_latency_s", "greatest_leak", "median_leak"), long),
        "suspect_rounds": 0,
        "wall_clock_s": 1.0,
        "time_to": {"0.6": time, "0.7": by_all, "0.8": {**time, "reached": 0}},
        **dict.fromkeys(("accuracy_by_latency", "accuracy_by_round", "leak_by_round", "leak_by_latency"), curve),
        "median_leak_by_latency": curve,
        "newcomers": {"selections": selections, "by_round": curve},
        "epsilon_by_speed": [200.0, 100.0, 50.0],
        "best_by_seed": [0.6, 0.65, 0.7, 0.7, 0.75, 0.8],
    }
    return {
        "name": "small_mnist",
        "title": "A figure",
        "drawing": drawing,
        "leakage_over": "round",
        "scale": "full",
        "command": "pausefl reproduce small_mnist",
        "left_out": [],
        "hardware": "2 cores",
        "software": "1",
        "settings": {"rounds": 9, "clients": 3, "m": 2, "dataset": "mnist", "model": "mlp", "time_scale": 1.0},
        "privacy_unit": "coordinate",
        "epsilon_budget": 200.0,
        "baseline": "random",
        "published": {"pause": {"accuracy": [[50, 63.1]], "best": 83.9, "leak": [[100, 106]]}},
        "series": {
            "pause": {**series, "against_baseline": {"total_latency_s": difference, "time_to_0.6_s": difference}},
            "random": {**series, "against_baseline": None},
        },
    }


@pytest.mark.parametrize("drawing", ["latency", "elapsed", "rounds", "selections", "newcomers", "best"])
def test_each_drawing_shows_its_series(drawing: str, tmp_path: Path) -> None:
    (tmp_path / "it.png").write_bytes(rendered(draw_reproduction(stored(drawing)), "png"))
    assert matplotlib.image.imread(tmp_path / "it.png")[..., :3].var() > 1e-3


def test_a_section_shows_intervals_censored_seeds_and_published_values() -> None:
    page = results_page([stored("latency")])
    (row,) = re.findall(r"^\| `pause` .*", page, re.MULTILINE)
    assert "70.0 [60.0, 80.0], median 70.0 (66.2–73.8); archived 83.9" in row
    assert "| 40.0 [30.0, 50.0] (4 of 6 reached it; waits up to 90.0 s) | 40.0 [30.0, 50.0] |" in row
    assert "time to 80 %" not in page
    assert "150 [140, 160]; archived 106" in row
    assert "`pause` less `random`: total latency -9.0 [-12.0, -5.0] s, win rate 75 %; time to 60 % -9.0" in page
    assert "win rate 75 %, of waits up to 90.0 s." in page


def cells(summary: dict[str, Any], name: str) -> list[str]:
    """The series' last accuracy and total latency as the page has them."""
    (row,) = re.findall(rf"^\| `{name}` .*", results_page([summary]), re.MULTILINE)
    return [cell.strip() for cell in row.split("|")[3:5]]


def test_published_totals_stand_beside_runs_of_as_many_rounds() -> None:
    """Those without a number of rounds are of the figure's, 300; a figure may be repeated with fewer."""
    summary = stored("latency")
    series = summary["series"]["pause"]
    summary["published"]["pause"] = {"final": 80.0, "total_s": 152, "rounds": None}
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]", "150 [140, 160]"]
    series["rounds"] = 300
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]; archived 80", "150 [140, 160]; archived 152"]
    series["budgets_spent_after"] = [299]
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]", "150 [140, 160]"]


def test_a_section_tells_how_many_rounds_were_played_and_of_how_many() -> None:
    summary = stored("latency")
    summary["settings"]["rounds"] = 100
    assert "\n- 100 rounds, 3 clients" in results_page([summary])
    pause, random = summary["series"].values()
    pause.update(rounds=24, budgets_spent_after=[24] * 6, total_latency_s=None)
    random.update(rounds=23, budgets_spent_after=[23] * 6, total_latency_s=None)
    page = results_page([summary])
    assert "\n- 23 to 24 of 100 rounds, 3 clients" in page
    assert f"0 of {6 * (23 + 24)} rounds are suspect" in page
    told = "privacy budgets ended the run with 6 of 6 seeds, after round 24 / 24 / 24 / 24 / 24 / 24."
    assert f"- `pause`: {told} Its curves end with the first of these." in page
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]", "–"]
    assert "time to 60 % (s)" in page, "links had delays, though no total is left"


def test_where_clients_join_later_the_best_is_of_the_evaluations_since_then() -> None:
    class Evaluated:
        groups: Mapping[str, Any] = {}

        def accuracy_by_round(self, _split: str) -> tuple[Any, Any]:
            return np.array([2, 8, 10, 12]), np.array([0.5, 0.8, 0.6, 0.4])

    run: Any = Evaluated()
    assert _best(run) == 0.8
    run.groups = {"original": SimpleNamespace(join_round=1), "poisoned": SimpleNamespace(join_round=10)}
    assert _best(run) == 0.6


def test_a_series_of_short_runs_cuts_no_other_series_times() -> None:
    """The fastest clients' runs end after 40 s, with seeds that never reached the accuracy."""
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
        return SimpleNamespace(
            diverged=diverged, is_whole=not diverged, total_latency_s=seconds, evaluations=evaluations
        )

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
