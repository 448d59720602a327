"""Published figures by name: each is an experiment, its runs are repeated by seed, and bad input is one line."""

import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

import pausefl
from docs.write_results import keep, kept_summaries, results_page, store, write_page
from pausefl.cli import main, whole_parser
from pausefl.experiment.experiment import load_experiment
from pausefl.results.reading import read_run
from pausefl.studies.campaign import CampaignInterrupted
from pausefl.studies.playing import OneByOne
from pausefl.studies.redrawing import report_folder
from pausefl_proto.errors import ConfigError
from pausefl_reproduce import estimate, playing
from pausefl_reproduce import summary as summary_module
from pausefl_reproduce.command import _after, requested
from pausefl_reproduce.estimate import estimated_s
from pausefl_reproduce.figure import draw_reproduction
from pausefl_reproduce.played import ClusterTerm, PlayedSeed
from pausefl_reproduce.playing import n_finished, reproduce
from pausefl_reproduce.published import find_reproduction, read_reproductions, reproductions
from pausefl_reproduce.request import ReproductionScale, Request, left_out
from pausefl_reproduce.summary import write_summary
from rigs.places import ROOT
from rigs.reports import CLIENTS, write_run

DOCS = ROOT / "docs"
SMALL = (
    "workload.dataset=digits",
    "workload.examples=300",
    "clients.count=4",
    "selection.m=2",
    "experiment.rounds=4",
    "latency.time_scale=0.01",
    "evaluation.every=1",
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
    assert len(set(settings)) == len(settings)  # all series differ
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
    monkeypatch.setattr(estimate, "available_cores", lambda: 2)
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
        ((), "needs the NAME of a figure, or --list"),
        (("fig2", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("small_mnist", "--series", "oort"), '--series "oort": is not shown by small_mnist, which shows pause, '),
        (("small_mnist", "--series", "pause,"), '--series "": is not shown by small_mnist, which shows pause, '),
        (
            ("fedts-fig5", "--set", "experiment.rounds=5"),
            "fedts-fig5: draws newcomers, but none joins flip-cifar within",
        ),
        (("fig2", "--resume", "--out", "none"), "--out none: holds no reproduction to go on with; leave out --resume"),
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


def test_at_the_end_it_is_said_why_a_series_has_no_total(tmp_path: Path) -> None:
    ended = {"total_latency_s": None, "best_accuracy": {"mean": 0.5}}
    series: Any = {
        name: {**ended, "diverged_after": diverged, "budgets_spent_after": spent}
        for name, diverged, spent in (("pause", [7], []), ("random", [], [7]), ("all", [7], [8]), ("ucb", [], []))
    }
    assert list(_after(request("small_mnist", tmp_path), series))[:4] == [
        "pause: the model diverged, best test accuracy 50.0 %",
        "random: privacy budgets ended a run early, best test accuracy 50.0 %",
        "all: the model diverged, privacy budgets ended a run early, best test accuracy 50.0 %",
        "ucb: a run ended early, best test accuracy 50.0 %",
    ]


def test_the_virtual_clock_is_a_setting_of_every_run() -> None:
    options = whole_parser().parse_args(["reproduce", "fig2", "--virtual", "--set", "experiment.rounds=5"])
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
        return nullcontext(lambda _: None)


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
        go_on_without("reproducible_noise = false")  # its default
    with pytest.raises(ConfigError, match="other settings"):
        go_on_without("m = 2")


def test_a_resumed_reproduction_keeps_all_that_it_began_with(tmp_path: Path) -> None:
    """`pausefl report` gets only the folder, so its message must name all settings."""
    asked = Request(find_reproduction("small_mnist"), ("pause", "random"), 2, "full", SMALL, tmp_path)
    with pytest.raises(CampaignInterrupted):
        reproduce(asked, OneByOne(InterruptedAt(1)), resume=False)
    with pytest.raises(ConfigError) as error:
        report_folder(tmp_path, csv=False)
    _, *again = shlex.split(str(error.value).rpartition(": ")[2])
    assert requested(whole_parser().parse_args(again)) == asked


def interrupt(*_: object) -> None:
    """Stands for Ctrl-C when a summary is written."""
    raise KeyboardInterrupt


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

    with monkeypatch.context() as interrupted:
        interrupted.setattr(playing, "write_summary", interrupt)
        with pytest.raises(
            CampaignInterrupted, match=rf"{folder}: interrupted; go on with: pausefl reproduce small_mnist"
        ):
            reproduce(asked, OneByOne(InterruptedAt()), resume=True)

    shown = InterruptedAt()
    summary = reproduce(asked, OneByOne(shown), resume=True)
    assert shown.titles == [], "both are played and drawn"
    assert json.loads((folder / "reproduction.json").read_text("utf-8"))["series"].keys() == {"pause", "random"}
    assert summary["series"]["pause"]["total_latency_s"]["n_seeds"] == 1
    assert summary["series"]["pause"]["total_latency_s"]["low"] is None
    assert summary["series"]["pause"]["against_baseline"]["total_latency_s"]["win_rate"] in (0.0, 1.0)
    assert matplotlib.image.imread(folder / "small_mnist.png")[..., :3].var() > 1e-3

    more, shown = replace(asked, series=("pause", "random", "fastest")), InterruptedAt()
    reproduce(more, OneByOne(shown), resume=True)
    assert shown.titles == ["fastest-seed1 (3 of 3)"], "a series that joins later"

    again = pausefl.reproduce("small_mnist", folder, scale="full", each_seed=True, resume=True, progress=False)
    assert len(again.summary["series"]["fastest"]["accuracy_by_latency"]["seeds"]) == 1
    assert requested(
        whole_parser().parse_args(["reproduce", "small_mnist", "--resume", "--out", str(folder)])
    ).each_seed

    (tmp_path / "docs/results/reproduce").mkdir(parents=True)
    store(again.summary, tmp_path / "docs")
    keep(folder, tmp_path / "docs")  # in place of one with the same settings
    page = write_page(tmp_path / "docs")
    assert "## Archived run: small MNIST" in page
    assert "- No intervals: 1 of at least 5 seeds." in page
    assert "archived 83.9" in page
    assert (tmp_path / "docs/results/reproduce/small_mnist.png").exists()


def test_each_seed_is_a_thin_line_on_demand(tmp_path: Path) -> None:
    runs: dict[str, list[PlayedSeed]] = {"pause": [], "random": []}
    kept = DOCS / "results/reproduce/small_cifar_running.runs.jsonl"
    for line in map(json.loads, kept.read_text("utf-8").splitlines()):
        if line["series"] in runs:
            runs[line["series"]].append(PlayedSeed(**line["run"]))
    whole = Request(find_reproduction("small_cifar_running"), tuple(runs), len(runs["pause"]), "full", (), tmp_path)
    plain, asked = (write_summary(replace(whole, each_seed=each_seed), runs) for each_seed in (False, True))
    assert asked["command"] == f"{whole.command} --each-seed"
    for name, of_seeds in runs.items():
        curve = asked["series"][name]["accuracy_by_latency"]
        assert np.allclose(np.mean(curve["seeds"], axis=0), curve["mean"], rtol=1e-3)
        assert len(curve["seeds"]) == len(of_seeds)
        assert "seeds" not in plain["series"][name]["accuracy_by_latency"]
    lines = [len(draw_reproduction(summary).axes[0].lines) for summary in (plain, asked)]
    assert lines[1] - lines[0] == sum(map(len, runs.values()))


@pytest.mark.usefixtures("quickly_written")
@pytest.mark.end_to_end
def test_elapsed_time_and_budgets_by_speed_are_those_of_the_log(tmp_path: Path) -> None:
    """The budget's floor allows two releases per client: the fastest clients have none left before the slowest."""
    overrides = (*SMALL[:-3], "experiment.rounds=12", "experiment.clock=virtual", "evaluation.every=1")
    steps = ("asynchronous.concurrency=2", "asynchronous.buffer=1", "privacy.epsilon_floor=7.6")
    whole = find_reproduction("async")
    found = whole.model_copy(update={"series": {"fedasync": whole.series["fedasync"]}})
    asked = Request(found, ("fedasync",), 1, "full", (*overrides, *steps), tmp_path / "it")
    summary = reproduce(asked, OneByOne(InterruptedAt()), resume=False)
    run = read_run(tmp_path / "it/fedasync-seed1")
    records = list(run.records)
    series = summary["series"]["fedasync"]
    assert series["accuracy_by_latency"]["x"][-1] == pytest.approx(records[-1].elapsed_s, rel=1e-3)
    assert sum(series["retired_by_fifth"]) == (run.clients["retired_before"] > 0).sum() == 4, "the last one at the end"
    assert len(series["epsilon_by_speed"]) == 4
    assert series["median_leak_by_latency"]["mean"][-1] <= series["leak_by_latency"]["mean"][-1]


def test_the_page_of_results_is_written_from_the_stored_summaries() -> None:
    text = (DOCS / "results.md").read_text("utf-8")
    assert text == results_page(kept_summaries(DOCS)), "run python docs/write_results.py"
    kept = {path.stem for path in (DOCS / "results/reproduce").glob("*.json")}
    assert kept == {summary["name"] for summary in kept_summaries(DOCS)}  # no summary is left over


@pytest.mark.usefixtures("quickly_written")
@pytest.mark.end_to_end
def test_the_cluster_term_is_that_of_the_log_and_known_of_policies_without_clusters(tmp_path: Path) -> None:
    small = (
        "workload.dataset=digits",
        "workload.model=mlp",
        "workload.examples=600",
        "clients.count=12",
        "selection.m=6",
        "experiment.rounds=5",
        "experiment.clock=virtual",
        "evaluation.every=1",
    )
    asked = Request(find_reproduction("fig11"), ("pause", "fastest"), 1, "full", small, tmp_path)
    asked = replace(asked, overrides=(*small, "selection.pause.clusters=3", "selection.pause.delta_tau_s=0.5"))
    summary = reproduce(asked, OneByOne(InterruptedAt()), resume=False)
    run = read_run(tmp_path / "pause-seed1")
    logged_s = float(run.round_latency["cluster_penalty_s"].sum())
    assert summary["series"]["pause"]["cluster_term_s"]["mean"] == pytest.approx(logged_s)
    assert logged_s > 0
    assert ClusterTerm(dict.fromkeys(map(str, run.clients["client_id"]), 0), 0.5).of_run(run) == 0.5 * 5 * (6 - 1)
    assert ClusterTerm({}, 0.5).of_run(run) == 0
    assert summary["series"]["fastest"]["cluster_term_s"]["mean"] >= 0
    assert "δ_τ term of eq. (22) (s)" in results_page([summary])


def test_a_client_that_was_drawn_twice_is_one_member_of_its_cluster(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    twice = replace(run, records=[replace(record, chosen=record.chosen * 2) for record in run.records])
    term = ClusterTerm(dict.fromkeys(CLIENTS, 0), 0.5)
    assert (term.of_run(run), term.of_run(twice)) == (0.5, 0.5)


def test_without_a_policy_under_r2_there_is_no_cluster_term(tmp_path: Path) -> None:
    r1 = request("fig11", tmp_path, overrides=["selection.pause.reward=R1"])
    assert summary_module.cluster_term(replace(r1, series=("pause", "fastest"))) is None
    assert summary_module.cluster_term(replace(r1, series=("fastest", "sa-pause"))) is not None


def test_a_reproduction_whose_runs_would_share_a_ledger_is_refused(tmp_path: Path) -> None:
    own = (*SMALL, f"privacy.ledger_dir={tmp_path / 'ledgers'}")
    shared = Request(find_reproduction("small_mnist"), ("pause", "random"), 1, "full", own, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"privacy\.ledger_dir, whose budgets"):
        reproduce(shared, OneByOne(InterruptedAt(1)), resume=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quickly_written")
@pytest.mark.end_to_end
def test_a_model_that_diverges_is_a_figure_and_no_failure(tmp_path: Path) -> None:
    poisoned = (
        "workload.dataset=digits",
        "workload.model=mlp",
        "workload.examples=200",
        "workload.batch_size=10",
        "experiment.clock=virtual",
        "experiment.rounds=12",
        "clients.groups.poisoned.join_round=3",
        # The last model's loss is still finite, but its clients' updates are not.
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
