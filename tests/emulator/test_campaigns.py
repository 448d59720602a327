"""Sweeps and other campaigns: the points of a grid, folders, messages of failed runs, and resuming."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import pausefl
from pausefl.cli import parser
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.in_force import in_force
from pausefl.experiment.toml_source import read_source
from pausefl.results.report.sweep import caveats, draw_sweep, write_sweep
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, check_goes_on
from pausefl.studies import campaign
from pausefl.studies.campaign import CampaignInterrupted, Plan, Planned, begin, is_finished, read_plan
from pausefl.studies.compare import _planned, compare_runs, resume_comparison
from pausefl.studies.executors import side_by_side
from pausefl.studies.playing import OneByOne, Player
from pausefl.studies.redrawing import report_folder
from pausefl.studies.sweep import parse_grid, resume_sweep, run_sweep
from pausefl_proto.errors import ConfigError, PauseflError
from rigs.command import rounds_in, run, synthetic
from rigs.experiments import SMALL, small
from rigs.log import changing_log
from rigs.refusals import complaint, refused

pytestmark = pytest.mark.usefixtures("quickly_written")

BASE: dict[str, Sequence[Any]] = {**{key: [value] for key, value in SMALL.items()}, "experiment.rounds": [2]}
DEMO = read_source("demo")


class Quiet:
    """A view that counts the runs it is opened for."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    def __call__(self, title: str) -> Any:
        self.titles.append(title)
        return nullcontext(lambda _: None)


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


def test_virtual_holds_for_every_run_and_settings_without_key_or_value_or_set_twice_are_refused() -> None:
    for setting in ("selection.m", "=1", "selection.m="):
        with refused("must be table.key=value"):
            parse_grid([setting])
    for key, again in ("selection.m",) * 2, ("selection.mine:Policy.a", 'selection."mine:Policy".a'):
        with refused(f"{again} is set twice; list all its values in one --set"):
            parse_grid([f"{key}=1", f"{again}=2"])
    options = parser().parse_args(["sweep", "demo", "--virtual", "--set", "selection.m=1,2"])
    assert parse_grid(options.grid) == {"experiment.clock": ["virtual"], "selection.m": [1, 2]}


MANY: dict[str, Sequence[Any]] = {f"selection.pause.{key}": range(1, 10_001) for key in ("alpha", "gamma", "zeta")}
LEDGER = {**BASE, "privacy.ledger_dir": ["ledgers"]}
REFUSED: list[tuple[dict[str, Sequence[Any]], int, str]] = [
    ({**BASE, "experiment.seed": [1, 2]}, 2, "seed: lists 2 seeds beside --seeds 2; leave one out"),
    ({**BASE, "selection.m": [1, 2, 1]}, 1, "--set selection.m: 1 and 1 are the same; name each value once"),
    ({**BASE, "selection.pause.alpha": [1, 1.0]}, 1, "--set selection.pause.alpha: 1 and 1.0 are the same; name each"),
    ({**BASE, "selection.m": [2, 5]}, 1, "selection.m = 5"),
    ({**LEDGER, "selection.m": [1, 2]}, 1, "privacy.ledger_dir, whose budgets"),
    (MANY, 2, "--set: 1000000000000 settings of 2 seeds each are more than 10000 runs"),
    ({"selection.m": range(1, 5_002)}, 2, "--set: 5001 settings of 2 seeds each are more than 10000 runs"),
    ({}, 1, "nothing varies; name a key and its values"),
    ({**BASE, "selection.policy": ["random", "nowhere:Policy"]}, 1, "nowhere"),
]


