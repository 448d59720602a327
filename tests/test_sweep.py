"""Sweeps and resumed campaigns: what a grid spans, what is written, and that finished runs are not repeated."""

import csv
import re
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.campaigns.campaign import CampaignInterrupted, OneByOne, Plan, begin, is_finished, read_plan
from pausefl.campaigns.redrawing import report_folder
from pausefl.campaigns.sweep import parse_grid, resume_sweep, run_sweep
from pausefl.cli import parser
from pausefl.config.toml_source import read_source
from pausefl.report.sweep import draw_sweep, early_ends, write_sweep
from pausefl_proto.errors import ConfigError

BASE: dict[str, Sequence[Any]] = {
    "experiment.rounds": [2],
    "clients.count": [4],
    "workload.model": ["synthetic"],
    "latency.time_scale": [0.01],
}


class Quiet:
    """A view that counts the runs it is opened for."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    def __call__(self, title: str) -> Any:
        self.titles.append(title)
        return nullcontext(self)

    def show(self, event: Any) -> None:
        """Ignore the event."""


@pytest.mark.parametrize(
    ("settings", "grid"),
    [
        (["selection.pause.alpha=1,10,100"], {"selection.pause.alpha": [1, 10, 100]}),
        (
            ["selection.policy=pause,random", "selection.m=2"],
            {"selection.policy": ["pause", "random"], "selection.m": [2]},
        ),
        (['privacy.disclose=["loss", "labels"]'], {"privacy.disclose": [["loss", "labels"]]}),
        (
            ['workload.partition=iid,{kind="shards",per_client=2}, "shards"'],
            {"workload.partition": ["iid", {"kind": "shards", "per_client": 2}, "shards"]},
        ),
        (['privacy.disclose=[],["loss", "labels"]'], {"privacy.disclose": [[], ["loss", "labels"]]}),
        (['a.b="x, \\"y",\'z, "\',it\'s,[["}",1]]'], {"a.b": ['x, "y', 'z, "', "it's", [["}", 1]]]}),
    ],
)
def test_a_grid_is_read_from_settings(settings: list[str], grid: dict[str, list[Any]]) -> None:
    assert parse_grid(settings) == grid


def test_virtual_holds_for_every_run_of_a_sweep() -> None:
    options = parser().parse_args(["sweep", "demo", "--virtual", "--set", "selection.m=1,2"])
    assert parse_grid(options.grid) == {"experiment.clock": ["virtual"], "selection.m": [1, 2]}


@pytest.mark.parametrize("setting", ["selection.m", "=1", "selection.m="])
def test_a_setting_without_key_or_value_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"must be table\.key=value"):
        parse_grid([setting])


def test_a_key_that_is_set_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"selection\.m is set twice; list all its values in one --set$"):
        parse_grid(["selection.m=1", "selection.m=2"])
    with pytest.raises(ConfigError, match=r'selection\."mine:Policy"\.a is set twice'):
        parse_grid(["selection.mine:Policy.a=1", 'selection."mine:Policy".a=2'])


def test_listed_seeds_beside_a_number_of_seeds_are_refused(tmp_path: Path) -> None:
    """A run would have two seeds in its row, and the second seed of one would be the first of another."""
    grid = {**BASE, "experiment.seed": [1, 2]}
    with pytest.raises(ConfigError, match=r"seed: lists 2 seeds beside --seeds 2; leave one of the two out$"):
        run_sweep(read_source("demo"), grid, 2, tmp_path / "s", OneByOne(Quiet()))


@pytest.mark.parametrize("values", [[1, 10, 1], [1, 1.0]])
def test_a_value_that_stands_twice_is_refused(values: list[float], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^--set selection.pause.alpha: 1 and 1(\.0)? are the same; name each value once"
    ):
        run_sweep(read_source("demo"), {**BASE, "selection.pause.alpha": values}, 1, tmp_path / "s", OneByOne(Quiet()))


def test_a_point_that_is_no_experiment_is_refused_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"selection\.m = 5"):
        run_sweep(read_source("demo"), {**BASE, "selection.m": [2, 5]}, 1, tmp_path / "s", OneByOne(Quiet()))
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_sweep_writes_a_row_a_run_and_resumes_without_repeating(tmp_path: Path) -> None:
    folder, view = tmp_path / "sweep", Quiet()
    sweep = run_sweep(read_source("demo"), {**BASE, "selection.m": [1, 2]}, 1, folder, OneByOne(view))
    assert len(view.titles) == len(sweep.rows) == 2
    with (folder / "sweep.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["selection.m"] for row in rows] == ["1", "2"]
    assert all(float(row["total_latency_s"]) > 0 for row in rows)
    assert (folder / "sweep.png").stat().st_size > 10_000

    lost = folder / rows[1]["run_dir"]
    shutil.rmtree(lost)
    assert not is_finished(lost)
    again = Quiet()
    assert len(resume_sweep(folder, OneByOne(again)).rows) == 2
    assert again.titles == ["m=2-seed1 (2 of 2)"]
    assert is_finished(lost)
    report = lost / "report.html"
    report.unlink()  # as an interrupt leaves it that comes while it is drawn
    resume_sweep(folder, OneByOne(Quiet()))
    assert report.exists()

    written = (folder / "sweep.csv").read_bytes()
    for path in (folder / "sweep.csv", folder / "sweep.png", lost / "report.html"):
        path.unlink()
    assert report_folder(folder, csv=False)[-2:] == [folder / "sweep.csv", folder / "sweep.png"]
    assert (folder / "sweep.csv").read_bytes() == written
    assert (folder / "sweep.png").exists()
    assert (lost / "report.html").exists()
    shutil.rmtree(lost)
    with pytest.raises(ConfigError, match=r"1 of its 2 runs are not finished; go on with: pausefl sweep --resume"):
        report_folder(folder, csv=False)


@pytest.mark.parametrize(
    ("outcome", "rounds", "note"),
    [
        ("budgets_spent", 8, "1 of 2 runs ended early; runs have 8 to 12 rounds: their totals do not compare"),
        ("failed", 8, "1 of 2 runs ended early; runs have 8 to 12 rounds: their totals do not compare"),
        ("failed", 12, ""),  # in its last round
        ("completed", 8, ""),  # as was asked for: experiment.rounds is varied
    ],
)
def test_totals_of_runs_that_ended_early_are_warned_of(outcome: str, rounds: int, note: str) -> None:
    whole = {"key": "a", "total_latency_s": 3.0, "max_epsilon_spent": 1.0, "rounds": 12, "outcome": "completed"}
    rows = [whole, {**whole, "key": "b", "rounds": rounds, "outcome": outcome}]
    assert early_ends(rows) == note
    assert draw_sweep(rows, ["key"]).get_supxlabel().replace("\n", " ") == note


def test_two_varied_keys_are_drawn_as_heat_maps() -> None:
    rows = [
        {"m": m, "alpha": alpha, "seed": seed, "final_accuracy": m / 10, "total_latency_s": alpha}
        for m in (1, 2)
        for alpha in (1.0, 10.0, 100.0)
        for seed in (1, 2)
    ]
    figure = draw_sweep(rows, ["m", "alpha"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["final test accuracy (%)", "total latency (s)"]
    assert [np.asarray(image.get_array()).shape for axes in figure.axes for image in axes.images] == [(2, 3)] * 2
    figure.draw_without_rendering()
    lines = [line for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for line in axis.get_gridlines()]
    assert not any(line.get_visible() for line in lines)


@pytest.mark.parametrize(
    ("units", "title", "values"),
    [
        (("coordinate", "coordinate"), "greatest ε per coordinate", [2.0, 3.0]),
        (("vector", None), "greatest ε of the whole upload vector", [2.0, np.nan]),
        (("coordinate", "vector"), "greatest ε of the whole upload vector\n(privacy.unit differs)", [200.0, 3.0]),
    ],
)
def test_leakage_is_drawn_in_one_unit_which_it_names(
    units: Sequence[str | None], title: str, values: list[float]
) -> None:
    rows = [
        {
            "key": key,
            "total_latency_s": 1.0,
            "privacy_unit": unit,
            "max_epsilon_spent": unit and spent,
            "vector_epsilon_max": unit and (100 * spent if unit == "coordinate" else spent),
        }
        for key, unit, spent in zip("ab", units, (2.0, 3.0), strict=True)
    ]
    _, leakage = draw_sweep(rows, ["key"]).axes
    assert leakage.get_title(loc="left") == title
    np.testing.assert_array_equal(np.asarray(leakage.lines[0].get_ydata()), values)


def test_a_regression_is_not_listed_as_a_classification(tmp_path: Path) -> None:
    rows = [{"m": m, "seed": 1, "metric": "R²", "final_accuracy": 0.5, "best_accuracy": 0.6} for m in (1, 2)]
    write_sweep(rows, ["m"], tmp_path)
    first = (tmp_path / "sweep.csv").read_text("utf-8").splitlines()[0]
    assert first == "m,seed,metric,final_R²,best_R²"


def test_different_scores_are_not_drawn_on_one_axis(tmp_path: Path) -> None:
    rows = [
        {"task": task, "seed": 1, "metric": metric, "final_accuracy": 0.5, "best_accuracy": 0.6, "total_latency_s": 1.0}
        for task, metric in (("digits", "accuracy"), ("houses", "R²"))
    ]
    assert [axes.get_title(loc="left") for axes in draw_sweep(rows, ["task"]).axes] == ["total latency (s)"]
    write_sweep(rows, ["task"], tmp_path)
    assert (tmp_path / "sweep.csv").read_text("utf-8").startswith("task,seed,metric,final_accuracy,best_accuracy,")


def test_a_failed_run_without_a_score_does_not_rename_that_of_a_regression(tmp_path: Path) -> None:
    rows = [
        {"m": m, "seed": 1, "metric": metric, "final_accuracy": score, "total_latency_s": 1.0}
        for m, metric, score in ((1, "accuracy", None), (2, "R²", 0.5))
    ]
    assert draw_sweep(rows, ["m"]).axes[0].get_title(loc="left") == "final test R² (%)"
    write_sweep(rows, ["m"], tmp_path)
    assert (tmp_path / "sweep.csv").read_text("utf-8").startswith("m,seed,metric,final_R²,")


def test_an_interrupted_campaign_begins_no_further_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def interrupted(experiment: object, run_dir: Path, view: object, *, resume: bool) -> dict[str, Any]:
        played.append(run_dir.name)
        return {"outcome": "interrupted"}

    monkeypatch.setattr("pausefl.campaigns.campaign.run_experiment", interrupted)
    with pytest.raises(CampaignInterrupted, match=r"go on with: pausefl sweep --resume .*/s$"):
        run_sweep(read_source("demo"), {**BASE, "selection.m": [1, 2]}, 1, tmp_path / "s", OneByOne(Quiet()))
    assert played == ["m=1-seed1"]


def test_a_run_of_a_long_value_has_a_name_that_a_folder_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins as the value does, is another one for another value, and is found again."""
    played = []

    def made(experiment: object, run_dir: Path, view: object, *, resume: bool) -> dict[str, Any]:
        run_dir.mkdir(exist_ok=resume)
        played.append(run_dir.name)
        return {"outcome": "interrupted" if len(played) % 2 == 0 else "completed"}

    monkeypatch.setattr("pausefl.campaigns.campaign.run_experiment", made)
    laws = [{"kind": "values", "values_s": [0.125 + k / 1000 for k in range(100)] + [last]} for last in (1.0, 2.0)]
    grid = {**BASE, "selection.m": [2], "latency.delay": laws}
    with pytest.raises(CampaignInterrupted, match="interrupted in run 2 of 2"):
        run_sweep(read_source("demo"), grid, 1, tmp_path / "s", OneByOne(Quiet()))
    with pytest.raises(CampaignInterrupted, match="interrupted in run 2 of 2"):
        resume_sweep(tmp_path / "s", OneByOne(Quiet()))
    assert len(set(played)) == 2
    assert played[:2] == played[2:]
    assert all(re.fullmatch(r"delay=-kind-values-values_s-0\.125-.{66}-[0-9a-f]{12}-seed1", name) for name in played)


