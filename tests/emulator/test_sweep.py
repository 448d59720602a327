"""Sweeps and resumed campaigns: what a grid spans, what is written, and that finished runs are not repeated."""

import csv
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.cli import parser
from pausefl.experiment.toml_source import read_source
from pausefl.results.report.sweep import caveats, draw_sweep
from pausefl.studies.campaign import CampaignInterrupted, Plan, begin, is_finished, read_plan
from pausefl.studies.playing import OneByOne
from pausefl.studies.redrawing import report_folder
from pausefl.studies.sweep import parse_grid, resume_sweep, run_sweep
from pausefl_proto.errors import ConfigError
from rigs.experiments import SMALL
from rigs.refusals import refused

BASE: dict[str, Sequence[Any]] = {**{key: [value] for key, value in SMALL.items()}, "experiment.rounds": [2]}
DEMO = read_source("demo")


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
        (["experiment.name=a,b", "selection.m=2"], {"experiment.name": ["a", "b"], "selection.m": [2]}),
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


MANY: dict[str, Sequence[Any]] = {f"selection.pause.{key}": range(1, 10_001) for key in ("alpha", "gamma", "zeta")}
LEDGER = {**BASE, "privacy.ledger_dir": ["ledgers"]}
REFUSED: list[tuple[dict[str, Sequence[Any]], int, str]] = [
    ({**BASE, "experiment.seed": [1, 2]}, 2, "seed: lists 2 seeds beside --seeds 2; leave one of the two out"),
    ({**BASE, "selection.m": [1, 2, 1]}, 1, "--set selection.m: 1 and 1 are the same; name each value once"),
    ({**BASE, "selection.pause.alpha": [1, 1.0]}, 1, "--set selection.pause.alpha: 1 and 1.0 are the same; name each"),
    ({**BASE, "selection.m": [2, 5]}, 1, "selection.m = 5"),
    ({**LEDGER, "selection.m": [1, 2]}, 1, "privacy.ledger_dir, whose budgets"),
    (LEDGER, 2, "privacy.ledger_dir, whose budgets"),
    (MANY, 2, "--set: 1000000000000 settings of 2 seeds each are more than 10000 runs"),
    ({}, 1, "nothing varies; name a key and its values"),
]


@pytest.mark.parametrize(("grid", "seeds", "message"), REFUSED)
def test_a_senseless_grid_is_refused(grid: dict[str, Sequence[Any]], seeds: int, message: str, tmp_path: Path) -> None:
    """Two seeds in one row, a budget that runs would share, more runs than can ever be played."""
    with refused(message):
        run_sweep(DEMO, grid, seeds, tmp_path / "s", OneByOne(Quiet()))
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_sweep_writes_a_row_a_run_and_resumes_without_repeating(tmp_path: Path) -> None:
    folder, view = tmp_path / "sweep", Quiet()
    sweep = run_sweep(DEMO, {**BASE, "selection.m": [1, 2]}, 1, folder, OneByOne(view))
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
    assert not (lost / "report.html").exists()  # it is drawn when it is asked for

    written = (folder / "sweep.csv").read_bytes()
    for path in (folder / "sweep.csv", folder / "sweep.png"):
        path.unlink()
    assert report_folder(folder, csv=False)[-2:] == [folder / "sweep.csv", folder / "sweep.png"]
    assert (folder / "sweep.csv").read_bytes() == written
    assert (folder / "sweep.png").exists()
    assert (lost / "report.html").exists()
    shutil.rmtree(lost)
    report_folder(folder, csv=False)
    with (folder / "sweep.csv").open(encoding="utf-8") as file:
        _, missing = csv.DictReader(file)
    assert (missing["outcome"], missing["stopped_because"]) == ("missing", "not finished")
    shutil.rmtree(folder / rows[0]["run_dir"])
    with pytest.raises(ConfigError, match=r"none of its 2 runs is finished; go on with: pausefl sweep --resume"):
        report_folder(folder, csv=False)