@pytest.mark.parametrize(("grid", "seeds", "message"), REFUSED)
def test_a_senseless_grid_is_refused(grid: dict[str, Sequence[Any]], seeds: int, message: str, tmp_path: Path) -> None:
    """Refused: two seeds in one row, a budget that runs would share, more runs than can ever be played."""
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
    assert (folder / "sweep.png").exists()

    lost = folder / rows[1]["run_dir"]
    shutil.rmtree(lost)
    assert not is_finished(lost)
    again = Quiet()
    assert len(resume_sweep(folder, OneByOne(again)).rows) == 2
    assert again.titles == ["m=2-seed1 (2 of 2)"]
    assert is_finished(lost)
    assert not (lost / "report.html").exists()  # the report is drawn when it is asked for

    written = (folder / "sweep.csv").read_bytes()
    for path in (folder / "sweep.csv", folder / "sweep.png", folder / "sweep.svg"):
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
    sweep = run_sweep(DEMO, grid, 1, tmp_path / "s", OneByOne(view := Quiet(), view.titles.append))
    assert view.titles[0] == "before any run, 2 settings of data and training are tried"
    assert [row["outcome"] for row in sweep.rows] == ["completed", "missing"]
    assert sweep.rows[1]["stopped_because"].startswith("clients.count = 4000: must be from 1 to the 1200")
    assert "count=4000-seed1 is left out: clients.count" in caplog.text
    with pytest.raises(ConfigError, match="4000"):
        run_sweep(DEMO, {**grid, "clients.count": [4000]}, 1, tmp_path / "none", OneByOne(Quiet()))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("outcome", "rounds", "note"),
    [
        ("budgets_spent", 8, "1 of 2 runs ended early; runs have 8 to 12 rounds: their totals do not compare"),
        ("failed", 8, "1 of 2 runs ended early; runs have 8 to 12 rounds: their totals do not compare"),
        ("failed", 12, ""),  # in its last round
        ("completed", 8, ""),  # all it was asked for: the sweep varies experiment.rounds
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
    assert caveats([*rows, {"key": "a", "seed": 2}]).startswith("1 of 3 runs have no results; below 5 seeds, ranges")
    moved = caveats([{**row, "machine": f"{row['key']} core", "own_code": f"m {row['key']}; n 1"} for row in rows])
    assert "played on unequal machines: a core; b core; the code of m was changed between runs" in moved
    bars = "means over 2 seeds; bars: the range from the least to the greatest seed"
    assert draw_sweep([*rows, *again], ["key"]).get_supxlabel().replace("\n", " ").startswith(bars)
    of_two = draw_sweep([*rows, *({**row, "total_latency_s": 4003.0} for row in again)], ["key", "outcome"])
    assert of_two.get_supxlabel().replace("\n", " ").startswith(bars.replace("bars", "brackets"))
    assert of_two.axes[0].texts[0].get_text() == "2,003\n[3.00, 4,003]"


def test_the_names_and_cells_of_a_picture_do_not_overlap() -> None:
    rows = [{"a": a, "b": b / 1e3, "seed": s, "total_latency_s": 14.4} for a, b, s in product("xy", range(14), (1, 2))]
    for keys in (["b"], ["a", "b"]):
        axes = (figure := draw_sweep(rows, keys)).axes[0]
        figure.draw_without_rendering()
        for texts in (axes.get_xticklabels(), axes.texts[:14]):
            boxes = [text.get_window_extent() for text in texts]
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


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
    assert leakage.get_title() == title
    np.testing.assert_array_equal(np.asarray(leakage.lines[0].get_ydata()), values)


@pytest.mark.parametrize(("scores", "column"), [(("R²", "R²"), "final_R²"), (("R²", "accuracy"), "final_accuracy")])
def test_a_score_has_its_own_column_where_all_runs_have_it(scores: Sequence[str], column: str, tmp_path: Path) -> None:
    figures = {"final_accuracy": 0.5, "total_latency_s": 1.0}
    rows = [{"m": m, "metric": score, **figures} for m, score in enumerate(scores)]
    write_sweep(rows, [], tmp_path)
    assert (tmp_path / "sweep.csv").read_text("utf-8").splitlines()[0] == f"m,metric,{column},total_latency_s"
    drawn = {axes.get_title(): np.asarray(axes.lines[0].get_ydata()).tolist() for axes in draw_sweep(rows, ["m"]).axes}
    assert drawn == ({"final test R² (%)": [50, 50]} if scores[0] == scores[1] else {}) | {"total latency (s)": [1, 1]}


def test_interrupted_campaigns_find_runs_of_long_values_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder's name begins with the value and ends with its digest, so different values have different names."""
    played = []

    def made(_: object, run_dir: Path, *more: object, **options: object) -> dict[str, Any]:
        run_dir.mkdir(exist_ok=True)
        played.append(run_dir.name)
        return {"outcome": "interrupted" if len(played) % 2 == 0 else "completed"}

    monkeypatch.setattr("pausefl.studies.playing.run_experiment", made)
    monkeypatch.setattr("pausefl.studies.sweep.read_summary", lambda _: {"rounds": 2, "starts": None})
    laws = [{"kind": "values", "values_s": [0.125 + k / 1000 for k in range(100)] + [last]} for last in (1.0, 2.0, 3.0)]
    grid = {**BASE, "selection.m": [2], "latency.delay": laws}
    plays: list[Callable[[], object]] = [
        lambda: run_sweep(DEMO, grid, 1, tmp_path / "s", OneByOne(Quiet())),
        lambda: resume_sweep(tmp_path / "s", OneByOne(Quiet())),
    ]
    for play in plays:
        with pytest.raises(CampaignInterrupted, match=r"in run 2 of 3.*; go on with: pausefl sweep --resume .*/s$"):
            play()
        with (tmp_path / "s/sweep.csv").open(encoding="utf-8") as file:
            assert [row["outcome"] for row in csv.DictReader(file)] == ["", "missing", "missing"]
    assert len(set(played)) == 2
    assert played[:2] == played[2:]
    assert all(re.fullmatch(r"delay=-kind-values-values_s-0\.125-.{66}-[0-9a-f]{12}-seed1", name) for name in played)


ALONE = OneByOne(lambda _: nullcontext(lambda _: None))
ANOTHER = r"holds another campaign \(pausefl .*\); choose another folder, or go on with that one by --resume$"


def experiment(**changes: Any) -> Experiment:
    """A run of two rounds with one of three clients per round; `changes` are keys of [experiment]."""
    own = {f"experiment.{key}": value for key, value in {"rounds": 2, **changes}.items()}
    return small({"clients.count": 3, "selection.m": 1, "privacy.enabled": False, **own})


def sweep(folder: Path, values: Sequence[int] = (1,), seeds: int = 1, **changes: Any) -> pausefl.Sweep:
    return run_sweep(experiment(**changes).to_toml(), {"selection.m": values}, seeds, folder, ALONE)


def compared(folder: Path, policies: Sequence[str] = ("random",), seeds: int = 1, **changes: Any) -> pausefl.Comparison:
    return pausefl.compare(experiment(**changes), list(policies), seeds, folder, progress=False)


@pytest.mark.parametrize(
    ("play", "more", "another"),
    [(compared, {"policies": ["random", "all"]}, sweep), (sweep, {"values": (1, 2)}, compared)],
)
def test_a_folder_of_another_comparison_or_sweep_is_refused(
    play: Callable[..., Any], more: dict[str, Any], another: Callable[..., Any], tmp_path: Path
) -> None:
    played = play(tmp_path)
    assert played.folder == tmp_path
    begun = (tmp_path / CAMPAIGN_PLAN).read_text()
    changed: list[dict[str, Any]] = [{"rounds": 3}, more, {"seeds": 2}]
    begin_others: list[Callable[[Path], object]] = [*(partial(play, **other) for other in changed), another]
    begin_others += [lambda folder: compare_runs([next(folder.glob("*/summary.json")).parent], ["one"], folder)]
    for begin_other in begin_others:
        with pytest.raises(ConfigError, match=ANOTHER):
            begin_other(tmp_path)
    assert (tmp_path / CAMPAIGN_PLAN).read_text() == begun
    assert (tmp_path / "comparison.html").exists() == (play is compared), "nothing is written"
    assert play(tmp_path).rows == played.rows, "the same one goes on"


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    few: dict[str, Any] = {"folder": tmp_path / "search", "trials": 1, "seeds": 1, "fresh_seeds": 2}
    private = experiment().replace({"privacy.enabled": True})
    plan = few["folder"] / CAMPAIGN_PLAN
    for _ in range(2):
        pausefl.tune(private, ["selection.pause.alpha=1..100"], **few)
        plan.write_text(plan.read_text().replace('"command": ""', '"command": "the same, typed otherwise"'))
    with pytest.raises(ConfigError, match=ANOTHER):
        pausefl.tune(private, ["selection.pause.gamma=0..9"], **few)


@pytest.mark.parametrize("player", [ALONE, side_by_side(2, lambda _: None)], ids=["alone", "side by side"])
def test_a_finished_run_of_another_experiment_is_not_taken_for_the_planned_one(tmp_path: Path, player: Player) -> None:
    ALONE.play([Planned("a", experiment())], tmp_path)
    changed = [Planned("b", experiment()), Planned("a", experiment(rounds=3))]
    with pytest.raises(ConfigError, match=r"/a: holds a finished run of another experiment; .*choose another folder"):
        player.play(changed, tmp_path)
    assert not (tmp_path / "b").exists(), "said before anything is played"


def test_a_campaign_that_goes_on_takes_no_run_of_another_or_of_another_version(tmp_path: Path) -> None:
    sweep(tmp_path)
    plan = json.loads((tmp_path / CAMPAIGN_PLAN).read_text())
    plan["source"] = experiment(rounds=3).to_toml()
    (tmp_path / CAMPAIGN_PLAN).write_text(json.dumps(plan))
    for gather in (lambda: resume_sweep(tmp_path, ALONE), lambda: report_folder(tmp_path, csv=False)):
        with pytest.raises(ConfigError, match="holds a finished run of another experiment"):
            gather()
    with changing_log(next(tmp_path.glob("*/run.db")).parent) as log:
        log.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    with refused("has schema_version 99"):
        resume_sweep(tmp_path, ALONE)


def test_a_damaged_run_is_left_out_and_the_others_are_compared(tmp_path: Path) -> None:
    played, damaged = compared(tmp_path, ["random", "all"], seeds=2), tmp_path / "all-seed2"
    for name, text, said in (
        ("summary.json", '{"policy": "all"}', r"lacks .*; it may be of an older version$"),
        ("config.toml", "", r"is empty; restore"),
        ("config.toml", "nothing", r"was changed since the run began"),
        ("run.db", "no log", r"cannot be read as a run's database"),
    ):
        before = (damaged / name).read_bytes()
        (damaged / name).write_text(text)
        for again in (resume_comparison(tmp_path, ALONE), cast("pausefl.Comparison", pausefl.open(tmp_path))):
            assert re.search(rf"/all-seed2/{name}: {said}", str(again.missing["all-seed2"]))
            assert again.seeds == [1]
            assert again.warning.startswith("without all-seed2")
        with pytest.raises(ConfigError, match=said):
            campaign.unfinished([Planned("all-seed2", experiment())], tmp_path, "compare")
        (damaged / name).write_bytes(before)
    assert resume_comparison(tmp_path, ALONE).rows == played.rows
    names = [run.name for run in _planned(read_plan(tmp_path, "compare"), tmp_path)]
    assert names == ["random-seed1", "all-seed1", "random-seed2", "all-seed2"], "seed by seed"
    with refused("1 of 2 runs have no results; lost: killed; go on with: pausefl", PauseflError):
        campaign.check_all_played([damaged], {"lost": PauseflError("killed")}, "pausefl", print)


def test_neither_a_run_nor_a_campaign_goes_on_with_other_measured_latencies(tmp_path: Path) -> None:
    folder, file = tmp_path / "sweep", tmp_path / "delays.csv"
    file.write_text("seconds\n0.1\n0.2\n")
    measured = experiment().replace({"latency.delay": {"kind": "empirical", "file": str(file)}})
    begun = pausefl.sweep(measured, {"selection.m": [1]}, folder=folder, progress=False)
    file.write_text("seconds\n0.7\n0.9\n")
    for go_on in (
        lambda: resume_sweep(folder, ALONE),
        lambda: pausefl.run(run_dir=folder / "seed1", resume=True, rounds=9, progress=False),
        lambda: check_goes_on(in_force(measured), folder / "seed1"),
    ):
        with refused(f"{file}: was changed since the run in {folder / 'seed1'} began"):
            go_on()
    file.write_text("seconds\n0.1\n0.2\n")
    assert resume_sweep(folder, ALONE).rows == begun.rows


@pytest.mark.parametrize("is_package", [False, True])
def test_own_code_that_was_changed_between_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_package: bool
) -> None:
    name = f"changing_{is_package}"
    file = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(policy := RAISES.replace("== 3", "== 9"))
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "c"
    assert "code" not in compared(folder, [f"{name}:Raises"], seeds=2).warning
    shutil.rmtree(folder / f"{name}.Raises-seed2")
    (file.parent / "more.py" if is_package else file).write_text(f"{policy}# a change")
    assert f"the code of {name} was changed between runs" in resume_comparison(folder, ALONE).warning


