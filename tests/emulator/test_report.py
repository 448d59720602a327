"""The report of a run: what is read from run.db, drawn, and written down for a person."""

import csv
import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import pausefl
from pausefl.results.reading import VIEWS, read_run
from pausefl.results.report import plots, report_runs, write_report
from pausefl.results.report.html import in_ranges
from pausefl.results.report.plots import draw_all
from pausefl_proto.errors import ConfigError
from pausefl_server.records import Miss
from pausefl_server.storage import store
from rigs.log import changing_log
from rigs.reports import records, summary, write_run

FIGURES = {"accuracy", "leakage", "releases", "selections", "rounds", "latency", "breakdown", "waterfall"}


def without_rounds(run_dir: Path) -> Path:
    with changing_log(run_dir) as database:
        for table in ("observations", "rounds", "events", "evaluations"):
            database.execute(f"DELETE FROM {table}")
    return run_dir


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = write_run(tmp_path_factory.mktemp("report") / "run")
    assert report_runs([run_dir], csv=True) == [run_dir / "report.html", run_dir / "csv"]
    return run_dir


@pytest.fixture(scope="module")
def page(reported: Path) -> str:
    return (reported / "report.html").read_text(encoding="utf-8")


def test_columns_are_those_of_the_views(reported: Path) -> None:
    run = read_run(reported)
    np.testing.assert_allclose(run.round_latency["total_latency_s"], [0.5, 0.8, 1.5])
    np.testing.assert_allclose(run.greatest_leakage["max_epsilon_spent"], [1.0, 1.0, 1.5])
    np.testing.assert_allclose(run.breakdown["propagation_s"], 0.015)


def test_clients_never_chosen_are_listed_and_unseen_releases_counted(reported: Path) -> None:
    clients = read_run(reported).clients
    assert clients["client_id"].tolist() == ["$x$", "<script>", "c"]
    assert clients["times_chosen"].tolist() == [2, 2, 0]
    assert clients["accepted"].tolist() == [2, 2, 0]
    assert clients["released"].tolist() == [3, 2, 0]
    assert clients["epsilon_spent"].tolist() == [1.5, 1.0, 0.0]


def test_a_curve_is_the_subsets_series_and_starts_before_the_first_round(reported: Path) -> None:
    total_latency_s, accuracy = read_run(reported).curve("test")
    np.testing.assert_allclose(total_latency_s, [0.0, 0.8, 1.5])
    assert accuracy.tolist() == [0.1, 0.5, 0.7]


def test_every_figure_is_drawn_and_none_is_blank(reported: Path) -> None:
    assert {file.name for file in (reported / "plots").iterdir()} == {f"{name}.svg" for name in FIGURES}
    report_runs([reported], csv=False, formats=["png"])
    files = sorted((reported / "plots").glob("*.png"))
    assert {file.stem for file in files} == FIGURES
    for file in files:
        pixels = matplotlib.image.imread(file)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].var() > 1e-3, file.name


def test_the_breakdown_stacks_up_to_the_mean_round_trip(reported: Path) -> None:
    run = read_run(reported)
    bars = draw_all(run)["breakdown"].axes[0].patches
    assert len(bars) == 11 * 2
    assert max(bar.get_y() + bar.get_height() for bar in bars) == pytest.approx(np.mean([0.5, 0.7]) + 0.001 + 0.004)


def test_the_waterfall_is_of_the_median_round(reported: Path) -> None:
    axes = draw_all(read_run(reported))["waterfall"].axes[0]
    assert axes.get_title(loc="left") == "Round 1, of median latency"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["<script>", "$x$"]
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == pytest.approx(0.505)


def test_the_waterfall_names_those_whom_the_committed_attempt_gave_up(tmp_path: Path) -> None:
    """Not those of an earlier attempt, of whom one was asked again and answered."""
    run_dir, last = write_run(tmp_path / "run", rounds=7), records()[0]
    for t in range(4, 8):  # so many that they hold the median
        attempt = replace(last, round=t, chosen=("<script>", "b"), events=(), suspect=())
        missed = tuple(Miss(client_id, "timeout", 0.25, 0.25) for client_id in attempt.chosen)
        log = store.Store(run_dir / "run.db")
        log.save_failed_attempt(replace(attempt, observations=(), misses=missed))
        late = (Miss("b", "timeout", 0.5, 0.5),)
        log.commit_round(replace(attempt, attempt=2, observations=last.observations[:1], misses=late))
        log.close()
    (text,) = draw_all(read_run(run_dir))["waterfall"].axes[0].texts
    assert text.get_text() == "given up: b after 0.5 s"


