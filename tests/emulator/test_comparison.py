"""Comparisons of several policies: the figures computed from their runs, and the files written."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from pausefl.results.report.comparison import Comparison, as_json, as_table, compare, write_comparison
from pausefl.results.report.comparison.figure import band_note, chosen_by_latency, draw_comparison, draw_why, drawings
from pausefl.results.report.sweep import draw_sweep
from pausefl.results.statistics import Spread, mean_interval
from pausefl_proto.errors import ConfigError
from rigs.comparisons import ACCURACIES, cut_short, grouped_runs, rewrite_summary, write_run, write_runs
from rigs.log import changing_log

pytestmark = pytest.mark.usefixtures("quickly_written")

Runs = Mapping[str, Sequence[Path]]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Run directories by policy, of three seeds each."""
    return write_runs(tmp_path)


def drawn(comparison: Comparison) -> Figure:
    return draw_comparison(comparison.runs, comparison.split, comparison.privacy, comparison.common_accuracy)


def test_time_to_the_common_accuracy_and_what_it_saves(runs: Runs) -> None:
    comparison = compare(runs)
    assert comparison != compare(runs)  # which compares no arrays
    assert (comparison.baseline, comparison.common_accuracy) == ("random", 0.75)
    pause, random = comparison.rows
    assert pause.time_to_common_s == Spread.of([3.0, 6.0, 9.0])
    assert random.time_to_common_s == Spread.of([8.0, 16.0, 24.0])
    assert pause.latency_saved == Spread.of([1 - 3 / 8] * 3)
    assert random.latency_saved == Spread.of([0.0] * 3)
    assert pause.total_latency_s == Spread.of([4.0, 8.0, 12.0])
    assert random.final_accuracy == Spread.of([0.75] * 3)
    assert pause.best_accuracy == Spread.of([0.8] * 3)


def test_runs_that_differ_in_more_than_their_policy_are_no_same_experiment(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, (1, 2))
    own = {"pause": "[selection.pause]\nalpha = 1.0\n", "random": "[clients]\nminimum = 1\n"}
    for policy, of_policy in runs.items():
        for seed, run in enumerate(of_policy, 1):
            setting = f'[experiment]\nseed = {seed}\n[selection]\npolicy = "{policy}"\n{own[policy]}'
            (run / "config.toml").write_text(setting)
    same = compare(runs)
    assert same.differences == []
    assert "The same experiment under 2 policies" in write_comparison(same, tmp_path / "same").read_text("utf-8")
    changed = (runs["random"][1] / "config.toml", runs["pause"][0] / "config.toml")
    changed[0].write_text(changed[0].read_text() + '[workload]\nmodel = "cnn3"\n[metrics]\nport = 1\n')
    changed[1].write_text(changed[1].read_text().replace("1.0", "2.0"))
    unlike = compare(runs)
    assert unlike.differences == as_json(unlike)["differences"] == ["selection.pause.alpha", "workload.model"]
    page = write_comparison(unlike, tmp_path / "unlike").read_text("utf-8")
    assert "Runs of 2 names, which differ in selection.pause.alpha, workload.model; seeds 1, 2" in page
    assert "the runs differ in selection.pause.alpha, workload.model" in str(as_table(unlike).caption)


def test_a_comparison_over_unequal_machines_says_so_and_one_seed_claims_no_saving(runs: Runs) -> None:
    for policy, cores in (("pause", 2), ("random", 4)):
        assert "machines" not in compare(runs).warning
        rewrite_summary(runs[policy][0], starts=[{"machine": f"{cores} cores, a processor"}])
    rewrite_summary(runs["pause"][0], suspect_rounds=3)
    assert "played on unequal machines: 2 cores, a processor; 4 cores, a processor" in compare(runs).warning
    assert "3 of 24 rounds are suspect" in compare(runs).warning
    comparison = compare({policy: of_policy[:1] for policy, of_policy in runs.items()})
    assert comparison.no_saving_because == "one seed"
    assert all((row.latency_saved, row.time_difference_s) == (None, None) for row in comparison.rows)
    assert all(row.time_to_common_s is not None for row in comparison.rows)
    assert comparison.spread_note == ""