def test_a_point_that_the_data_refuse_is_a_row_of_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = {**BASE, "workload.model": ["mlp"], "clients.count": [3, 4000], "selection.m": [1]}
    sweep = run_sweep(DEMO, grid, 1, tmp_path / "s", OneByOne(Quiet()))
    assert [row["outcome"] for row in sweep.rows] == ["completed", "missing"]
    assert sweep.rows[1]["stopped_because"].startswith("clients.count = 4000: must be from 1 to the 1200")
    assert "count=4000-seed1 cannot be played: clients.count" in caplog.text
    with pytest.raises(ConfigError, match="4000"):
        run_sweep(DEMO, {**grid, "clients.count": [4000]}, 1, tmp_path / "none", OneByOne(Quiet()))
    assert not (tmp_path / "none").exists()


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
    figures = {"total_latency_s": 3.0, "max_epsilon_spent": 1.0, "rounds": 12, "outcome": "completed"}
    whole = {"key": "a", "seed": 1, **figures}
    rows = [whole, {**whole, "key": "b", "rounds": rounds, "outcome": outcome}]
    one_seed = "; ".join(filter(None, [note, "one seed: differences may be chance"]))
    assert draw_sweep(rows, ["key"]).get_supxlabel().replace("\n", " ") == caveats(rows) == one_seed
    again = [{**row, "seed": 2} for row in rows]
    assert caveats([*rows, *again]) == note.replace("1 of 2", "2 of 4")
    moved = caveats([{**row, "machine": f"{row['key']} core"} for row in rows])
    assert "played on unequal machines: a core; b core" in moved
    bars = "means over 2 seeds; bars: the range from the least to the greatest seed"
    assert draw_sweep([*rows, *again], ["key"]).get_supxlabel().replace("\n", " ").startswith(bars)


@pytest.mark.parametrize(
    ("units", "title", "values"),
    [
        (("coordinate", "coordinate"), "greatest ε per coordinate", [2.0, 3.0]),
        (("vector", None), "greatest ε of the whole upload vector", [2.0, np.nan]),
        (("coordinate", "vector"), "greatest ε of the whole upload vector\n(privacy.unit differs)", [200.0, 3.0]),
    ],
)
def test_leakage_is_drawn_in_one_named_unit(units: Sequence[str | None], title: str, values: list[float]) -> None:
    rows = []
    for key, unit, spent in zip("ab", units, (2.0, 3.0), strict=True):
        of_vector = 100 * spent if unit == "coordinate" else spent
        epsilons = {"max_epsilon_spent": unit and spent, "vector_epsilon_max": unit and of_vector}
        rows.append({"key": key, "total_latency_s": 1.0, "privacy_unit": unit, **epsilons})
    _, leakage = draw_sweep(rows, ["key"]).axes
    assert leakage.get_title(loc="left") == title
    np.testing.assert_array_equal(np.asarray(leakage.lines[0].get_ydata()), values)


def test_an_interrupted_campaign_begins_no_further_run_and_finds_those_of_long_values_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name fit for a folder begins as the value does, and is another one for another value."""
    played = []

    def made(_: object, run_dir: Path, *more: object, **options: object) -> dict[str, Any]:
        run_dir.mkdir(exist_ok=True)
        played.append(run_dir.name)
        return {"outcome": "interrupted" if len(played) % 2 == 0 else "completed"}

    monkeypatch.setattr("pausefl.studies.playing.run_experiment", made)
    monkeypatch.setattr("pausefl.studies.sweep.read_summary", lambda _: {"total_latency_s": 1.0, "rounds": 2})
    laws = [{"kind": "values", "values_s": [0.125 + k / 1000 for k in range(100)] + [last]} for last in (1.0, 2.0, 3.0)]
    grid = {**BASE, "selection.m": [2], "latency.delay": laws}
    plays: list[Callable[[], object]] = [
        lambda: run_sweep(DEMO, grid, 1, tmp_path / "s", OneByOne(Quiet())),
        lambda: resume_sweep(tmp_path / "s", OneByOne(Quiet())),
    ]
    for play in plays:
        with pytest.raises(CampaignInterrupted, match=r"in run 2 of 3.*; go on with: pausefl sweep --resume .*/s$"):
            play()
    assert len(set(played)) == 2
    assert played[:2] == played[2:]
    assert all(re.fullmatch(r"delay=-kind-values-values_s-0\.125-.{66}-[0-9a-f]{12}-seed1", name) for name in played)


def test_only_a_campaign_of_the_same_command_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no interrupted pausefl sweep"):
        read_plan(tmp_path, "sweep")
    begin(tmp_path, Plan("compare", "", {}))
    with pytest.raises(ConfigError, match="was begun by pausefl compare"):
        read_plan(tmp_path, "sweep")