def test_idle_pings_stand_beside_what_was_measured(reported: Path) -> None:
    run = read_run(reported)
    assert run.ping_baseline["client_id"].tolist() == ["$x$"]
    assert run.ping_baseline["ping_mean_s"].tolist() == pytest.approx([0.004])
    (line,) = (line for line in draw_all(run)["latency"].axes[0].lines if line.get_label() == "ping, idle")
    assert np.nansum(line.get_ydata()) == pytest.approx(0.004)


def test_suspect_rounds_are_marked_and_explained(reported: Path, page: str) -> None:
    figures = draw_all(read_run(reported))
    assert [text.get_text() for text in figures["waterfall"].axes[0].texts] == ["suspect: clients steal_share"]
    labels = [text.get_text() for text in figures["latency"].axes[1].get_legend().get_texts()]
    assert labels == ["measured = drawn", "in suspect rounds"]
    assert "1 of 3 rounds are suspect because of clients steal_share." in page
    assert "measure on a machine that is not shared" in page


def test_page_stands_alone(page: str) -> None:
    for outside in ("http:", "https:", "src=", "<link", "@import", "url(http"):
        assert outside not in page
    assert page.count("<svg") == len(FIGURES)
    assert "prefers-color-scheme: dark" in page


def test_page_escapes_what_users_named(page: str) -> None:
    for raw in ("<script>", "<i>demo</i>", "<b>more</b>"):
        assert raw not in page
    assert "&lt;script&gt;" in page
    assert "&lt;i&gt;demo&lt;/i&gt;" in page


def test_page_gives_both_epsilons_and_labels_them(page: str) -> None:
    row = page[page.index("<td>$x$</td>") :].split("</tr>", 1)[0]
    assert "<td>1.5</td><td>1,500</td><td>4%</td>" in row
    assert "1, 3" in row
    assert "ε spent<br>(per coordinate)" in page
    assert "ε spent<br>(vector)" in page
    assert "spent at most ε = 1,500 (vector)" in page


def test_rounds_are_listed_in_ranges_and_very_many_are_counted() -> None:
    assert in_ranges(np.array([1, 2, 3, 5, 7, 8])) == "1–3, 5, 7–8"
    assert in_ranges(np.array([], np.int64)) == "none"
    assert in_ranges(np.arange(1, 2001, 2)).endswith(", 117, 119 and 940 more (view leakage of run.db)")