def test_the_report_of_an_unknown_campaign_names_its_command(tmp_path: Path) -> None:
    for name, words in ("reproduce", "small_mnist --resume --out"), ("tune", "--resume"):
        begin(folder := tmp_path / name, Plan(name, "", {"name": "small_mnist", "scale": "quick", "settings": {}}))
        with refused(f"pausefl {name}; to write its files again: pausefl {name} {words} {folder}"):
            report_folder(folder, csv=False)


def test_no_run_of_a_campaign_counts_as_two_and_only_one_of_the_same_command_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^random-seed1: two of the runs have this name; name each .* once$"):
        compared(tmp_path / "c", ["random", "random", "all"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="holds no interrupted pausefl sweep"):
        read_plan(tmp_path, "sweep")
    plan = Plan("compare", "", {"policies": [], "seeds": 1})
    for damaged in (b'{"command": "\xff"}', json.dumps(asdict(replace(plan, arguments={"seeds": 1}))).encode()):
        (tmp_path / CAMPAIGN_PLAN).write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"campaign\.json: cannot be read .*; restore it from a copy$"):
            begin(tmp_path, plan)
    (tmp_path / CAMPAIGN_PLAN).unlink()
    begin(tmp_path, plan)
    with pytest.raises(ConfigError, match="was begun by pausefl compare"):
        read_plan(tmp_path, "sweep")