def test_runs_of_unequal_length_are_marked_wherever_they_are_compared(runs: Runs, tmp_path: Path) -> None:
    cut_short(runs["pause"][0], 2)
    comparison = compare(runs)
    few = "no saving is claimed: a run has 2 evaluations, fewer than 3 (evaluation.every)"
    assert comparison.warning == f"runs have 2 to 4 rounds: their totals do not compare; {few}"
    page = write_comparison(comparison, tmp_path)
    for said in (str(as_table(comparison).caption), page.read_text(), str(as_json(comparison)["warning"])):
        assert comparison.warning in said


def test_a_comparison_at_the_first_models_level_claims_no_saving(runs: Runs) -> None:
    assert compare(runs).no_saving_because == ""
    with changing_log(runs["random"][0]) as database:
        database.execute("UPDATE evaluations SET round = 0, accuracy = 0.75 WHERE round = 1")
    comparison = compare(runs)
    assert comparison.no_saving_because.startswith("75.0% is no more than the first model or most frequent class")
    assert all(row.latency_saved is None for row in comparison.rows)
    assert as_json(comparison)["warning"] == f"no saving is claimed: {comparison.no_saving_because}"


def test_a_failed_run_wins_nothing(tmp_path: Path) -> None:
    """A failed run ended early: it reached a lower accuracy than the others, but sooner."""
    runs = write_runs(tmp_path, (1, 2))
    rewrite_summary(runs["pause"][0], outcome="failed")
    comparison = compare(runs)
    assert comparison.warning == "1 of 4 runs failed (pause)"
    assert "some run failed, so there is no accuracy that all reach" in comparison._repr_html_()
    texts = [text.get_text() for axes in drawn(comparison).axes for text in axes.texts]
    assert not any("common" in text or "not evaluated" in text for text in texts)
    table = json.loads(json.dumps(as_json(comparison)))
    assert table["common_accuracy"] is None
    for row in table["policies"]:
        assert [row[name] for name in ("time_to_common_s", "latency_saved", "time_difference_s")] == [None] * 3
    page = write_comparison(comparison, tmp_path / "out").read_text("utf-8")
    assert comparison._repr_html_().count("<td>–<br>") == 2 * 3
    for said in (str(as_table(comparison).caption), page, table["warning"]):
        assert comparison.warning in said
    assert compare({"random": runs["random"]}).common_accuracy == 0.75


def test_spread_shows_the_range_of_few_seeds_and_the_interval_of_many() -> None:
    def text(*values: float, is_skewed: bool = False) -> tuple[str, str]:
        spread = Spread.of(values)
        assert spread is not None
        return spread.text(lambda value: f"{value:.1f}", is_skewed=is_skewed)

    assert text(2.0) == ("2.0", "")
    assert text(1.0, 3.0) == ("2.0", "1.0–3.0")
    assert text(*[2.0] * 5) == ("2.0", "")
    assert text(1.0, 2.0, 3.0, 4.0, 5.0) == ("3.0", "[1.8, 4.2]")
    assert text(1.0, 4.0, 4.5, 5.0, 5.5, is_skewed=True) == ("4.0", "4.5 (4.0–5.0)")
    assert Spread.of([1.0, None]) is None