def test_a_figure_of_very_many_exchanges_shows_some_of_every_client(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every n-th would be the same clients in each round, where n divides how many are chosen."""
    run, clients, rounds = read_run(reported), 50, 200
    ids = np.array([f"c{k:02}" for k in range(clients)])
    many = {
        "client_id": np.tile(ids, rounds), "round": np.repeat(np.arange(1, rounds + 1), clients),
        "epsilon": np.ones(clients * rounds), "participation": np.ones(clients * rounds),
    }  # fmt: skip
    monkeypatch.setattr(plots, "MOST_DOTS", 1000)
    assert run.privacy is not None
    axes = plots.releases(replace(run, leakage=many, clients={"client_id": ids}), run.privacy).axes[0]
    dots, _ = axes.collections
    places = np.asarray(dots.get_offsets())
    assert len(places) == 1000
    assert len(np.unique(places[:, 1])) == clients
    assert axes.get_title(loc="right").startswith("1,000 of 10,000, drawn at random\narea: ε per coordinate")


@pytest.mark.parametrize("what", ["a round more", "a job that is out", "an end without a summary"])
def test_a_summary_from_before_the_run_was_resumed_is_not_read(tmp_path: Path, what: str) -> None:
    """A kill left the summary of an earlier end: its ε would be too low."""
    run_dir = write_run(tmp_path / "run")
    log = store.Store(run_dir / "run.db")
    if what == "a round more":
        log.commit_round(replace(records()[-1], round=4))
    else:
        log.save_late_events(4, (), is_end=what == "an end without a summary")
    log.close()
    for read in (read_run, lambda folder: pausefl.open(folder).summary):
        with pytest.raises(ConfigError, match=r"run: was resumed since its summary\.json was written"):
            read(run_dir)


def test_page_tells_whose_budgets_they_are_and_who_had_spent_before(tmp_path: Path, page: str) -> None:
    assert "Budgets are per run: every client came with a ledger that counted no release." in page
    run_dir = write_run(tmp_path / "run", budget_per="data holder")
    with changing_log(run_dir) as database:
        database.execute("UPDATE events SET released = 1, epsilon_spent = 0.5 WHERE client_id = '$x$'")
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert "Budgets are per data holder" in page
    assert "1 of 3 clients came with part of their budget spent" in page


def test_a_report_without_rounds_is_by_elapsed_time_and_tells_staleness_and_who_was_idle(tmp_path: Path) -> None:
    steps = {"mode": "asynchronous", "elapsed_s": 4.0, "clients_at_work": 1.5, "staleness": {"mean": 1.5, "max": 3}}
    run_dir = write_run(tmp_path / "run", **steps, idle_share=0.25)
    with changing_log(run_dir) as database:
        database.execute("UPDATE rounds SET elapsed_s = round + 1")
        database.execute("UPDATE observations SET came_back_s = 1 WHERE client_id = '$x$'")
    page = write_report(run_dir).read_text(encoding="utf-8")
    for said in ("1.5 steps", "25% of places idle", "against the time elapsed since", "$x$: 50.0%"):
        assert said in page


def test_a_vector_epsilon_is_not_multiplied(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", privacy_unit="vector", vector_epsilon_max=1.5)
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert "<td>1.5</td><td>1.5</td>" in page
    assert "ε of the whole upload vector" in page


def test_a_run_without_privacy_says_so_and_a_time_scale_is_explained(tmp_path: Path) -> None:
    no_privacy = {"privacy_unit": None, "epsilon_budget": None, "max_epsilon_spent": None, "vector_epsilon_max": None}
    run_dir = write_run(tmp_path / "run", time_scale=0.1, timing_error_s={"p50": None, "p99": None}, **no_privacy)
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert "added no noise" in page
    assert "multiplies real overhead and timing error by 10 " in page
    assert page.count("real seconds (time_scale 0.1)") == 5, "on each axis of times of the exchanges"
    assert not (run_dir / "plots" / "leakage.svg").exists()


def test_a_regression_is_not_reported_as_a_classification(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path / "run", metric="R²")).read_text("utf-8")
    assert "R² against latency" in text
    assert "test R², last model" in text
    assert "accuracy" not in re.sub(r'id="[^"]*"|href="[^"]*"|clip-path="[^"]*"', "", text).lower()


def test_a_run_with_nothing_in_it_can_be_reported(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("final_accuracy", "best_accuracy", "timing_error_s"))
    run_dir = without_rounds(write_run(tmp_path / "run", rounds=0, **nothing))
    assert "not known: nothing was measured" in write_report(run_dir).read_text(encoding="utf-8")
    assert list((run_dir / "plots").iterdir()) == []


def test_csv_holds_every_view(reported: Path) -> None:
    assert {file.stem for file in (reported / "csv").iterdir()} == {
        *VIEWS,
        *("breakdown", "leakage", "hosts", "selections", "suspect_observations"),
        *("censored_latencies", "choices", "joins", "owners", "statistics", "updates"),
    }
    with (reported / "csv" / "selections.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["client_id"]: row["times_chosen"] for row in rows} == {"$x$": "2", "<script>": "2"}


@pytest.mark.parametrize("name", ["run.db", "summary.json", "config.toml"])
def test_a_folder_that_is_no_run_directory_is_named(tmp_path: Path, name: str) -> None:
    run_dir = write_run(tmp_path / "run")
    (run_dir / name).unlink()
    with pytest.raises(ConfigError, match=f"{run_dir}.*{name}"):
        read_run(run_dir)
    with pytest.raises(ConfigError, match="no such run directory"):
        read_run(tmp_path / "nowhere")


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    with sqlite3.connect(run_dir / "run.db") as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    database.close()
    with pytest.raises(ConfigError, match="schema_version is 99"):
        read_run(run_dir)


def test_what_is_no_database_or_no_summary_is_refused(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    (run_dir / "summary.json").write_text('{"policy": "pause"}')
    with pytest.raises(ConfigError, match=r"lacks .* and 3\d keys more; an older version may have written it"):
        read_run(run_dir)
    (run_dir / "summary.json").write_text(json.dumps(summary()))
    (run_dir / "run.db").write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(ConfigError, match="cannot be read as a run's database"):
        read_run(run_dir)
