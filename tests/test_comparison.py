"""Several policies side by side: what is computed from their runs, and what is written."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from pausefl.report.comparison import as_json, as_table, compare, write_comparison
from pausefl.report.comparison.figure import draw_comparison
from pausefl.report.comparison.why import chosen_share, mean_latency_s
from pausefl.results.statistics import Spread
from pausefl_proto.errors import ConfigError
from pausefl_server.records import Evaluation, LogEvent, Observation, RoundRecord, Timing
from pausefl_server.storage.store import Store
from rigs.log import changing_log

ACCURACIES = {"pause": (0.2, 0.6, 0.8, 0.7), "random": (0.1, 0.3, 0.6, 0.75)}
ROUND_S = {"pause": 1.0, "random": 2.0}


def write_run(
    path: Path, policy: str, seed: int, unit: str | None = "coordinate", tested: bool = True, **changes: object
) -> Path:
    """Four rounds of one client; with seed s every round takes s times as long. `changes` are of the summary."""
    path.mkdir(parents=True)
    log, latency_s = Store(path / "run.db"), ROUND_S[policy] * seed
    for number, accuracy in enumerate(ACCURACIES[policy], start=1):
        seen = Observation("<a>", Timing(latency_s), latency_s, 10, number, 0.5, 0.5 * number)
        events = (LogEvent("joined", "<a>"),) if number == 1 else ()
        log.commit_round(RoundRecord(number, 1, ("<a>",), None, (seen,), events, latency_s, number, 1e-4, "digest"))
        if tested:
            log.save_evaluations(number, [Evaluation("test", True, 100, accuracy, 1.0)])
    log.close()
    summary = {
        "policy": policy, "policy_parameters": {}, "seed": seed, "rounds": 4, "clients": 1, "m": 1, "model_size": 10,
        "final_accuracy": ACCURACIES[policy][-1], "best_accuracy": max(ACCURACIES[policy]), "wall_clock_s": 4.0,
        "total_latency_s": 4 * latency_s, "latency_signal": "round_trip", "time_scale": 1.0, "timing_error_s": None,
        "privacy_unit": unit, "epsilon_budget": 40.0, "max_epsilon_spent": 2.0, "vector_epsilon_max": 20.0,
        "private": True, "noise": "laplace", "delta": 1e-5, "epsilon_at_delta": None, "epsilon_floor": 0.0,
        "failed_attempts": 0, "unneeded_jobs": 0, "withdrawn_jobs": 0, "late_updates": 0, "merged_updates": 0,
        "budget_per": "run", "measured_latency_s": 4 * latency_s, "censored_rounds": 0, "missed_jobs": {},
        "tau_min_s": 0.05, "clamped_latencies": 0, "capped": {},
        "disclosed": [], "selection_s_median": 1e-4, "rejected_updates": 0,
        "suspect_rounds": 0, "suspect_because": {}, "stopped_because": "all rounds done",
        "outcome": "completed", "failures": [],
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary | changes))
    (path / "config.toml").write_text("")
    return path


def rewrite_summary(run_dir: Path, **changes: object) -> None:
    path = run_dir / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


def write_runs(folder: Path, seeds: Sequence[int] = (1, 2, 3)) -> Mapping[str, Sequence[Path]]:
    return {policy: [write_run(folder / f"{policy}-{s}", policy, s) for s in seeds] for policy in ACCURACIES}


def test_time_to_the_common_accuracy_and_what_it_saves(tmp_path: Path) -> None:
    comparison = compare(write_runs(tmp_path))
    assert comparison.baseline == "random"
    assert comparison.common_accuracy == 0.75
    pause, random = comparison.rows
    assert pause.time_to_common_s == Spread(6.0, 3.0, 3.0, 9.0, 3)
    assert random.time_to_common_s == Spread(16.0, 8.0, 8.0, 24.0, 3)
    assert pause.latency_saved is not None
    assert pause.latency_saved.least == pause.latency_saved.greatest == 1 - 3 / 8
    assert random.latency_saved == Spread(0.0, 0.0, 0.0, 0.0, 3)


def test_runs_that_differ_in_more_than_their_policy_are_no_same_experiment(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, (1, 2))
    own = {"pause": "[selection.pause]\nalpha = 1.0\n", "random": ""}
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


def test_a_notebook_shows_the_table_of_the_page(tmp_path: Path) -> None:
    comparison = compare(write_runs(tmp_path))
    shown = comparison._repr_html_()
    table = shown[: shown.index("</table>")]
    assert table in write_comparison(comparison, tmp_path / "out").read_text("utf-8")
    assert all(f"<td>{policy}</td>" in table for policy in ("pause", "random"))
    assert comparison.spread_note in shown


def test_totals_and_accuracies_are_the_summaries(tmp_path: Path) -> None:
    pause, random = compare(write_runs(tmp_path)).rows
    assert pause.total_latency_s == Spread(8.0, 4.0, 4.0, 12.0, 3)
    assert random.final_accuracy == Spread(0.75, 0.0, 0.75, 0.75, 3)
    assert pause.best_accuracy is not None
    assert pause.best_accuracy.mean == pytest.approx(0.8)


def test_suspect_rounds_are_not_forgotten(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs")
    assert "suspect;" not in write_comparison(compare(runs), tmp_path / "sound").read_text()
    rewrite_summary(runs["pause"][0], suspect_rounds=3)
    comparison = compare(runs)
    assert (spread := comparison.rows[0].suspect_rounds) is not None
    assert spread.sd == pytest.approx(3**0.5)
    assert dataclasses.replace(spread, sd=None) == Spread(1.0, None, 0, 3, 3)
    assert "3 of 24 rounds are suspect" in str(as_table(comparison).caption)
    assert "3 of 24 rounds are suspect" in write_comparison(comparison, tmp_path / "spoilt").read_text()


def test_runs_of_unequal_length_are_marked_wherever_they_are_compared(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)
    rewrite_summary(runs["pause"][0], rounds=2)
    with changing_log(runs["pause"][0]) as database:
        for table in ("observations", "rounds", "events", "evaluations"):
            database.execute(f"DELETE FROM {table} WHERE round > 2")
    comparison = compare(runs)
    assert comparison.warning == "runs have 2 to 4 rounds: their totals do not compare"
    page = write_comparison(comparison, tmp_path)
    for said in (str(as_table(comparison).caption), page.read_text(), str(as_json(comparison)["warning"])):
        assert comparison.warning in said


def test_a_failed_run_wins_nothing(tmp_path: Path) -> None:
    """It reached less than the others, and so sooner than they did."""
    runs = write_runs(tmp_path, (1, 2))
    rewrite_summary(runs["pause"][0], outcome="failed")
    comparison = compare(runs)
    assert comparison.warning == "1 of 4 runs failed (pause)"
    assert "some run failed, so there is no accuracy that all reach" in comparison._repr_html_()
    figure = draw_comparison(comparison.runs, comparison.split, comparison.privacy, comparison.common_accuracy)
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
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


def test_one_run_with_older_ledgers_is_enough_not_to_call_budgets_new(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs")
    assert "Privacy budgets are per run" in write_comparison(compare(runs), tmp_path / "new").read_text()
    rewrite_summary(runs["random"][-1], budget_per="data holder")
    page = write_comparison(compare(runs), tmp_path / "older").read_text()
    assert "Privacy budgets are per run" not in page
    assert "one privacy budget per data holder" in page


def test_without_random_the_first_policy_is_the_baseline(tmp_path: Path) -> None:
    assert compare({"pause": write_runs(tmp_path)["pause"]}).baseline == "pause"


def test_spread_shows_the_range_of_few_seeds_and_the_interval_of_many() -> None:
    def text(*values: float) -> tuple[str, str]:
        spread = Spread.of(values)
        assert spread is not None
        return spread.text(lambda value: f"{value:.1f}")

    assert text(2.0) == ("2.0", "")
    assert text(1.0, 3.0) == ("2.0", "1.0–3.0")
    assert text(1.0, 2.0, 3.0, 4.0, 5.0) == ("3.0", "[1.8, 4.2]")
    assert Spread.of([1.0, None]) is None


def test_files_are_written_and_the_figure_is_not_blank(tmp_path: Path) -> None:
    page = write_comparison(compare(write_runs(tmp_path)), tmp_path / "out")
    table = json.loads((page.parent / "comparison.json").read_text(encoding="utf-8"))
    assert [row["policy"] for row in table["policies"]] == ["pause", "random"]
    assert table["policies"][0]["time_to_common_s"]["mean"] == 6.0
    assert (table["privacy_unit"], table["seeds"]) == ("coordinate", [1, 2, 3])
    pixels = matplotlib.image.imread(page.parent / "comparison.png")
    assert pixels[..., :3].var() > 1e-3
    html = page.read_text(encoding="utf-8")
    assert "http" not in html
    assert "ε per coordinate" in html
    assert "62.5" in html
    assert "<h2>Who was chosen</h2>" not in html
    assert not (page.parent / "groups.png").exists()
    assert all((page.parent / f"{name}.pdf").read_bytes().startswith(b"%PDF") for name in ("comparison", "why"))


def test_the_page_leads_to_each_runs_report(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)
    html = write_comparison(compare(runs), tmp_path / "out" / "deep").read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]*report.html)"', html)
    folders = [folder for of_policy in runs.values() for folder in of_policy]
    assert sorted((tmp_path / "out" / "deep" / link).resolve().parent for link in links) == sorted(folders)


def test_a_comparison_shows_who_was_chosen_of_fast_and_slow_clients(tmp_path: Path) -> None:
    runs = compare(write_runs(tmp_path)).runs
    latency_s = mean_latency_s(runs)
    assert list(latency_s.values()) == sorted(latency_s.values())
    for policy, share in chosen_share(runs, list(latency_s)).items():
        records = [record for run in runs[policy] for record in run.records]
        assert share.sum() == pytest.approx(np.mean([len(set(r.chosen) & set(latency_s)) for r in records]))


def test_the_terminal_table_fits_eighty_columns(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w", encoding="utf-8"))
    console.print(as_table(compare(write_runs(tmp_path))))
    console.file.close()
    text = console.export_text()
    assert "…" not in text
    assert "3.00–9.00" in text


def test_regressions_are_compared_by_their_own_score(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)
    for run_dir in (*runs["pause"], *runs["random"]):
        rewrite_summary(run_dir, metric="R²")
    text = write_comparison(compare(runs), tmp_path / "out").read_text("utf-8")
    assert "test R², last model (%)" in text
    assert "accuracy" not in re.sub(r'id="[^"]*"|href="[^"]*"|clip-path="[^"]*"', "", text).lower()


def test_a_failed_run_without_a_score_names_no_other_one(tmp_path: Path) -> None:
    failed = write_run(tmp_path / "1", "pause", 1, metric="accuracy", final_accuracy=None, outcome="failed")
    regression = write_run(tmp_path / "2", "random", 1, metric="R²")
    assert compare({"pause": [failed], "random": [regression]}).metric == "R²"


def test_a_policy_without_privacy_has_no_epsilon(tmp_path: Path) -> None:
    runs = {
        "pause": [write_run(tmp_path / "pause", "pause", 1)],
        "random": [write_run(tmp_path / "random", "random", 1, unit=None)],
    }
    comparison = compare(runs)
    assert [row.max_epsilon_spent is None for row in comparison.rows] == [False, True]
    assert write_comparison(comparison, tmp_path / "out").exists()


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    pause = write_run(tmp_path / "pause", "pause", 1)
    other_seed = write_run(tmp_path / "seed", "random", 2)
    other_unit = write_run(tmp_path / "unit", "random", 1, unit="vector")
    other_score = write_run(tmp_path / "score", "random", 1, metric="R²")
    with pytest.raises(ConfigError, match=r"random was run with seeds \[2\], pause with \[1\]"):
        compare({"pause": [pause], "random": [other_seed]})
    with pytest.raises(ConfigError, match=r"privacy\.unit differs"):
        compare({"pause": [pause], "random": [other_unit]})
    with pytest.raises(ConfigError, match=f"^runs of .* scores .*: {pause} has accuracy, {other_score} has R²$"):
        compare({"pause": [pause], "random": [other_score]})
    with pytest.raises(ConfigError, match="at least one policy"):
        compare({})


def test_a_run_is_one_seed(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "pause-1", "pause", 1)
    with pytest.raises(
        ConfigError, match=r"^pause: runs of one name need different seeds, and these have \[1, 1\]; see"
    ):
        compare({"pause": [run_dir, run_dir]})
