"""Published figures by name: each is an experiment, its runs are repeated by seed, and bad input is one line."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from pausefl.campaigns.campaign import CampaignInterrupted, OneByOne
from pausefl.campaigns.reproduction import playing
from pausefl.campaigns.reproduction.command import requested
from pausefl.campaigns.reproduction.document import results_page
from pausefl.campaigns.reproduction.figure import draw_reproduction
from pausefl.campaigns.reproduction.page import keep, kept_summaries, write_page
from pausefl.campaigns.reproduction.playing import (
    ReproductionScale,
    Request,
    estimated_s,
    left_out,
    n_finished,
    reproduce,
)
from pausefl.cli import main, parser
from pausefl.config.experiment import load_experiment
from pausefl.published import find_reproduction, read_reproductions, reproductions
from pausefl.report.style import save_png
from pausefl.results.reading import read_run
from pausefl.results.reproduction import ClusterTerm, _against, _best, _stored, _waits, time_to
from pausefl.results.statistics import Waits
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import NOT_FINITE

DOCS = Path(__file__).parents[1] / "docs"
SMALL = (
    *("workload.dataset=digits", "workload.examples=300", "clients.count=4", "selection.m=2"),
    *("experiment.rounds=4", "latency.time_scale=0.01", "evaluation.every=1"),
)


def request(name: str, folder: Path, scale: ReproductionScale = "full", overrides: Sequence[str] = ()) -> Request:
    found = find_reproduction(name)
    series = (found.quick.series if scale == "quick" else ()) or tuple(found.series)
    return Request(found, series, 1, scale, tuple(overrides), folder)


@pytest.mark.parametrize("scale", ["full", "quick"])
@pytest.mark.parametrize("name", [each.name for each in reproductions()])
def test_every_series_of_every_figure_is_an_experiment(name: str, scale: ReproductionScale, tmp_path: Path) -> None:
    asked = request(name, tmp_path, scale)
    settings = [asked.experiment(series).to_toml() for series in asked.series]
    assert len(set(settings)) == len(settings)  # no two series are the same
    assert set(find_reproduction(name).published) <= set(find_reproduction(name).series)


def test_every_figure_of_both_papers_has_a_name() -> None:
    names = {figure for each in reproductions() for figure in each.figures}
    assert {f"fig{number}" for number in range(2, 16)} <= names
    assert {f"fedts-fig{number}" for number in range(5, 11)} <= names
    assert {"small_mnist", "small_cifar", "large_mnist", "fedts-table2-poisoning"} <= names


def test_a_figures_name_stands_for_its_experiment() -> None:
    assert load_experiment("fig4").privacy.epsilon_budget == 40
    assert load_experiment("fig13").selection.parameters("sa-pause")["clusters"] == 20
    with pytest.raises(ConfigError, match="did you mean fig14"):
        load_experiment("fgi14")


def test_the_quick_scale_takes_ten_minutes_on_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing.os, "cpu_count", lambda: 2)  # type: ignore[attr-defined]
    for each in reproductions():
        small = request(each.name, tmp_path, "quick")
        assert estimated_s(small) < 600
        assert left_out(small)
    fewer = request("fedts-table2-poisoning", tmp_path, overrides=["workload.examples=4000", "experiment.rounds=50"])
    assert left_out(fewer) == ["2 of 3 seeds", "50 of 100 rounds", "8,000 of 12,000 examples"]
    assert left_out(request("fig2", tmp_path, "quick")) == [
        "2 of 3 seeds",
        "the series sa-pause, fastest, clustered, all, all-without-privacy",
        "240 of 300 rounds",
        "real time: delays are 10 times shorter, so the machine's own delays weigh as much more",
    ]


def test_an_unknown_key_of_a_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="policies"):
        read_reproductions('[a]\ntitle="a"\npreset="demo"\nseries=[]\nseeds=1\nquick={}\npolicies=["random"]')


def ended(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *arguments])
    return end.value.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fig22",), "fig22: no such figure or table; did you mean fig2?"),
        (("nothing-like-it",), "nothing-like-it: no such figure or table; pausefl reproduce --list shows them all"),
        ((), "pausefl reproduce: needs the NAME of a figure, --list or --write-docs"),
        (("fig2", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("small_mnist", "--series", "oort"), '--series "oort": is not shown by small_mnist, which shows pause, '),
        (("small_mnist", "--series", "pause,"), '--series "": is not shown by small_mnist, which shows pause, '),
        (
            ("fedts-fig5", "--set", "experiment.rounds=5"),
            "fedts-fig5: draws newcomers, but none joins flip-cifar within",
        ),
        (
            ("small_mnist", "--write-docs"),
            "--write-docs: goes in a checkout of the repository, where docs/results lies",
        ),
        (("fig2", "--resume", "--out", "none"), "--out none: holds no reproduction to go on with; leave out --resume"),
        (("--write-docs",), "--write-docs: goes in a checkout of the repository, where docs/results lies"),
        (("fig2", "--set", "selection.em=1"), "selection.em"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pausefl: {said}")
    assert err.count("\n") == 1


def test_missing_data_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAUSEFL_DATA", str(tmp_path / "nowhere"))
    assert ended("small_mnist", "--out", str(tmp_path / "out")) == 2
    err = capsys.readouterr().err
    assert "mnist" in err
    assert err.count("\n") == 1


def test_the_virtual_clock_is_a_setting_of_every_run() -> None:
    options = parser().parse_args(["reproduce", "fig2", "--virtual", "--set", "experiment.rounds=5"])
    assert requested(options).overrides == ("experiment.clock=virtual", "experiment.rounds=5")


class InterruptedAt:
    """A display of runs that ends the campaign before its `at`-th run, as Ctrl-C does."""

    def __init__(self, at: int = 99) -> None:
        self.titles: list[str] = []
        self._at = at

    def __call__(self, title: str) -> Any:
        self.titles.append(title)
        if len(self.titles) == self._at:
            raise KeyboardInterrupt
        return nullcontext(self)

    def show(self, event: Any) -> None:
        """Ignore the event."""


def test_a_reproduction_that_was_begun_before_a_key_existed_goes_on(tmp_path: Path) -> None:
    asked = Request(find_reproduction("small_mnist"), ("pause", "random"), 1, "full", SMALL, tmp_path)
    with pytest.raises(CampaignInterrupted):
        reproduce(asked, OneByOne(InterruptedAt(1)), resume=False)
    begun = (tmp_path / "campaign.json").read_text("utf-8")

    def go_on_without(line: str) -> None:
        assert f"\\n{line}\\n" in begun
        (tmp_path / "campaign.json").write_text(begun.replace(f"\\n{line}\\n", "\\n"), "utf-8")
        reproduce(asked, OneByOne(InterruptedAt(1)), resume=True)

    with pytest.raises(CampaignInterrupted):
        go_on_without("reproducible_noise = false")  # the default
    with pytest.raises(ConfigError, match="other settings"):
        go_on_without("m = 2")


@pytest.mark.end_to_end
@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_and_its_summary_becomes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    asked = Request(find_reproduction("small_mnist"), ("pause", "random"), 1, "full", SMALL, folder)
    with pytest.raises(CampaignInterrupted, match=r"in run 2 of 2 \(random-seed1\); go on with: pausefl reproduce"):
        reproduce(asked, OneByOne(InterruptedAt(2)), resume=False)
    assert n_finished(asked) == (1, 2)

    words = ["small_mnist", "--scale", "full", "--seeds", "1", "--series", "pause,random", "--out", str(folder)]
    words += [word for override in SMALL for word in ("--set", override)]
    assert ended(*words) == 2
    assert "holds this reproduction, 1 of 2 runs finished; go on with --resume" in capsys.readouterr().err
    assert ended(*words, "--resume", "--set", "selection.m=3") == 2
    assert "holds a reproduction with other settings" in capsys.readouterr().err
    assert ended(*words, "--resume", "--scale", "quick") == 2
    assert "holds a reproduction of another scale, full, not quick" in capsys.readouterr().err

    shown = InterruptedAt()
    summary = reproduce(asked, OneByOne(shown), resume=True)
    assert shown.titles == ["random-seed1 (2 of 2)"]
    assert json.loads((folder / "reproduction.json").read_text("utf-8"))["series"].keys() == {"pause", "random"}
    assert summary["series"]["pause"]["total_latency_s"]["n_seeds"] == 1
    assert summary["series"]["pause"]["total_latency_s"]["low"] is None
    assert summary["series"]["pause"]["against_baseline"]["total_latency_s"]["win_rate"] in (0.0, 1.0)
    assert matplotlib.image.imread(folder / "small_mnist.png")[..., :3].var() > 1e-3

    more, shown = replace(asked, series=("pause", "random", "fastest")), InterruptedAt()
    reproduce(more, OneByOne(shown), resume=True)
    assert shown.titles == ["fastest-seed1 (3 of 3)"], "a series that joins later"

    (tmp_path / "docs/results").mkdir(parents=True)
    keep(folder, tmp_path / "docs")
    page = write_page(tmp_path / "docs").read_text("utf-8")
    assert "## Archived run: small MNIST" in page
    assert "- No intervals: 1 of at least 5 seeds." in page
    assert "archived 83.9" in page
    assert (tmp_path / "docs/results/reproduce/small_mnist.png").exists()


def test_the_page_of_results_is_written_from_the_stored_summaries() -> None:
    text = (DOCS / "results.md").read_text("utf-8")
    assert text == results_page(kept_summaries(DOCS)), "run pausefl reproduce --write-docs"
    kept = {path.stem for path in (DOCS / "results/reproduce").glob("*.json")}
    assert kept == {summary["name"] for summary in kept_summaries(DOCS)}  # none is left over


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
        "newcomers": {"selections": selections, "by_round": curve},
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


@pytest.mark.parametrize("drawing", ["latency", "rounds", "selections", "newcomers", "best"])
def test_each_drawing_shows_its_series(drawing: str, tmp_path: Path) -> None:
    save_png(draw_reproduction(stored(drawing)), tmp_path / "it.png")
    assert matplotlib.image.imread(tmp_path / "it.png")[..., :3].var() > 1e-3


def test_published_values_are_drawn_where_the_paper_has_them() -> None:
    accuracy, leakage = draw_reproduction(stored("latency")).axes
    circles = {
        axes: [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]  # type: ignore[union-attr]
        for axes in (accuracy, leakage)
    }
    assert circles == {accuracy: [[[50, pytest.approx(0.631)]]], leakage: [[[100, 106]]]}


def test_a_section_shows_intervals_censored_seeds_and_published_values() -> None:
    page = results_page([stored("latency")])
    (row,) = re.findall(r"^\| `pause` .*", page, re.MULTILINE)
    assert "70.0 [60.0, 80.0]; archived 83.9" in row
    assert "| 40.0 [30.0, 50.0] (4 of 6 reached it; waits up to 90.0 s) | 40.0 [30.0, 50.0] |" in row
    assert "time to 80 %" not in page
    assert "150 [140, 160]; archived 106" in row
    assert "`pause` less `random`: total latency -9.0 [-12.0, -5.0] s, win rate 75 %; time to 60 % -9.0" in page
    assert "win rate 75 %, of waits up to 90.0 s." in page


def test_what_a_section_cannot_compare_is_left_out() -> None:
    """Totals of a published run with other rounds; times to what a series never reached, or of runs without waits."""
    summary = stored("best")
    summary["published"]["pause"] = {"best": 83.9, "final": 70.0, "total_s": 115, "rounds": 50}
    difference = summary["series"]["pause"]["against_baseline"]["total_latency_s"]
    summary["series"]["pause"]["against_baseline"]["time_to_0.8_s"] = difference
    page = results_page([summary])
    assert "published 83.9" in page
    assert "published 115" not in page
    assert "published 70" not in page
    assert "time to 80 %" not in page
    for series in summary["series"].values():
        series["total_latency_s"] = {"mean": 0.4, "low": None, "high": None, "n_seeds": 6}
    page = results_page([summary])
    section = page[page.index("## A figure") : page.index("- Random's total latency")]
    assert "latency" not in section
    assert "time to" not in section


def test_a_section_tells_which_newcomers_were_chosen_where_not_all_were_alike() -> None:
    summary = stored("best")
    alike = {"a": {"role": "relevant", "mean": 5.0}, "b": {"role": "irrelevant", "mean": 5.0}}
    summary["series"]["random"]["newcomers"] = {"selections": alike, "by_round": None}
    lines = [line for line in results_page([summary]).splitlines() if "chose a newcomer" in line]
    assert lines == [
        "- `pause` chose a newcomer 9.0 times if relevant, 2.0 times if irrelevant (mean over newcomers and seeds)."
    ]


def test_beside_the_best_stands_what_the_last_model_reached() -> None:
    summary = stored("best")
    summary["series"]["random"]["last_accuracy"] = {"mean": 0.1, "low": None, "high": None, "n_seeds": 6}
    (axes,) = draw_reproduction(summary).axes
    marks = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "D"]  # type: ignore[union-attr]
    assert [mark for mark in marks if mark] == [[[pytest.approx(70), 0]], [[pytest.approx(10), 1]]]


def test_with_few_seeds_the_best_has_a_line_from_the_least_to_the_greatest() -> None:
    summary = stored("best")
    for series in summary["series"].values():
        series["seeds"] = [1, 2]
        series["best_by_seed"] = [0.5, 0.9]
        series["best_accuracy"] = {"mean": 0.7, "low": None, "high": None, "n_seeds": 2}
    (axes,) = draw_reproduction(summary).axes
    (first, *_) = [line for bar in axes.containers if hasattr(bar, "lines") for line in bar.lines[2]]
    assert first.get_segments()[0][:, 0].tolist() == pytest.approx([50, 90])


def test_conditions_name_what_the_series_do_not_share(tmp_path: Path) -> None:
    table = request("fedts-table2-poisoning", tmp_path)
    settings = playing._settings([table.experiment(series) for series in ("fed-ts", "fedavg", "scaffold")])
    assert (settings["m"], settings["clients"], settings["model"]) == ("5 or 20", 20, "fedts_fashion")
    scenarios = request("fedts-fig5", tmp_path)
    settings = playing._settings([scenarios.experiment(series) for series in scenarios.series])
    assert settings["clients"] == "30 or 15 or 24"


def test_where_clients_join_later_the_best_is_of_the_evaluations_since_then() -> None:
    class Evaluated:
        groups: Mapping[str, Any] = {}

        def accuracy_by_round(self, _split: str) -> tuple[Any, Any]:
            return np.array([2, 8, 10, 12]), np.array([0.5, 0.8, 0.6, 0.4])

    run: Any = Evaluated()
    assert _best(run) == 0.8
    run.groups = {"original": SimpleNamespace(join_round=1), "poisoned": SimpleNamespace(join_round=10)}
    assert _best(run) == 0.6


@pytest.mark.end_to_end
def test_the_cluster_term_is_that_of_the_log_and_known_of_policies_without_clusters(tmp_path: Path) -> None:
    small = (
        *("workload.dataset=digits", "workload.model=mlp", "workload.examples=600", "clients.count=12"),
        *("selection.m=6", "experiment.rounds=5", "experiment.clock=virtual", "evaluation.every=1"),
    )
    asked = Request(find_reproduction("fig11"), ("pause", "fastest"), 1, "full", small, tmp_path)
    term = replace(playing._cluster_term(asked.reproduction) or ClusterTerm(0, 0.0), clusters=3)
    asked = replace(asked, overrides=(*small, "selection.pause.clusters=3"))
    summary = reproduce(asked, OneByOne(InterruptedAt()), resume=False)
    run = read_run(tmp_path / "pause-seed1")
    logged_s = float(run.round_latency["cluster_penalty_s"].sum())
    assert term.of_run(run) == pytest.approx(logged_s)
    assert logged_s > 0
    assert summary["series"]["fastest"]["cluster_term_s"]["mean"] >= 0
    assert "δ_τ term of eq. (22) (s)" in results_page([summary])


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


def test_a_reproduction_whose_runs_would_share_a_ledger_is_refused(tmp_path: Path) -> None:
    own = (*SMALL, f"privacy.ledger_dir={tmp_path / 'ledgers'}")
    shared = Request(find_reproduction("small_mnist"), ("pause", "random"), 1, "full", own, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"privacy\.ledger_dir, whose budgets"):
        reproduce(shared, OneByOne(InterruptedAt(1)), resume=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.end_to_end
def test_a_model_that_diverges_is_a_figure_and_no_failure(tmp_path: Path) -> None:
    poisoned = (
        *("workload.dataset=digits", "workload.model=mlp", "workload.examples=200", "workload.batch_size=10"),
        *("experiment.clock=virtual", "experiment.rounds=12", "clients.groups.poisoned.join_round=3"),
        # The last model's loss is still finite, but no update of its clients is.
        'clients.groups.poisoned.behaviours=[{kind="gaussian-update",scale=1e14}]',
    )
    asked = Request(find_reproduction("fedts-table2-poisoning"), ("fedavg", "fedprox"), 1, "full", poisoned, tmp_path)
    summary = reproduce(asked, OneByOne(InterruptedAt()), resume=False)
    ends = [last for series in summary["series"].values() for last in series["diverged_after"]]
    assert len(ends) == 2
    assert all(3 <= last < 12 for last in ends)
    page = results_page([summary])
    assert f"- `fedavg`: the model diverged with 1 of 1 seeds, after round {ends[0]}." in page
    assert f"0 of {sum(ends)} rounds are suspect" in page


def test_a_model_that_diverged_needs_longer_than_any_run_and_has_no_total() -> None:
    def run(seconds: float, accuracy: float, *, diverged: bool = False) -> Any:
        ended = ("failed", f"the last one, a: {NOT_FINITE}") if diverged else ("completed", "all rounds done")
        summary = {"outcome": ended[0], "stopped_because": ended[1], "rounds": 5, "total_latency_s": seconds}
        return SimpleNamespace(summary=summary, curve=lambda _split: (np.array([seconds]), np.array([accuracy])))

    runs: Any = {"a": [run(3, 0.1, diverged=True), run(50, 0.9)], "random": [run(60, 0.9), run(60, 0.9)]}
    waits = {name: _waits(of_series, 60.0) for name, of_series in runs.items()}
    lost, reached = (waits[name][0.8] for name in runs)
    assert lost.seconds.tolist() == [60, 50]
    assert time_to(lost, reached)["mean"] == pytest.approx(55)
    assert (_against(runs, waits, "a", "random") or {}).keys() == {"time_to_0.6_s", "time_to_0.7_s", "time_to_0.8_s"}


def test_curves_that_share_no_place_are_not_drawn() -> None:
    short, long = (np.array([1.0, 2.0]), np.array([0.1, 0.2])), (np.array([5.0, 9.0]), np.array([0.1, 0.2]))
    assert _stored([short, long]) is None