def test_a_campaign_whose_run_is_ended_at_once_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("pausefl.campaigns.campaign.run_experiment", killed)
    with pytest.raises(CampaignInterrupted, match=r"^interrupted in run 1 of 2 .*pausefl sweep --resume .*/s$"):
        run_sweep(read_source("demo"), {**BASE, "selection.m": [1, 2]}, 1, tmp_path / "s", OneByOne(Quiet()))


def test_only_a_campaign_of_the_same_command_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no interrupted pausefl sweep"):
        read_plan(tmp_path, "sweep")
    begin(tmp_path, Plan("compare", "", {}))
    with pytest.raises(ConfigError, match="was begun by pausefl compare"):
        read_plan(tmp_path, "sweep")


@pytest.mark.parametrize("values", [[[0.01], [0.1]], [{"kind": "none"}, {"kind": "constant", "value_s": 0.2}]])
def test_lists_and_tables_can_be_varied(tmp_path: Path, values: list[Any]) -> None:
    rows = [{"key": value, "m": m, "final_accuracy": 0.5, "total_latency_s": m} for value in values for m in (1, 2)]
    write_sweep(rows, ["key"], tmp_path)
    (axes, _) = draw_sweep(rows, ["key"]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(value) for value in values]
    assert (tmp_path / "sweep.png").exists()
    assert len(draw_sweep(rows, ["key", "m"]).axes) == 2