def test_neither_a_run_nor_a_campaign_begins_in_the_others_folder(tmp_path: Path) -> None:
    folder, run_dir = tmp_path / "more/campaign", tmp_path / "run"
    sweep(folder)
    before = sorted(folder.iterdir())
    for go_there in (partial(pausefl.run, progress=False), lambda of, there: check_goes_on(in_force(of), there)):
        with pytest.raises(ConfigError, match=rf"^--run-dir {folder}: holds a campaign \(.*\); choose another$"):
            go_there(experiment(), folder)
    assert sorted(folder.iterdir()) == before
    sweep(folder)  # the folder is still this campaign's
    pausefl.run(experiment(), run_dir, progress=False)
    with pytest.raises(ConfigError, match=r"holds a run; choose another"):
        sweep(run_dir)
    assert not (run_dir / CAMPAIGN_PLAN).exists()


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("compare --policies=random", "1 of 1 runs ended early: random-seed1"),
        ("sweep --set=workload.train_s=0.0,4.0", "1 of 2 runs ended early: train_s=4.0-seed1"),
    ],
)
def test_campaigns_name_failed_runs(words: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = synthetic(tmp_path, rounds=3, clients=3, m=1, train_s=4.0), tmp_path / "all"
    failing = ["--set", "server.round_timeout_s=1.5", "--set", "server.rounds_without_update_max=1"]
    command, option = words.split()
    said = complaint(capsys, command, config, "--run-dir", folder, *failing, option, status=1)
    assert said == f"{named}; to play them again, delete their folders, then pausefl {command} --resume {folder}"
    assert list(folder.glob("*.png"))  # figures of completed runs stay


RAISES = """
from pausefl_server.selection import Policy, Selection

class Raises(Policy):
    def select(self, state, context):
        if context.round == 3:
            raise KeyError("x")
        return Selection(context.eligible[: self.m])
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize("more", [[], ["--jobs", "1"]])
def test_an_error_of_own_code_tells_a_way(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    """The rounds before the error are kept, and the message names the run and the command that resumes it."""
    (tmp_path / "raising.py").write_text(RAISES)
    config, folder = synthetic(tmp_path, rounds=4, clients=3, m=1), tmp_path / "all"
    arguments = ["--policies", "raising:Raises", "--virtual", *more]
    said = complaint(capsys, "compare", config, "--run-dir", folder, *arguments, status=1)
    assert said.startswith("raising.Raises-seed1: KeyError: 'x' (")
    assert said.endswith(f"raising.py:7); go on with: pausefl compare --resume {folder}")


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_run_that_an_impossible_choice_ended_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISES.replace('raise KeyError("x")', "return Selection([])"))
    config, run_dir = str(synthetic(tmp_path, rounds=4, clients=3, m=1)), tmp_path / "run"
    own = ["--set", "selection.policy=raising:Raises", "--set", "experiment.clock=virtual"]
    failed = run("run", config, "--run-dir", run_dir, *own)
    assert failed.returncode == 1
    assert failed.stderr.startswith("pausefl: selection.policy: in round 3 it chose rows as list: must be")
    assert failed.stderr.endswith(f"; go on with: pausefl run --resume {run_dir}\n")
    (tmp_path / "raising.py").write_text(RAISES.replace("== 3", "== 0"))
    assert run("run", "--resume", run_dir).returncode == 0
    assert rounds_in(run_dir) == 4


@pytest.mark.end_to_end
def test_a_run_that_failed_in_python_says_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_in_python.py").write_text(RAISES)
    monkeypatch.chdir(tmp_path)
    own = {"selection.policy": "raising_in_python:Raises", "experiment.clock": "virtual"}
    experiment = pausefl.load(synthetic(tmp_path, rounds=4, clients=3, m=1), own)
    with pytest.raises(pausefl.PauseflError) as failed:
        pausefl.run(experiment, progress=False)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert str(failed.value).endswith(f"_python.py:7); go on with: pausefl.run(run_dir={str(run_dir)!r}, resume=True)")
    assert rounds_in(run_dir) == 2


@pytest.mark.end_to_end
def test_a_run_whose_rounds_are_all_played_is_not_to_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pausefl.results.report.write_report", interrupted)
    config, run_dir = synthetic(tmp_path, rounds=2, clients=3, m=1), tmp_path / "a run"
    said = complaint(capsys, "run", config, "--run-dir", run_dir, "--virtual", status=130)
    assert said == f"interrupted; all rounds are played; pausefl report '{run_dir}' writes the report"
