"""The report of a run: its tables read from run.db, its figures, and its texts."""

import csv
import io
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes

import pausefl
from pausefl.results import reading
from pausefl.results.accounting import late_releases
from pausefl.results.in_words import milliseconds
from pausefl.results.reading import VIEWS, PrivacyFigures, RunData, read_log, read_run
from pausefl.results.report import plots, report_runs, write_report
from pausefl.results.report.html import _headline, _schedule, _swamped, in_ranges, run_page
from pausefl.results.report.style import rendered
from pausefl.runtime.run_dir import stored_experiment
from pausefl_offline.latencies import latencies_of
from pausefl_proto.errors import ConfigError
from pausefl_server.records import LogEvent, Miss, Observation
from pausefl_server.storage.store import Store
from rigs.log import changing_log, observation, record
from rigs.refusals import refused
from rigs.reports import records, write_run

FIGURES = {"accuracy", "leakage", "releases", "selections", "rounds", "latency", "breakdown", "waterfall"}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = write_run(tmp_path_factory.mktemp("report") / "run")
    assert report_runs([run_dir], csv=True) == [run_dir / "report.html", run_dir / "csv"]
    return run_dir


@pytest.fixture(scope="module")
def page(reported: Path) -> str:
    return (reported / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(reported: Path) -> RunData:
    return read_run(reported)


def page_of(run_dir: Path, **summary: object) -> str:
    """The report page of a run with this summary."""
    return write_report(read_run(write_run(run_dir, **summary))).read_text(encoding="utf-8")


def test_columns_and_curves_are_those_of_the_views(run: RunData) -> None:
    """Clients never chosen are listed, and releases without an update counted. Curves start before round 1."""
    np.testing.assert_allclose(run.round_latency["total_latency_s"], [0.5, 0.8, 1.5])
    np.testing.assert_allclose(run.greatest_leakage["max_epsilon_spent"], [1.0, 1.0, 1.5])
    np.testing.assert_allclose(run.breakdown["propagation_s"], 0.015)
    exchanges = [run.breakdown[name].tolist() for name in ("round", "client_id")]
    assert exchanges == [[1, 1, 2, 3], ["$x$", "<script>", "<script>", "$x$"]]
    columns = ("client_id", "times_chosen", "accepted", "released", "epsilon_spent")
    rows = list(zip(*(run.clients[name].tolist() for name in columns), strict=True))
    assert rows == [("$x$", 2, 2, 3, 1.5), ("<script>", 2, 2, 2, 1.0), ("c", 0, 0, 0, 0.0)]
    total_latency_s, accuracy = run.curve("test")
    np.testing.assert_allclose(total_latency_s, [0.0, 0.8, 1.5])
    assert accuracy.tolist() == [0.1, 0.5, 0.7]
    once = {"split": np.array(["test"] * 3), "subset": np.array([0, 1, 0]), "round": np.arange(3)}
    once["accuracy"] = np.array([0.2, 0.3, 0.4])
    assert replace(run, accuracy=once).curve("test", "round")[1].tolist() == [0.3], "not of the end of an interruption"
    told = {"participation": np.array([1, 2, 1]), "epsilon": np.array([0.5, 0.25, 0.5])}
    assert _schedule(replace(run, leakage=told)) == [(1, 0.5), (2, 0.25)]


def test_every_figure_is_drawn_and_none_is_blank(reported: Path, run: RunData) -> None:
    lines = [draw() for name, draw in plots.drawings(run).items() if name in ("accuracy", "rounds", "leakage")]
    assert [f and f.axes[0].lines[0].get_marker() for f in lines] == ["o"] * 3, "one value makes no line"
    assert plots.latency_by_round(run).axes[0].lines[0].get_linewidth() > 2, "a line that equals its part is hidden"
    assert {file.name for file in (reported / "plots").iterdir()} == {f"{name}.svg" for name in FIGURES}
    template = (Path(plots.__file__).parent / "templates/report.html").read_text("utf-8")
    assert set(re.findall(r'figure\("(\w+)"', template)) == plots.drawings(run).keys(), "what is drawn has a caption"
    write_report(replace(run, accuracy={"round": np.array([])}))
    assert not (reported / "plots" / "accuracy.svg").exists(), "an earlier report's picture is left"
    report_runs([reported], csv=False, formats=["png"])
    files = sorted((reported / "plots").glob("*.png"))
    assert {file.stem for file in files} == FIGURES
    for file in files:
        pixels = matplotlib.image.imread(file)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].var() > 1e-3, file.name
    crowd = rendered(plots.labels({f"c{k}": np.array([4, k % 5]) for k in range(1000)}), "png")
    assert (matplotlib.image.imread(io.BytesIO(crowd))[..., 0] < 0.3).mean() > 0.1, "a large fleet's labels are seen"


