"""Runs on the virtual clock whose clients train together: the same rounds as if each trained alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pausefl
from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import make_trainers
from pausefl.runtime.plan import plan_of
from pausefl.runtime.virtual import batching
from pausefl.runtime.virtual.process import play_virtually
from pausefl_client.batched.captured import CapturedSteps
from pausefl_client.batched.layers import NotStackable
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import Trainer
from pausefl_process.events import ModelEvaluated, Notice, ProgressEvent
from pausefl_server.records import RoundRecord
from rigs.batched import trained_at_once
from rigs.federation import log_of
from rigs.refusals import refused

RUN = {
    "experiment.clock": "virtual",
    "experiment.rounds": 4,
    "metrics.enabled": False,
    "clients.count": 6,
    "selection.m": 3,
    "workload.training_time": {"kind": "constant", "value_s": 0.05},
    "privacy.reproducible_noise": True,
}


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of clients trained in each batched call."""
    return trained_at_once(monkeypatch)


class Told:
    """Collects the notices and evaluations of a run."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.evaluations: list[ModelEvaluated] = []

    def hear(self, event: ProgressEvent) -> None:
        match event:
            case Notice(message):
                self.notices.append(message)
            case ModelEvaluated():
                self.evaluations.append(event)


def noticed(batched: str, what: str) -> list[str]:
    return [f'clients.batched = "{batched}": {what}']


def play(folder: Path, overrides: Mapping[str, Any]) -> tuple[list[RoundRecord], Told]:
    """Play a run; returns its log and its events."""
    experiment, told = pausefl.load("demo", {**RUN, **overrides}), Told()
    folder.mkdir(exist_ok=True)
    play_virtually(plan_of(experiment, folder.name), folder, told.hear)
    return log_of(folder), told


GROUPS = {
    "plain": {"count": 2},
    "epochs": {"count": 2, "behaviours": [{"kind": "local-epochs", "choices": [2, 3]}]},
    "stale": {"count": 1, "behaviours": [{"kind": "stale-model"}]},
    "slow": {"count": 1, "behaviours": [{"kind": "slow-device", "factor": 4.0}]},
}


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, id="plain"),
        pytest.param({"clients.groups": GROUPS, "selection.m": 6, "selection.policy": "all"}, id="behaviours"),
        pytest.param({"workload.training": {"kind": "fedprox", "mu": 0.1}}, id="fedprox"),
        pytest.param({"workload.training": "scaffold", "workload.optimizer": "sgd"}, id="scaffold"),
    ],
)
def test_a_run_together_is_the_run_alone(overrides: dict[str, Any], tmp_path: Path, together: list[int]) -> None:
    """The same clients at the same times; losses differ by rounding only."""
    alone, told_alone = play(tmp_path / "alone", overrides)
    assert not together
    batched, told = play(tmp_path / "batched", {**overrides, "clients.batched": "on"})
    assert told.notices == noticed("on", "the clients of a round train together")
    asked = overrides.get("selection.m", RUN["selection.m"])
    # A client with a stale model cannot use its batched outcome, and trains again alone.
    assert together == [asked] * len(batched)
    for one, other in zip(alone, batched, strict=True):
        assert (one.chosen, one.wall_clock_s) == (other.chosen, other.wall_clock_s)
        for mine, its in zip(one.observations, other.observations, strict=True):
            assert (mine.latency_s, mine.timing) == (its.latency_s, its.timing)
    assert told.evaluations
    for before, after in zip(told_alone.evaluations, told.evaluations, strict=True):
        assert (before.round, before.split) == (after.round, after.split)
        assert before.loss == pytest.approx(after.loss, abs=1e-3)


def test_jobs_that_are_withdrawn_stay_unpaid(tmp_path: Path, together: list[int]) -> None:
    overrides = {"selection.over_selection": 1.0, "experiment.rounds": 6}
    alone, _ = play(tmp_path / "alone", overrides)
    batched, _ = play(tmp_path / "batched", {**overrides, "clients.batched": "on"})
    assert together
    for record, other in zip(alone, batched, strict=True):
        assert [o.epsilon_spent for o in record.observations] == [o.epsilon_spent for o in other.observations]


def test_auto_measures_once_and_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]) -> None:
    found = iter((3.14, 0.9))
    monkeypatch.setattr(batching, "measured_speedup", lambda *_: next(found))
    overrides = {"clients.batched": "auto"}
    _, told = play(tmp_path / "run", overrides)
    assert told.notices == noticed("auto", "the clients of a round train together, 3.1 times as fast as one by one")
    assert together
    plan = client_plan(pausefl.load("demo", {**RUN, **overrides})).training
    assert batching.with_batching(plan, 3, tmp_path / "run", Told().hear).batched == "on"  # not measured again
    together.clear()
    _, told = play(tmp_path / "other", overrides)
    assert told.notices == noticed("auto", "clients train one by one: together they would be 0.9 times as fast")
    assert not together
    assert not json.loads((tmp_path / "other/batched.json").read_text())["batched"]


def test_auto_trains_one_by_one_what_cannot_be_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> float:
        raise NotStackable("the training method takes gradients away")

    monkeypatch.setattr(batching, "measured_speedup", measured)
    plan = client_plan(pausefl.load("demo", {**RUN, "clients.batched": "auto"})).training
    told = Told()
    assert batching.with_batching(plan, 3, tmp_path, told.hear).batched == "off"
    assert told.notices == noticed("auto", "clients train one by one: the training method takes gradients away")


def test_clients_whose_steps_are_captured_can_train_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, trainers are wrapped in this way."""
    steps = CapturedSteps()

    def admitted(*arguments: Any) -> dict[str, Trainer]:
        return {c: steps.admit(t) for c, t in make_trainers(*arguments).items() if isinstance(t, TorchTrainer)}

    monkeypatch.setattr(batching, "make_trainers", admitted)
    plan = client_plan(pausefl.load("demo", {**RUN, "clients.batched": "on"})).training
    assert batching.with_batching(plan, 3, tmp_path, Told().hear).batched == "on"
    assert 0.05 < batching.measured_speedup(batching.plain_trainers(plan, 3), 1) < 50


def test_what_cannot_be_batched_trains_alone_and_says_why(tmp_path: Path, together: list[int]) -> None:
    overrides = {"clients.batched": "on", "workload.training": {"kind": "moon", "mu": 1.0}, "experiment.rounds": 1}
    rounds, told = play(tmp_path / "run", overrides)
    assert told.notices == noticed("on", "clients train one by one: the training method Moon has its own `loss`")
    assert (len(rounds), together) == (1, [])


def test_a_synthetic_model_has_nothing_to_batch(tmp_path: Path) -> None:
    overrides = {"clients.batched": "on", "workload.model": "synthetic", "experiment.rounds": 1}
    assert play(tmp_path / "run", overrides)[1].notices == []


def test_the_real_clock_measures_each_client_alone() -> None:
    assert client_plan(load_experiment("demo", ["clients.batched=auto"])).training.batched == "off"
    with refused('clients.batched = "on": goes with experiment.clock = "virtual"; on the real'):
        load_experiment("demo", ["clients.batched=on"])
