"""Simulated rounds end when a run's do, and take as long; also simulations that budgets end early."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import pausefl
from pausefl.experiment.delay_laws.changing import Schedule
from pausefl.experiment.delay_laws.combined import published_delay
from pausefl.experiment.delay_laws.laws import Constant
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.server_records import policy_of, selected_policy
from pausefl.runtime.plan import plan_of
from pausefl.runtime.virtual.process import play_virtually
from pausefl.studies import simulations
from pausefl.studies.playing import OneByOne
from pausefl.studies.simulation.engine import Setting, is_compiled, server_of, simulate
from pausefl.studies.simulation.outputs import in_words, run_simulation, setting_of
from pausefl_proto.budget import Budget
from pausefl_proto.errors import PauseflError
from pausefl_server.selection.policies.baselines import All
from pausefl_server.selection.policies.pause import Pause
from pausefl_tune import tune_experiment
from pausefl_tune.measure import Measure
from pausefl_tune.plan import TuningPlan
from rigs.federation import log_of
from rigs.tuning import SMALL, measure_by_m

ROUNDS = 6
# Each client takes the same time in every round, in runs and simulations, so only the ends of rounds are compared.
STEADY = {
    "experiment.rounds": ROUNDS,
    "experiment.clock": "virtual",
    "metrics.enabled": False,
    "privacy.enabled": False,
    "clients.count": 6,
    "selection.policy": "all",
    "selection.m": 3,
    "workload.model": "synthetic",
    "latency.signal": "round_trip",
    "latency.time_scale": 1.0,
    "latency.delay": {"kind": "constant", "value_s": {"kind": "lognormal", "mean_s": 0.8, "sd_s": 0.6}},
}
TRAINED = {"workload.training_time": {"kind": "constant", "value_s": {"kind": "lognormal", "mean_s": 1.0, "sd_s": 1.0}}}
STEPS = {"server.mode": "asynchronous", "asynchronous.concurrency": 6, "asynchronous.buffer": 6}
STEPS |= {"selection.policy": "random", "latency.signal": "communication"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="all are waited for"),
        pytest.param({"selection.over_selection": 0.5}, id="over-selection"),
        pytest.param({"server.quorum": 0.5}, id="quorum"),
        pytest.param({"selection.over_selection": 0.5, "server.quorum": 0.7}, id="both"),
        pytest.param({"server.round_timeout_s": 1.0}, id="deadline"),
        pytest.param({"server.round_timeout_s": 1.0, "server.quorum": 0.5}, id="deadline and quorum"),
        pytest.param(TRAINED, id="training"),
        pytest.param({**TRAINED, "latency.time_scale": 0.25, "server.quorum": 0.7}, id="training, scaled"),
        pytest.param({**TRAINED, "latency.signal": "communication", "server.quorum": 0.7}, id="communication"),
        pytest.param({**TRAINED, "latency.mode": "total", "server.quorum": 0.5}, id="total"),
        pytest.param({"workload.train_s": 0.4}, id="synthetic training"),
        pytest.param({**TRAINED, **STEPS}, id="steps of all"),
        pytest.param({**TRAINED, **STEPS, "latency.time_scale": 0.25}, id="steps of all, scaled"),
    ],
)
def test_a_simulated_round_ends_as_a_runs(changes: Mapping[str, Any], tmp_path: Path) -> None:
    experiment = pausefl.load("demo", {**STEADY, "server.rest_rounds_max": 0, **changes})
    play_virtually(plan_of(experiment, "run"), tmp_path, lambda _: None)
    log, found = log_of(tmp_path), simulate(policy_of(experiment), setting_of(experiment), ROUNDS)
    of_steps, of_rounds = [record.elapsed_s for record in log], np.cumsum([record.round_latency_s for record in log])
    assert found.total_latency_s == pytest.approx(of_steps if experiment.is_asynchronous else of_rounds, rel=1e-3)


@pytest.mark.parametrize("over_selection", [0.0, 0.25])
def test_budgets_end_a_simulation_in_the_round_in_which_they_end_a_run(over_selection: float, tmp_path: Path) -> None:
    """They end once fewer than m clients may release, not when the last one has retired."""
    budgets = {
        "experiment.rounds": 40,
        "privacy.eta": 0.5,
        "privacy.epsilon_budget": 100.0,
        "privacy.epsilon_floor": 1.5,  # seven releases
        "selection.policy": "pause",
        "selection.m": 4,
        "selection.over_selection": over_selection,
    }
    experiment = pausefl.load("demo", {**STEADY, "privacy.enabled": True, **budgets})
    play_virtually(plan_of(experiment, "run"), tmp_path, lambda _: None)
    result = simulate(selected_policy(experiment.selection), setting_of(experiment), 40)
    assert result.round[-1] == len(log_of(tmp_path)) < 40
    assert result.chosen.min() < 7, "some could still release"


def test_stated_steps_take_their_time(tmp_path: Path) -> None:
    """As many steps as a client's examples need, at most `workload.max_steps`."""
    steps = {"workload.model": "mlp", "workload.examples": 600, "workload.epochs": 1, "workload.step_s": 0.1}
    setting, most = (setting_of(pausefl.load("demo", {**STEADY, **steps, "workload.max_steps": n})) for n in (100, 3))
    assert {c: law.mean_s for c, law in setting.training.items()} == pytest.approx(
        {c: 0.1 * -(-n // 20) for c, n in setting.examples.items()}
    )
    assert [law.mean_s for law in most.training.values()] == pytest.approx([0.3] * 6)


def steady(**changes: Any) -> Setting:
    """Four clients that take 1, 2, 3 and 4 s."""
    ids = [f"client-{k}" for k in range(4)]
    laws = {client_id: Constant(k + 1.0) for k, client_id in enumerate(ids)}
    setting = Setting(laws, dict.fromkeys(ids, 100), server_of(0.05, Budget(100.0, 0.04)))
    of_setting = {name: changes.pop(name) for name in ("training", "mode") if name in changes}
    return dataclasses.replace(setting, server=dataclasses.replace(setting.server, **changes), **of_setting)


def test_clients_that_are_not_needed_are_charged_and_neither_rest_nor_miss() -> None:
    result = simulate(All(4), steady(quorum=0.5), 10)
    assert result.total_latency_s.tolist() == pytest.approx([2.0 * t for t in range(1, 11)])
    assert result.chosen.tolist() == [10] * 4, "nobody rests"
    assert not result.missed.any()
    assert result.max_epsilon_spent[-1] == pytest.approx(Budget(100.0, 0.04).spent(10))


@pytest.mark.parametrize("deadline_s", [2.5, 3.0])
def test_after_the_deadline_nobody_is_unneeded(deadline_s: float) -> None:
    """An answer exactly at the deadline is too late, as on the server."""
    result = simulate(All(4), steady(quorum=0.75, round_timeout_s=deadline_s, rest_rounds_max=0), 10)
    assert result.total_latency_s[-1] == pytest.approx(10 * deadline_s)
    np.testing.assert_array_equal(result.missed, [0, 0, 10, 10])


@pytest.mark.parametrize(
    ("changes", "came_s", "latency_s"),
    [
        ({}, [5.0, 6.0, 7.0, 8.0], [2.0, 3.0, 4.0, 5.0]),
        ({"signal": "communication"}, [5.0, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 4.0]),
        ({"mode": "total"}, [4.0, 5.0, 6.0, 7.0], [1.0, 2.0, 3.0, 4.0]),
        ({"mode": "total", "signal": "communication"}, [4.0, 5.0, 6.0, 7.0], [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_training_is_timed_by_its_delays(changes: dict[str, Any], came_s: list[float], latency_s: list[float]) -> None:
    trained = {f"client-{k}": Constant(1.0) for k in range(4)}
    ((came, took, latency),) = steady(time_scale=0.25, training=trained, **changes).answers_s(1)
    assert (came[0].tolist(), (took + 3.0).tolist(), latency[0].tolist()) == (came_s, came.tolist(), latency_s)


def test_a_derived_deadline_is_one_of_real_seconds() -> None:
    """The deadline is three times the slow client's 5 real seconds in round 1: 15 real seconds, 30 s of delays."""
    setting = steady(round_timeout_s=None, time_scale=0.5)
    laws = {**setting.laws, "client-3": Schedule((1, 2), (Constant(10.0), Constant(45.0)))}
    result = simulate(All(4), dataclasses.replace(setting, laws=laws), 2, with_regret=False)
    assert result.total_latency_s.tolist() == [10.0, 10.0 + 30.0]
    np.testing.assert_array_equal(result.missed, [0, 0, 0, 1])
    assert setting.least_wait_s == 10.0 / 0.5


def test_a_policy_learns_from_those_in_time_alone() -> None:
    """A round that waits for three of its five clients is shorter, although the clients' laws stay the same."""
    ids = [f"client-{k:02}" for k in range(10)]
    laws, examples = {ids[k]: published_delay(k, 10) for k in range(10)}, dict.fromkeys(ids, 100)
    settings = [Setting(laws, examples, server_of(0.05, spare=n)) for n in (0, 2)]
    plain, spared = (simulate(Pause(5), setting, 200, with_regret=False) for setting in settings)
    assert spared.total_latency_s[-1] < 0.9 * plain.total_latency_s[-1]


def test_rounds_that_end_early_are_not_compiled() -> None:
    settings = steady(), steady(spare=1), steady(quorum=0.5)
    assert [is_compiled(Pause(2), setting) for setting in settings] == [True, False, False]


FLOORED = SMALL + "[privacy]\neta = 0.5\nepsilon_floor = {floor}\n"
FIVE, TEN = FLOORED.format(floor=5.0), FLOORED.format(floor=0.3)
"""Experiments in which a client may release five and ten times."""


def test_a_simulation_that_ends_early_tells_all_of_its_own_end() -> None:
    """The result does not depend on the rounds asked for, although these decide which rounds are recorded."""
    changes = {"selection.policy": "random", "privacy.eta": 0.04, "clients.count": 12}
    experiment = parse_experiment(FLOORED.format(floor=0.5), changes)
    policy, setting = selected_policy(experiment.selection), setting_of(experiment)
    found = [simulate(policy, setting, rounds) for rounds in (400, 1000, 5000, 50_000)]
    assert found[0].round[-1] < 400
    for name in ("round", "total_latency_s", "max_epsilon_spent"):
        assert len({float(getattr(result, name)[-1]) for result in found}) == 1, name
    assert len({int(result.chosen.sum()) for result in found}) == 1
    assert all((np.diff(result.round) > 0).all() for result in found)


def test_one_that_ends_early_says_so(tmp_path: Path) -> None:
    experiment = parse_experiment(FIVE, {"selection.policy": "all"})
    summary = run_simulation(experiment, 100, tmp_path / "out", is_drawn=False)
    assert summary["rounds"] == 5
    assert "ended after 5 of 100 rounds, as budgets were spent" in list(in_words(summary))
    whole = run_simulation(experiment, 5, tmp_path / "whole", is_drawn=False)
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
    assert pausefl.simulate(experiment, 5, tmp_path / "equal", policies=["all", "random"]).summary["warning"] == ""


def plan(**changes: object) -> TuningPlan:
    return TuningPlan(**{"trials": 6, "seeds": 1, "fresh_seeds": 2} | changes)  # type: ignore[arg-type]  # of several types


def measured(asked: TuningPlan, folder: Path) -> Measure:
    return Measure(asked, folder, OneByOne(lambda _: pytest.fail("shows nothing")))


@pytest.mark.usefixtures("quickly_written")
def test_a_setting_that_spends_its_budgets_sooner_does_not_win(tmp_path: Path) -> None:
    """With m = 2 of 8 clients, 30 rounds take 60 of the 80 releases; with m = 8 the run ends after 10 rounds."""
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
def test_runs_that_end_sooner_do_not_win(target: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may win on latency to a target, which an early end does not shorten. m = 2 is the published setting."""
    times_s = {"total_latency_s": 5.0, "latency_to_target_s": 4.0}
    figures = {m: {**times_s, "rounds": rounds} for m, rounds in {1: 12.0, 2: 20.0, 3: 30.0}.items()}
    asked = plan(source=TEN.replace('model = "synthetic"', 'model = "mlp"'), by="run", target_accuracy=target)
    measure = measure_by_m(asked, tmp_path, figures, monkeypatch)
    assert [measure({"selection.m": m}, 1)["rounds"] for m in (2, 3)] == [20, 30]
    if target is None:
        with pytest.raises(PauseflError, match=r"ended after 12 of 30 rounds, .* plays 20: "):
            measure({"selection.m": 1}, 1)
    else:
        assert measure({"selection.m": 1}, 1)["latency_to_target_s"] == 4.0