def test_a_long_value_leaves_room_to_draw() -> None:
    laws = [{"kind": "values", "values_s": [0.125] * 100 + [last]} for last in (1.0, 2.0)]
    rows = [{"delay": law, "m": m, "total_latency_s": 1.0} for law in laws for m in (1, 2)]
    for varied in (["delay"], ["m", "delay"], ["delay", "m"]):
        figure = draw_sweep(rows, varied)
        figure.draw_without_rendering()  # a layout that cannot be is a warning, which is an error here
        labels = [tick.get_text() for tick in (*figure.axes[0].get_xticklabels(), *figure.axes[0].get_yticklabels())]
        assert {"{'kind': 'va…0.125, 1.0]}", "{'kind': 'va…0.125, 2.0]}"} <= set(labels)


def test_a_sweep_whose_runs_would_share_a_ledger_is_refused(tmp_path: Path) -> None:
    shared = {**BASE, "selection.m": [2], "privacy.ledger_dir": [str(tmp_path / "ledgers")]}
    for grid, seeds in ({**shared, "selection.m": [1, 2]}, 1), (shared, 2):
        with pytest.raises(ConfigError, match=r"privacy\.ledger_dir, whose budgets"):
            run_sweep(read_source("demo"), grid, seeds, tmp_path / "s", OneByOne(Quiet()))
    assert not (tmp_path / "s").exists()


def test_a_grid_of_too_many_runs_is_refused_before_any_is_made(tmp_path: Path) -> None:
    grid = {f"selection.pause.{key}": range(1, 10_001) for key in ("alpha", "gamma", "zeta")}
    with pytest.raises(ConfigError, match=r"^--set: 1000000000000 settings of 2 seeds each are more than 10000 runs$"):
        run_sweep(read_source("demo"), grid, 2, tmp_path / "s", OneByOne(Quiet()))