def test_the_breakdown_stacks_up_to_the_mean_round_trip_and_the_waterfall_is_of_the_median_round(run: RunData) -> None:
    bars = [bar for part in plots.breakdown(run).axes[0].collections for bar in part.get_paths()]
    axes = plots.waterfall(run).axes[0]
    assert len(bars) == 11 * 2
    assert max(bar.get_extents().y1 for bar in bars) == pytest.approx(np.mean([0.5, 0.7]) + 0.001 + 0.004)
    assert axes.get_title() == "Round 1, of median latency"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["<script>", "$x$"]
    bars = [bar for part in axes.collections for bar in part.get_paths()]
    assert max(bar.get_extents().x1 for bar in bars) == pytest.approx(0.505)


def test_the_waterfall_names_those_whom_the_committed_attempt_gave_up(tmp_path: Path) -> None:
    """Misses of an earlier attempt are left out. An asynchronous step may give up a client that it did not choose."""
    run_dir, last = write_run(tmp_path / "run", rounds=7), records()[0]
    for t in range(4, 8):  # enough rounds to hold the median
        attempt = replace(last, round=t, chosen=("<script>", "b"), events=(), suspect=())
        missed = tuple(Miss(client_id, "timeout", 0.25, 0.25) for client_id in attempt.chosen)
        late = (Miss("b", "timeout", 0.5, 0.5),)
        with closing(Store(run_dir / "run.db")) as log:
            log.save_failed_attempt(replace(attempt, observations=(), misses=missed))
            log.commit_round(replace(attempt, attempt=2, chosen=(), observations=last.observations[:1], misses=late))
    (text,) = plots.waterfall(read_run(run_dir)).axes[0].texts
    assert (text.get_text(), text.get_position()) == ("given up: b after 0.5 s", (0, 4)), "it lies over the title"


def test_suspect_rounds_are_marked_and_explained(run: RunData, page: str) -> None:
    assert [text.get_text() for text in plots.waterfall(run).axes[0].texts] == ["suspect: clients steal_share"]
    labels = [text.get_text() for text in plots.latency(run).legends[0].get_texts()]
    assert labels[-2:] == ["measured = drawn", "suspect"]
    assert "1 of 3 rounds are suspect because of clients steal_share." in page
    assert "measure on a machine that is not shared" in page


def test_page_stands_alone_and_escapes_what_users_named(page: str) -> None:
    for outside in ("http:", "https:", "src=", "<link", "@import", "url(http"):
        assert outside not in page
    assert page.count("<svg") == len(FIGURES)
    assert "prefers-color-scheme: dark" in page
    for raw in ("<script>", "<i>demo</i>", "<b>more</b>"):
        assert raw not in page
    assert "&lt;script&gt;" in page
    assert "&lt;i&gt;demo&lt;/i&gt;" in page


@pytest.mark.usefixtures("quickly_written")
def test_page_gives_both_epsilons_and_labels_them(page: str, tmp_path: Path) -> None:
    """The ε of a whole vector is not multiplied by the number of coordinates."""
    of_vector = page_of(tmp_path / "run", privacy_unit="vector", vector_epsilon_max=1.5, delta=2.5e-6)
    for said in ("<td>1.5</td><td>1.5</td>", "ε of the whole upload vector", "δ = 2.5e-06", "values of an upload"):
        assert said in of_vector
    assert "the same as vector ε" not in of_vector, "the same number twice"
    row = page[page.index("<td>$x$</td>") :].split("</tr>", 1)[0]
    assert "<td>1.5</td><td>1,500</td><td>4%</td>" in row
    assert "1, 3" in row
    for said in ("ε spent<br>(per coordinate)", "ε spent<br>(vector)", "spent at most ε = 1,500 (vector)"):
        assert said in page