@pytest.mark.pictures
def test_files_are_written_and_the_figure_is_not_blank(runs: Runs, tmp_path: Path) -> None:
    comparison = compare(runs)
    page = write_comparison(comparison, tmp_path / "out")
    table = json.loads((page.parent / "comparison.json").read_text(encoding="utf-8"))
    assert [row["policy"] for row in table["policies"]] == ["pause", "random"]
    assert table["policies"][0]["time_to_common_s"]["mean"] == 6.0
    assert (table["privacy_unit"], table["seeds"]) == ("coordinate", [1, 2, 3])
    assert matplotlib.image.imread(page.parent / "comparison.png")[..., :3].var() > 1e-3
    html = page.read_text(encoding="utf-8")
    assert "http" not in html
    assert "ε per coordinate" in html
    assert "62.5" in html
    table, _ = comparison._repr_html_().split("</table>")
    assert ">random<" in table
    assert table in html
    assert "<h2>Who was chosen</h2>" not in html
    assert not (page.parent / "groups.png").exists()
    assert all((page.parent / f"{name}.pdf").read_bytes().startswith(b"%PDF") for name in ("comparison", "why"))


def test_the_page_leads_to_each_report_that_is_drawn(runs: Runs, tmp_path: Path) -> None:
    assert "report.html" not in write_comparison(compare(runs), tmp_path / "none").read_text(encoding="utf-8")
    for run_dir in (run_dir for of_policy in runs.values() for run_dir in of_policy):
        (run_dir / "report.html").touch()
    html = write_comparison(compare(runs), tmp_path / "out" / "deep").read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]*report.html)"', html)
    folders = [folder for of_policy in runs.values() for folder in of_policy]
    assert sorted((tmp_path / "out" / "deep" / link).resolve().parent for link in links) == sorted(folders)


