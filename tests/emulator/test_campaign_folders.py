"""A campaign's folder holds that campaign alone: no run of another one is ever taken for its own."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import pausefl
from pausefl.experiment.experiment import Experiment
from pausefl.runtime.fleet import SILENT
from pausefl.runtime.run_dir import CAMPAIGN_PLAN
from pausefl.studies.campaign import Plan, Planned, begin
from pausefl.studies.executors import side_by_side
from pausefl.studies.playing import OneByOne, Player
from pausefl.studies.redrawing import report_folder
from pausefl.studies.sweep import resume_sweep, run_sweep
from pausefl_proto.errors import ConfigError
from rigs.experiments import small
from rigs.refusals import refused

ALONE = OneByOne(lambda _: nullcontext(SILENT))
TOGETHER = side_by_side(2, lambda _: None)
PLAYERS = pytest.mark.parametrize("player", [ALONE, TOGETHER], ids=["alone", "side by side"])
ANOTHER = r"holds another campaign \(pausefl .*\); choose another folder, or go on with that one by --resume$"


def experiment(**changes: Any) -> Experiment:
    """One client of three a round, for two rounds; changes are of [experiment]."""
    own = {f"experiment.{key}": value for key, value in {"rounds": 2, **changes}.items()}
    return small({"clients.count": 3, "selection.m": 1, "privacy.enabled": False, **own})


def sweep(folder: Path, values: Sequence[int] = (1,), seeds: int = 1, **changes: Any) -> pausefl.Sweep:
    return run_sweep(experiment(**changes).to_toml(), {"selection.m": values}, seeds, folder, ALONE)


def test_a_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    played = pausefl.compare(experiment(), ["random"], folder=tmp_path, progress=False)
    assert played.folder == tmp_path
    begun = (tmp_path / CAMPAIGN_PLAN).read_text()
    for other, policies, seeds in (
        (experiment(rounds=3), ["random"], 1),
        (experiment(), ["random", "all"], 1),
        (experiment(), ["random"], 2),
    ):
        with pytest.raises(ConfigError, match=ANOTHER):
            pausefl.compare(other, policies, seeds, tmp_path, progress=False)
    assert (tmp_path / CAMPAIGN_PLAN).read_text() == begun
    again = pausefl.compare(experiment(), ["random"], folder=tmp_path, progress=False)  # the same one goes on
    assert again.rows == played.rows


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path)
    others: list[Callable[[], object]] = [
        lambda: sweep(tmp_path, rounds=3),
        lambda: sweep(tmp_path, (1, 2)),
        lambda: sweep(tmp_path, seeds=2),
        lambda: pausefl.compare(experiment(), ["random"], folder=tmp_path, progress=False),
    ]
    for other in others:
        with pytest.raises(ConfigError, match=ANOTHER):
            other()


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    few: dict[str, Any] = {"folder": tmp_path, "trials": 1, "seeds": 1, "fresh_seeds": 2}
    private = experiment().replace({"privacy.enabled": True})
    pausefl.tune(private, ["selection.pause.alpha=1..100"], **few)
    with pytest.raises(ConfigError, match=ANOTHER):
        pausefl.tune(private, ["selection.pause.gamma=0..9"], **few)


@PLAYERS
def test_a_finished_run_of_another_experiment_is_not_taken_for_the_planned_one(tmp_path: Path, player: Player) -> None:
    ALONE.play([Planned("a", experiment())], tmp_path)
    changed = [Planned("b", experiment()), Planned("a", experiment(rounds=3))]
    with pytest.raises(ConfigError, match=r"/a: holds a finished run of another experiment; .*choose another folder"):
        player.play(changed, tmp_path)
    assert not (tmp_path / "b").exists(), "said before anything is played"


def test_a_campaign_that_goes_on_takes_no_run_of_another(tmp_path: Path) -> None:
    sweep(tmp_path)
    plan = json.loads((tmp_path / CAMPAIGN_PLAN).read_text())
    plan["source"] = experiment(rounds=3).to_toml()
    (tmp_path / CAMPAIGN_PLAN).write_text(json.dumps(plan))
    for gather in (lambda: resume_sweep(tmp_path, ALONE), lambda: report_folder(tmp_path, csv=False)):
        with pytest.raises(ConfigError, match="holds a finished run of another experiment"):
            gather()


@pytest.mark.parametrize(
    ("plan", "again"),
    [
        (Plan("reproduce", "", {"name": "small_mnist"}), "pausefl reproduce small_mnist --resume --out {folder}"),
        (Plan("tune", "", {"by": "run"}), "pausefl tune --resume {folder}"),
    ],
)
def test_the_report_of_an_unknown_campaign_names_its_command(tmp_path: Path, plan: Plan, again: str) -> None:
    begin(tmp_path, plan)
    with refused(f"pausefl {plan.command}; to write its files again: {again.format(folder=tmp_path)}"):
        report_folder(tmp_path, csv=False)


def test_no_run_of_a_campaign_counts_as_two(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^random-seed1: two of the runs have this name; name each .* once$"):
        pausefl.compare(experiment(), ["random", "random", "all"], folder=tmp_path / "c", progress=False)
    with pytest.raises(ConfigError, match=r"^--set selection.m: 1 and 1 are the same; name each value once"):
        sweep(tmp_path / "s", (1, 2, 1))
    assert not list(tmp_path.iterdir())


def test_a_run_does_not_begin_in_a_campaigns_folder(tmp_path: Path) -> None:
    sweep(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=rf"^--run-dir {tmp_path}: holds a campaign \(.*\); choose another$"):
        pausefl.run(experiment(), tmp_path, progress=False)
    assert sorted(tmp_path.iterdir()) == before
    sweep(tmp_path)  # which is still the folder of this one


def test_a_campaign_does_not_begin_in_a_runs_folder(tmp_path: Path) -> None:
    pausefl.run(experiment(), tmp_path, progress=False)
    with pytest.raises(ConfigError, match=r"holds a run; choose another"):
        sweep(tmp_path)
    assert not (tmp_path / CAMPAIGN_PLAN).exists()