def test_rounds_are_listed_in_ranges_and_idle_pings_stand_beside_what_was_measured(run: RunData) -> None:
    assert in_ranges(np.array([1, 2, 3, 5, 7, 8])) == "1–3, 5, 7–8"
    assert in_ranges(np.array([], np.int64)) == "none"
    assert in_ranges(np.arange(1, 2001, 2)).endswith(", 117, 119 and 940 more (view leakage of run.db)")
    assert run.ping_baseline["client_id"].tolist() == ["$x$"]
    assert run.ping_baseline["ping_mean_s"].tolist() == pytest.approx([0.004])
    (line,) = (line for line in plots.latency(run).axes[0].lines if line.get_label() == "ping, idle")
    assert np.nansum(line.get_ydata()) == pytest.approx(0.004)


def test_a_figure_of_many_exchanges_shows_some_of_every_client(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every n-th exchange would show the same clients in each round if n divides the number chosen."""
    clients, rounds = 50, 200
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
    assert (len(places), len(np.unique(places[:, 1]))) == (1000, clients)
    assert axes.get_title(loc="right").startswith("1,000 of 10,000, drawn at random\narea: ε per coordinate")


@pytest.mark.parametrize("what", ["a round more", "a job that is out", "an end without a summary"])
def test_a_summary_from_before_the_run_was_resumed_is_not_read(tmp_path: Path, what: str) -> None:
    """A kill may leave the summary of an earlier end, whose ε is too low."""
    run_dir = write_run(tmp_path / "run")
    with closing(Store(run_dir / "run.db")) as log:
        if what == "a round more":
            log.commit_round(replace(records()[-1], round=4))
        else:
            log.save_late_events(4, (), is_end=what == "an end without a summary")
    for read in (read_run, lambda folder: pausefl.open(folder).summary):
        with pytest.raises(ConfigError, match=r"run: was resumed since its summary\.json was written"):
            read(run_dir)


@pytest.mark.usefixtures("quickly_written")
def test_page_tells_whose_budgets_they_are_and_who_had_spent_before(tmp_path: Path, page: str) -> None:
    assert "no client told of a release before this run. Several experiments on the same data, each with new" in page
    run_dir = write_run(tmp_path / "run", budget_per="data holder")
    with changing_log(run_dir) as database:
        database.execute("UPDATE events SET released = 1, epsilon_spent = 0.5 WHERE client_id = '$x$'")
    page = write_report(read_run(run_dir)).read_text(encoding="utf-8")
    assert "Budgets are per data holder" in page
    assert "1 of 3 clients came with part of their budget spent" in page


def test_a_report_without_rounds_is_by_elapsed_time_and_tells_staleness_and_who_was_idle(tmp_path: Path) -> None:
    steps = {"mode": "asynchronous", "elapsed_s": 4.0, "clients_at_work": 1.5, "staleness": {"mean": 1.5, "max": 3}}
    run_dir = write_run(tmp_path / "run", **steps, idle_share=0.25, noise_to_clip={"first": 1.3, "last": None})
    with changing_log(run_dir) as database:
        database.execute("UPDATE rounds SET elapsed_s = round + 1")
        database.execute("UPDATE observations SET came_back_s = 1 WHERE client_id = '$x$'")
    page = write_report(read_run(run_dir)).read_text(encoding="utf-8")
    steps_said = "3 steps</h1>", "1.5 steps", "25% of places idle", "the time elapsed since", "$x$: 50.0%"
    drawn = "(50 examples)", "no result; 100 test examples", "Latency by step", "Step 1, of median latency"
    for said in (*steps_said, "beyond all numbers in the end", "sum over all steps", *drawn):
        assert said in page


def test_a_run_without_privacy_says_so_and_a_time_scale_is_explained(tmp_path: Path) -> None:
    none = ("privacy_unit", "epsilon_budget", "max_epsilon_spent", "vector_epsilon_max")
    none_drawn = {"timing_error_s": {"p50": None, "p99": None}, "latency_signal": "communication", "late_updates": 1}
    page = page_of(tmp_path / "run", time_scale=0.1, **none_drawn, **dict.fromkeys(none))
    assert [milliseconds(s) for s in (6e-17, 1.2344e-3, 2.0, None)] == ["0 ms", "1.234 ms", "2,000 ms", "–"]
    for said in ("added no noise", "timing error by 10 ", "above the communication, a wait", "later model; 0 jobs"):
        assert said in page
    assert page.count("real seconds (time_scale 0.1)") == 5, "on each axis of times of the exchanges"


def test_a_client_is_at_work_in_jobs_that_it_misses_and_in_failed_attempts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pausefl.results.reading._ROWS_AT_ONCE", 1)
    missed = {"misses": (Miss("b", "timeout", 2.0, 2.0, at_work_s=1.5),), "elapsed_s": 2.0}
    store.commit_round(record(1, observation("a", came_back_s=1.0), **missed))
    store.save_failed_attempt(record(2, **missed | {"elapsed_s": 4.0}))
    with reading.open_database(tmp_path) as database:
        clients = reading.read_columns(database, reading.CLIENTS)
    assert dict(zip(clients["client_id"], clients["idle_share"], strict=True)) == {"a": 0.75, "b": 0.25}


def test_a_round_s_latency_is_drawn_with_the_parts_of_its_slowest_exchange(run: RunData) -> None:
    seconds = {"latency_s": [3.0, 5.0, 2.0], "communication_s": [0.1, 0.2, 0.1], "device_s": [1.0, 3.0, 1.0]}
    exchanges: Any = {"round": np.array([1, 1, 2]), "client_id": np.array(["a", "b", "a"])}
    exchanges |= {name: np.array(values) for name, values in seconds.items()} | {"drawn_s": np.array([2.0, 1.0, 2.0])}
    rounds = {"round": np.array([1, 2]), "round_latency_s": np.array([5.0, 2.0])}
    run = replace(run, breakdown=exchanges, round_latency=rounds, summary={**run.summary, "time_scale": 0.1})
    by_round, by_client = (figure.axes[0].lines for figure in (plots.latency_by_round(run), plots.latency(run)))
    assert [np.asarray(line.get_ydata()).tolist() for line in by_round] == [[5, 2], [2, 1], [3, 1]]
    assert [np.asarray(line.get_ydata()).tolist() for line in by_client[:2]] == [[1, 2], [0.2, 0.1]]
    assert plots._running_median(np.array([1.0, 5.0, 2.0, 8.0, 3.0]), 3).tolist() == [3, 2, 5, 3, 5.5]


def test_noise_under_which_accuracy_fell_is_told_with_how_far(run: RunData) -> None:
    noisy = replace(run, summary={**run.summary, "noise_to_clip": {"first": 1.3, "last": None}})
    assert "fell" not in _swamped(noisy)
    fallen = replace(noisy, accuracy={**run.accuracy, "accuracy": 1 - run.accuracy["accuracy"]})
    assert _swamped(fallen).endswith(" Test accuracy fell from 90.0% after round 0 to 30.0%.")
    *_, (name, seconds, _) = _headline(replace(run, round_latency={"cluster_penalty_s": np.array([1.0, 2.0])}))
    assert (name, seconds) == ("cluster penalty", "3.0 s")


def test_a_regression_is_not_reported_as_a_classification(tmp_path: Path) -> None:
    text = page_of(tmp_path / "run", metric="R²")
    assert "R² against latency" in text
    assert "test R², last model" in text
    assert "accuracy" not in re.sub(r'id="[^"]*"|href="[^"]*"|clip-path="[^"]*"', "", text).lower()


def test_a_run_with_nothing_in_it_can_be_reported(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("final_accuracy", "best_accuracy", "timing_error_s"))
    run_dir = write_run(tmp_path / "run", rounds=0, **nothing)
    with changing_log(run_dir) as database:
        for table in ("observations", "rounds", "events", "evaluations"):
            database.execute(f"DELETE FROM {table}")
    assert "not known: nothing was measured" in write_report(read_run(run_dir)).read_text(encoding="utf-8")
    assert list((run_dir / "plots").iterdir()) == []


def test_csv_holds_every_view(reported: Path) -> None:
    others = {"breakdown", "leakage", "hosts", "selections", "suspect_observations", "censored_latencies"}
    others |= {"choices", "joins", "owners", "statistics", "updates"}
    assert {file.stem for file in (reported / "csv").iterdir()} == {*VIEWS, *others}
    rows = csv.DictReader((reported / "csv" / "selections.csv").read_text("utf-8").splitlines())
    assert {row["client_id"]: row["times_chosen"] for row in rows} == {"$x$": "2", "<script>": "2"}


@pytest.mark.parametrize("name", ["run.db", "summary.json", "config.toml"])
def test_a_folder_that_is_no_run_directory_is_named(tmp_path: Path, name: str) -> None:
    run_dir = write_run(tmp_path / "a run")
    (run_dir / name).unlink()
    go_on = f"; the run goes on, or was cut short; go on with it: pausefl run --resume '{run_dir}'"
    with pytest.raises(ConfigError, match=f"{run_dir}.*{name}{go_on if name == 'summary.json' else ''}"):
        read_run(run_dir)
    with pytest.raises(ConfigError, match="no such run directory"):
        read_run(tmp_path / "nowhere")


CHANGED = "UPDATE meta SET value = '99' WHERE key = 'schema_version'", "DELETE FROM observations WHERE round = 2"


@pytest.mark.parametrize("statement", CHANGED)
def test_a_log_that_was_changed_or_is_of_another_version_makes_no_report(tmp_path: Path, statement: str) -> None:
    """Otherwise its figures would differ from summary.json's."""
    run_dir, is_older = write_run(tmp_path / "run"), statement == CHANGED[0]
    with closing(sqlite3.connect(run_dir / "run.db")) as database, database:
        database.execute(statement)
    message = "has schema_version 99" if is_older else r"\(round 2 is not what was written\); restore it from a copy"
    for read in (read_run, *((stored_experiment,) if is_older else (read_log, latencies_of))):
        with pytest.raises(ConfigError, match=message):
            read(run_dir)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", '{"policy": "pause"}', r"lacks .* and 5\d keys more; it may be of an older version"),
        *(("summary.json", text, "is no JSON object; delete it and resume the run") for text in ("[]", "null", "3")),
        ("run.db", "not a database, but long enough to be looked at" * 50, "cannot be read as a run's database"),
    ],
)
def test_what_is_no_database_or_no_summary_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    run_dir = write_run(tmp_path / "run")
    (run_dir / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_run(run_dir)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("total_latency_s", "x", "total_latency_s = 'x': must be a valid number"),
        ("policy", 3, "policy = 3: must be a valid string"),
        ("timing_error_s", 3, "timing_error_s = 3: must be "),
        ("privacy_unit", "meters", "privacy_unit = 'meters': must be 'coordinate' or 'vector'"),
        ("rounds", "12", "rounds = '12': must be a valid integer"),
        ("starts", [1], "starts.0 = 1: must be a valid dictionary"),
        ("max_epsilon_spent", None, "max_epsilon_spent = None: must be a number in a private run"),
    ],
)
def test_a_value_of_another_type_in_a_summary_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    with refused(f"summary.json: {said}"):
        read_run(write_run(tmp_path / "run", **{key: value}))