def test_a_comparison_shows_who_was_chosen_of_fast_and_slow_clients(runs: Runs) -> None:
    points = chosen_by_latency(played := compare(runs).runs)
    for k, of_seed in enumerate(zip(*played.values(), strict=True)):  # under another seed, a client is another
        of_client, latency_s = (np.concatenate([r.breakdown[c] for r in of_seed]) for c in ("client_id", "latency_s"))
        ids = np.unique(of_client)
        mean_s = [latency_s[of_client == client_id].mean() for client_id in ids]
        for policy, run in zip(played, of_seed, strict=True):
            share = [np.mean([client_id in record.chosen for record in run.records]) for client_id in ids]
            np.testing.assert_allclose(points[policy].reshape(2, 3, -1)[:, k], [mean_s, share])
    assert (figure := draw_why({f"policy {k}": played["pause"] for k in range(14)})) is not None
    assert len({(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}) == 14, "two look alike"


@pytest.mark.pictures
def test_regressions_are_compared_by_their_score_and_emulated_times_are_no_seconds(runs: Runs, tmp_path: Path) -> None:
    rewrite_summary(runs["pause"][0], time_scale=0.1)
    for run_dir in (*runs["pause"], *runs["random"]):
        rewrite_summary(run_dir, metric="R²")
    text = write_comparison(compare(runs), tmp_path / "out").read_text("utf-8")
    assert "test R², last model (%)" in text
    assert "total latency (s)" not in text
    assert text.count("<th>total latency (emulated s)</th>") == 2
    assert "accuracy" not in re.sub(r'id="[^"]*"|href="[^"]*"|clip-path="[^"]*"', "", text).lower()


@pytest.mark.pictures
def test_runs_without_rounds_are_compared_by_elapsed_time_beside_runs_in_rounds(runs: Runs, tmp_path: Path) -> None:
    """Asynchronous latencies overlap; once their sum stood in the table."""
    for run_dir in (*runs["pause"], *runs["random"]):
        mode = "asynchronous" if run_dir in runs["pause"] else "rounds"
        rewrite_summary(run_dir, mode=mode, elapsed_s=1.25)
    comparison = compare(runs)
    text = write_comparison(comparison, tmp_path / "out").read_text("utf-8")
    assert "total latency" not in text
    assert text.count("<th>elapsed time (s)</th>") == 2
    assert "How long rounds or steps took" in text
    assert "round latency (s)" not in text
    assert [row.elapsed_s and row.elapsed_s.mean for row in comparison.rows] == [1.25] * 2
    assert "1.25" in comparison._repr_html_()
    rows = [{"key": run.summary["mode"], **run.summary} for run in (runs_of[0] for runs_of in comparison.runs.values())]
    assert [axes.get_title() for axes in draw_sweep(rows, ["key"]).axes][1] == "elapsed time (s)"


def test_a_policy_without_privacy_has_no_epsilon(tmp_path: Path) -> None:
    random = write_run(tmp_path / "b", "random", 1, unit=None, max_epsilon_spent=None)
    comparison = compare({"pause": [write_run(tmp_path / "a", "pause", 1)], "random": [random]})
    assert [row.max_epsilon_spent is None for row in comparison.rows] == [False, True]
    assert write_comparison(comparison, tmp_path / "out").exists()


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    pause = write_run(tmp_path / "pause", "pause", 1)
    other_seed = write_run(tmp_path / "seed", "random", 2)
    other_unit = write_run(tmp_path / "unit", "random", 1, unit="vector")
    other_score = write_run(tmp_path / "score", "random", 1, metric="R²")
    for runs, message in (
        ({"pause": [pause], "random": [other_seed]}, r"random was run with seeds \[2\], pause with \[1\]"),
        ({"pause": [pause], "random": [other_unit]}, r"privacy\.unit differs"),
        ({"pause": [pause], "random": [other_score]}, f"^runs of .*: {pause} has accuracy, {other_score} has R²$"),
        ({"pause": [pause, pause]}, r"^pause: runs of one name need different seeds, and these have \[1, 1\]; see"),
        ({}, "at least one policy"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(runs)


@pytest.mark.parametrize("seeds", [(1, 2), (1, 2, 3, 4, 5)])
def test_the_whiskers_of_the_totals_are_the_interval_of_the_bands(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    comparison = compare(write_runs(tmp_path, seeds))
    figure = drawn(comparison)
    (bars,) = (axes.lines for axes in figure.axes if axes.get_xlabel().startswith("latency ("))
    for bar, of_policy in zip(bars, comparison.runs.values(), strict=True):
        totals_s = [run.summary["total_latency_s"] for run in of_policy]
        interval = mean_interval(totals_s)
        ends = (min(totals_s), max(totals_s)) if len(seeds) < 5 else (interval.low, interval.high)
        assert bar.get_xdata() == pytest.approx(ends)
    assert write_comparison(comparison, tmp_path / "out").read_text("utf-8").count(band_note(len(seeds))) >= 2
    assert figure.get_supxlabel().endswith(f"band and whisker: {band_note(len(seeds))}")


def test_runs_never_evaluated_are_compared_all_the_same(tmp_path: Path) -> None:
    comparison = compare({policy: [write_run(tmp_path / policy, policy, 1, tested=False)] for policy in ACCURACIES})
    assert (comparison.common_accuracy, comparison.rows[0].time_to_common_s) == (None, None)
    assert "never evaluated" in write_comparison(comparison, tmp_path / "out").read_text(encoding="utf-8")
    figure = drawn(comparison)
    assert [axes.get_title() for axes in figure.axes] == ["Greatest leakage of a client", "Total latency"]
    assert figure.legends
    assert figure.get_supxlabel() == "one seed: differences may be chance"


def test_runs_of_different_budgets_are_drawn_with_each_of_them(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, (1, 2))
    for run_dir in runs["random"]:
        rewrite_summary(run_dir, epsilon_budget=1.0, total_latency_s=654321.0, time_scale=0.1)
    comparison = compare({"random": runs["random"], f"pause with {'a long name ' * 6}": runs["pause"]})
    table = as_json(comparison)
    assert table["epsilon_budget"] is None
    assert [row["epsilon_budget"] for row in table["policies"]] == [1.0, 40.0]
    (figure := drawn(comparison)).draw_without_rendering()
    assert figure.legends[0].get_window_extent().x1 < figure.bbox.x1, "long names stay within the picture"
    assert all(text.get_window_extent().x1 < axes.bbox.x1 for axes in figure.axes for text in axes.texts)
    (panel,) = (axes for axes in figure.axes if axes.get_title() == "Greatest leakage of a client")
    assert {text.get_text() for text in panel.texts} == {"budget ε = 1", "budget ε = 40"}
    greatest = max(float(np.max(np.asarray(line.get_ydata()))) for line in panel.lines)
    assert max(40, greatest) < panel.get_ylim()[1]
    assert "and the budgets, which differ." in write_comparison(comparison, tmp_path / "out").read_text("utf-8")
    same = as_json(compare({"random": runs["random"]}))
    assert same["epsilon_budget"] == same["policies"][0]["epsilon_budget"] == 1.0


def test_groups_are_counted_per_client_and_per_round_they_could_be_chosen(tmp_path: Path) -> None:
    pause, random = json.loads(json.dumps(as_json(compare(grouped_runs(tmp_path)))))["policies"]
    groups = pause["selections_by_group"]
    assert list(groups) == ["original", "relevant", "poisoned"]
    assert (groups["relevant"]["clients"], groups["relevant"]["join_round"]) == (2, 2)
    assert groups["relevant"]["selections_per_client"] == {
        "mean": 1.5, "sd": 0.0, "least": 1.5, "greatest": 1.5, "n_seeds": 2, "low": None, "high": None,
        "quartiles": [1.5, 1.5, 1.5],
    }  # fmt: skip
    assert [groups[name]["per_client_round"]["mean"] for name in ("original", "poisoned")] == [1 / 4, 1 / 3]
    assert [policy["relevant_to_irrelevant"]["mean"] for policy in (pause, random)] == [1.5, 0.5]


def test_groups_of_which_none_joins_later_are_compared(runs: Runs, tmp_path: Path) -> None:
    """The comparison has a table of the groups, and no figure of newcomers."""
    for path in (path for of_policy in runs.values() for path in of_policy):
        (path / "config.toml").write_text("[clients.groups.only]\ncount = 1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/groups.png").write_bytes(b"an older comparison's")
    page = write_comparison(compare(runs), tmp_path / "out")
    assert "<td>only</td>" in page.read_text("utf-8")
    assert not (page.parent / "groups.png").exists()


@pytest.mark.parametrize("seed", [0, 1])
def test_newcomers_are_drawn_although_a_run_failed_before_they_joined(seed: int, tmp_path: Path) -> None:
    cut_short((runs := grouped_runs(tmp_path))["pause"][seed], 0)
    figure = drawings(compare(runs).runs, "test", None, None)["groups"]()
    assert figure is not None
    _, *shown = ({line.get_label() for line in axes.lines} & {"relevant", "poisoned"} for axes in figure.axes)
    assert shown == [set(), {"relevant", "poisoned"}]
    for path in runs["pause"]:
        (path / "config.toml").write_text("")  # an experiment without groups
    assert drawings(compare(runs).runs, "test", None, None)["groups"]() is not None


@pytest.mark.pictures
def test_policies_are_drawn_around_the_joins_with_what_they_chose(tmp_path: Path) -> None:
    page = write_comparison(compare(grouped_runs(tmp_path)), tmp_path / "out")
    assert matplotlib.image.imread(page.parent / "groups.png")[..., :3].var() > 1e-3
    html = page.read_text(encoding="utf-8")
    assert "<td>poisoned</td><td>1.00<br>" in html
    assert "<td>relevant : irrelevant</td><td>1.50<br>" in html
    assert 'groups with role = "irrelevant"' in html
    assert "a group without a role counts as neither" in html
    svg = html.split('aria-label="groups"')[1].split("</svg>")[0]
    for text in ("Accuracy around the joins", "round 2: relevant, poisoned", "pause", "random", "poisoned"):
        assert f">{text}<" in svg
    assert "not evaluated" not in svg
