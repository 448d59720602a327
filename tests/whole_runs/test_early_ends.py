"""Simulations and searches whose budgets end them early: what they tell, and that an early end is no merit."""

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import pausefl
from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.studies import simulations
from pausefl.studies.campaign import Missing, Planned
from pausefl.studies.playing import OneByOne
from pausefl.studies.simulation.engine import simulate
from pausefl.studies.simulation.outputs import in_words, run_simulation, setting_of
from pausefl_proto.errors import PauseflError
from pausefl_tune import measure as measure_module
from pausefl_tune import tune_experiment
from pausefl_tune.measure import Figures, Measure
from pausefl_tune.plan import TuningPlan
from rigs.tuning import SMALL

FLOORED = SMALL + "[privacy]\neta = 0.5\nepsilon_floor = {floor}\n"
FIVE, TEN = FLOORED.format(floor=5.0), FLOORED.format(floor=0.3)
"""Experiments in which a client may release so many times."""


def test_a_simulation_that_ends_early_tells_all_of_its_own_end() -> None:
    """However many rounds were asked for, and so however few of those played are recorded."""
    experiment = parse_experiment(
        FLOORED.format(floor=0.5), {"selection.policy": "random", "privacy.eta": 0.04, "clients.count": 12}
    )
    policy, setting = selected_policy(experiment.selection), setting_of(experiment)
    found = [simulate(policy, setting, rounds) for rounds in (400, 1000, 5000, 50_000)]
    assert found[0].round[-1] < 400
    for name in ("round", "total_latency_s", "max_epsilon_spent"):
        assert len({float(getattr(result, name)[-1]) for result in found}) == 1, name
    assert len({int(result.chosen.sum()) for result in found}) == 1
    assert all((np.diff(result.round) > 0).all() for result in found)


def test_one_that_ends_early_says_so(tmp_path: Path) -> None:
    experiment = parse_experiment(FIVE, {"selection.policy": "all"})
    summary = run_simulation(experiment, 100, tmp_path / "out")
    assert summary["rounds"] == 5
    assert "ended after 5 of 100 rounds, as budgets were spent" in list(in_words(summary))
    whole = run_simulation(experiment, 5, tmp_path / "whole")
    assert not any("ended" in line for line in in_words(whole))


def test_totals_of_unequal_rounds_are_not_shown_as_equals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(simulations, "write_picture", lambda _, draw: drawn.append(draw()))
    experiment = parse_experiment(FIVE)
    found = pausefl.simulate(experiment, 100, tmp_path / "unequal", policies=["all", "random"])
    with (found.folder / "simulations.csv").open(encoding="utf-8") as file:
        everyone, random = (int(row["rounds"]) for row in csv.DictReader(file))
    assert everyone == 5 < random < 100
    warning = f"simulations have unequal rounds (all 5, random {random}): their totals do not compare"
    assert warning == found.summary["warning"]
    assert warning in list(simulations.in_words(found.summary))
    assert warning in drawn[0].get_supxlabel()
    equal = pausefl.simulate(experiment, 5, tmp_path / "equal", policies=["all", "random"])
    assert equal.summary["warning"] == ""


def plan(**changes: object) -> TuningPlan:
    return TuningPlan(**{"trials": 6, "seeds": 1, "fresh_seeds": 2} | changes)  # type: ignore[arg-type]


def measured(asked: TuningPlan, folder: Path) -> Measure:
    return Measure(asked, folder, OneByOne(lambda _: pytest.fail("shows nothing")))


def test_a_setting_that_spends_its_budgets_sooner_does_not_win(tmp_path: Path) -> None:
    """With m = 2 of 8 clients, 30 rounds take 60 releases of the 80 that there are; m = 8 ends after 10 rounds."""
    asked = plan(source=TEN, search=["selection.m=2,8"])
    measure = measured(asked, tmp_path)
    assert measure({"selection.m": 2}, 1)["rounds"] == 30
    why = r"ended after 10 of 30 rounds, as budgets were spent; the experiment's own setting plays 30"
    with pytest.raises(PauseflError, match=why):
        measure({"selection.m": 8}, 1)
    said = io.StringIO()
    tuning = tune_experiment(asked, tmp_path / "out", Console(file=said))
    assert [point.point.get("selection.m", 2) for point in tuning.front] == [2, 2]
    assert re.search(rf"the first: {{'selection.m': 8}} {why}", said.getvalue())
    written = json.loads((tmp_path / "out/tuning.json").read_text())
    assert written["refused"] == len(tuning.tried.refused)
    assert written["refusals"] == list(dict.fromkeys(tuning.tried.refused))


def test_where_the_published_setting_ends_early_too_those_that_end_no_sooner_compare(tmp_path: Path) -> None:
    measure = measured(plan(source=FIVE, search=["selection.m=1,2,8"]), tmp_path)
    published, longer = measure({}, 1)["rounds"], measure({"selection.m": 1}, 1)["rounds"]
    assert published < longer == 30
    with pytest.raises(PauseflError, match=f"ended after 5 of 30 rounds, .* plays {published:.0f}: "):
        measure({"selection.m": 8}, 1)


def test_rounds_that_are_searched_may_be_few(tmp_path: Path) -> None:
    measure = measured(plan(source=TEN, search=["experiment.rounds=10,30"]), tmp_path)
    assert measure({"experiment.rounds": 10}, 1)["rounds"] == 10


@pytest.mark.parametrize("target", [None, 0.6])
def test_a_run_that_spends_its_budgets_sooner_does_not_win(
    target: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its latency is that to a target, which an early end does not shorten. m = 2 is the published setting."""
    rounds, played = {1: 12.0, 2: 20.0, 3: 30.0}, dict[Path, int]()

    def play(_: OneByOne, runs: Sequence[Planned], folder: Path) -> Missing:
        played.update({folder / run.name: run.experiment.selection.m for run in runs})
        return {}

    def figures(run_dir: Path, target_accuracy: float | None) -> Figures:
        return {"total_latency_s": 5.0, "latency_to_target_s": 4.0, "rounds": rounds[played[run_dir]]}

    monkeypatch.setattr(OneByOne, "play", play)
    monkeypatch.setattr(measure_module, "figures_of_run", figures)
    learning = TEN.replace('model = "synthetic"', 'model = "mlp"')
    asked = plan(source=learning, by="run", target_accuracy=target)
    measure = Measure(asked, tmp_path, OneByOne(lambda _: pytest.fail("shows nothing")))
    assert [measure({"selection.m": m}, 1)["rounds"] for m in (2, 3)] == [20, 30]
    if target is None:
        with pytest.raises(PauseflError, match=r"ended after 12 of 30 rounds, .* plays 20: "):
            measure({"selection.m": 1}, 1)
    else:
        assert measure({"selection.m": 1}, 1)["latency_to_target_s"] == 4.0