# -- figures with a dot for each exchange

EXCHANGES = 30


def many(run: RunData, n: int, suspect: int) -> RunData:
    """n exchanges of one client, one per round, of which the first `suspect` rounds are suspect."""
    rounds, seconds = np.arange(1, n + 1), np.linspace(0.1, 1.0, n)
    breakdown: Any = {
        "client_id": np.full(n, "c"), "round": rounds, "drawn_s": seconds, "communication_s": seconds,
        "round_trip_s": seconds + 1,
    }  # fmt: skip
    return replace(run, breakdown=breakdown, suspect_rounds={"round": rounds[:suspect], "reason": rounds[:suspect]})


def dots(axes: Axes) -> int:
    return sum(len(np.asarray(collection.get_offsets())) for collection in axes.collections)


@pytest.mark.parametrize(("most", "shown", "said"), [(20, 20, "20 of 30, drawn at random"), (30, 30, "")])
def test_as_many_exchanges_are_shown_as_is_said(
    run: RunData, monkeypatch: pytest.MonkeyPatch, most: int, shown: int, said: str
) -> None:
    """The limit holds for suspect and other rounds together. Once each of the two kinds was given all of it."""
    monkeypatch.setattr(plots, "MOST_DOTS", most)
    axes = plots.latency(many(run, EXCHANGES, suspect=15)).axes[1]
    assert dots(axes) == shown
    assert said in [text.get_text() for text in axes.texts]


