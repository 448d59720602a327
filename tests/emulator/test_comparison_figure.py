"""What a comparison draws and prints, and what it leaves out."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from pausefl.results.report.comparison import as_json, compare, write_comparison
from pausefl.results.report.comparison.figure import band_note, draw_comparison
from pausefl.results.statistics import mean_interval
from rigs.comparisons import ACCURACIES, rewrite_summary, write_run, write_runs


@pytest.mark.parametrize("seeds", [(1, 2), (1, 2, 3, 4, 5)])
def test_the_whiskers_of_the_totals_are_the_interval_of_the_bands(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    comparison = compare(write_runs(tmp_path, seeds))
    figure = draw_comparison(comparison.runs, comparison.split, comparison.privacy, comparison.common_accuracy)
    (bars,) = (axes.collections[0] for axes in figure.axes if axes.get_xlabel().startswith("latency ("))
    assert isinstance(bars, LineCollection)
    for (start, end), of_policy in zip(bars.get_segments(), comparison.runs.values(), strict=True):
        totals_s = [run.summary["total_latency_s"] for run in of_policy]
        interval = mean_interval(totals_s)
        ends = (min(totals_s), max(totals_s)) if len(seeds) < 5 else (interval.low, interval.high)
        assert (start[0], end[0]) == pytest.approx(ends)
    page = write_comparison(comparison, tmp_path / "out").read_text("utf-8")
    assert page.count(band_note(len(seeds))) >= 2
    assert figure.get_supxlabel().endswith(f"band and whisker: {band_note(len(seeds))}")


def test_runs_never_evaluated_are_compared_all_the_same(tmp_path: Path) -> None:
    runs = {policy: [write_run(tmp_path / policy, policy, 1, tested=False)] for policy in ACCURACIES}
    comparison = compare(runs)
    assert comparison.common_accuracy is None
    assert comparison.rows[0].time_to_common_s is None
    assert "never evaluated" in write_comparison(comparison, tmp_path / "out").read_text(encoding="utf-8")
    figure = draw_comparison(comparison.runs, comparison.split, comparison.privacy, None)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Greatest leakage of a client", "Total latency"]
    assert figure.legends
    assert figure.get_supxlabel() == "one seed: differences may be chance"


def test_runs_of_different_budgets_are_drawn_with_each_of_them(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, (1, 2))
    for run_dir in runs["random"]:
        rewrite_summary(run_dir, epsilon_budget=1.0)
    comparison = compare({"random": runs["random"], "pause": runs["pause"]})
    table = as_json(comparison)
    assert table["epsilon_budget"] is None
    assert [row["epsilon_budget"] for row in table["policies"]] == [1.0, 40.0]
    figure = draw_comparison(comparison.runs, comparison.split, comparison.privacy, comparison.common_accuracy)
    (panel,) = (axes for axes in figure.axes if axes.get_title(loc="left") == "Greatest leakage of a client")
    assert {text.get_text() for text in panel.texts} == {"budget ε = 1", "budget ε = 40"}
    top = panel.get_ylim()[1]
    assert top > 40
    assert all(np.max(np.asarray(line.get_ydata())) < top for line in panel.lines)
    assert "and the budgets, which differ." in write_comparison(comparison, tmp_path / "out").read_text("utf-8")
    same = as_json(compare({"random": runs["random"]}))
    assert same["epsilon_budget"] == same["policies"][0]["epsilon_budget"] == 1.0