def test_totals_are_compared_with_round_trips(run: RunData) -> None:
    """A drawn total includes the device's time, so it is compared with the round trip, not the communication time."""
    run = replace(run, config='[latency]\nmode = "total"\n')
    figure = plots.latency(many(run, EXCHANGES, suspect=0))
    axes = figure.axes[1]
    (offsets,) = (np.asarray(collection.get_offsets()) for collection in axes.collections)
    np.testing.assert_allclose(offsets[:, 1], offsets[:, 0] + 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("drawn total (s)", "measured round trip (s)")
    assert "against the round trip measured for it" in run_page(run, {"latency": rendered(figure, "svg")})


# -- releases whose updates did not come in time


def told(kind: str, client_id: str, released: int) -> LogEvent:
    return LogEvent(kind, client_id, released=released, epsilon_spent=released / 2)  # type: ignore[arg-type]  # one of its names


def rows_of(late: Mapping[str, np.ndarray]) -> list[tuple[Any, ...]]:
    return list(zip(*(late[name].tolist() for name in ("round", "client_id", "releases", "epsilon")), strict=True))


def answer(client_id: str, participation: int) -> Observation:
    return observation(client_id, participation=participation, epsilon=0.5, epsilon_spent=participation / 2)


def test_each_is_told_of_once_and_what_was_spent_before_the_run_is_none(store: Store, tmp_path: Path) -> None:
    store.commit_round(record(1, answer("a", 3), events=(told("joined", "a", 2), told("joined", "b", 0))))
    store.commit_round(record(2, answer("a", 5), events=(told("reconciled", "b", 1), told("reconciled", "a", 4))))
    store.commit_round(record(3, answer("b", 2), events=(told("joined", "a", 5), told("reconciled", "b", 1))))
    store.save_late_events(4, [told("joined", "b", 4)])
    assert rows_of(late_releases(tmp_path)) == [(2, "a", 1, 0.5), (2, "b", 1, 0.5), (3, "b", 2, 1.0)]


def test_one_that_came_while_its_client_answered_the_next_round_is_late(store: Store, tmp_path: Path) -> None:
    """The late release is logged before the next round, so after the answer that holds the client's later release."""
    store.commit_round(record(1, answer("b", 1), events=(told("joined", "a", 0), told("joined", "b", 0))))
    store.commit_round(record(2, answer("a", 2)))
    store.commit_round(record(3, answer("a", 3), events=(told("reconciled", "a", 1),)))
    assert rows_of(late_releases(tmp_path)) == [(3, "a", 1, 0.5)]


def test_those_of_rounds_that_were_taken_back_are_late(store: Store, tmp_path: Path) -> None:
    store.commit_round(record(1, answer("a", 3), events=(told("joined", "a", 2),)))
    store.commit_round(record(2, answer("a", 4)))
    store.go_back_to(1)
    store.commit_round(record(2, answer("a", 5), attempt=2, events=tuple(store.late_events())))
    store.go_back_to(0)
    store.commit_round(record(1, answer("a", 6), attempt=2, events=tuple(store.late_events())))
    late = late_releases(tmp_path)
    assert late["client_id"].tolist() == ["a"] * len(late["client_id"])
    assert (late["releases"].sum(), late["epsilon"].sum()) == (3, 1.5)


def test_the_figure_has_a_ring_for_each_and_none_where_all_came_in_time(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    assert all(column.size == 0 for column in late_releases(run_dir).values())
    run = read_run(run_dir)
    ids, last = run.clients["client_id"], int(run.round_latency["round"].max())
    with closing(Store(run_dir / "run.db")) as log:
        log.save_late_events(last + 1, [told("reconciled", str(ids[1]), 1000)])
    dots, rings = plots.releases(run, PrivacyFigures("coordinate", 1.0)).axes[0].collections
    assert len(np.asarray(dots.get_offsets())) == len(run.leakage["client_id"])
    assert np.asarray(rings.get_offsets()).tolist() == [[last, 1]]
    assert np.asarray(rings.get_facecolor()).size == 0
