"""Benchmarks of pausefl and of other systems: what they play and measure, and which figures changed."""

import json
import math
import multiprocessing
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from benchmarks import duel, tables
from benchmarks.environments import SYSTEMS
from benchmarks.measuring import PlayError, play
from benchmarks.own.__main__ import main
from benchmarks.own.changes import changes, in_words
from benchmarks.own.training import LeanLoop
from benchmarks.own.whole import PARTS, measured
from benchmarks.plan import CELLS, TRAINING, Turn, Window, cells_of, turns
from benchmarks.results import Results
from benchmarks.systems.local_training import LocalTraining, accuracy, first_model
from benchmarks.systems.pausefl_itself import experiment_of
from benchmarks.systems.task import Task
from benchmarks.trained_data import write_data
from pausefl.bench import BENCHMARKS, Benchmark, run_benchmark
from pausefl.bench.echo import time_echo
from pausefl.bench.images import random_images
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.torch_trainers import make_torch_trainers
from pausefl.runtime.processes.lifetime import start
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from rigs.command import command_line, python
from rigs.places import ROOT

SHORT = Window(warm_up=1, warm_up_s=0.0, seconds=0.1, rounds_min=2, within_s=60.0)
CELL = "10 clients, 4 kB"


@pytest.mark.end_to_end
@pytest.mark.parametrize(("name", "buffer"), [("sockets", 0), ("pausefl", 0), ("pausefl", 2)])
def test_a_play_is_measured_and_leaves_no_process_behind(name: str, buffer: int) -> None:
    found = play(SYSTEMS[name], Task(clients=3, per_round=2, model_bytes=4000, buffer=buffer), SHORT)
    assert found["rounds"] >= 2
    assert 0 < found["round_s"] < 10
    assert found["cpu_s"] >= 0
    assert found["peak_rss_bytes"] > found["pss_bytes"] > 4 * 5_000_000, "server and three clients at least"
    assert [p for p in psutil.Process().children(recursive=True) if "benchmarks.systems" in command_line(p)] == []


NOISE = "benchmarks.own.training:noise_of_cifar", 1e-3  # rounding of Adam's first steps, ±0.01 a value


@pytest.mark.parametrize(("preset", "dataset", "atol"), [("small_mnist", "digits", 1e-6), ("small_cifar", *NOISE)])
def test_the_training_beside_pausefl_steps_the_same(preset: str, dataset: str, atol: float, tmp_path: Path) -> None:
    """With one batch per round, no random order is left: the network, data, optimizer and its state are the same."""
    sizes = ["workload.examples=300", "clients.count=10", "workload.batch_size=100"]
    write_data(tmp_path, [f"workload.dataset={dataset}", *sizes], preset)
    task = Task(10, 5, 0, data=str(tmp_path), seed=7)  # the preset's seeds set the split and the first model
    plan = client_plan(experiment_of(task)).training
    (ours,) = make_torch_trainers(plan, plan.client_ids[:1]).values()
    theirs, theta = LocalTraining(task, 0), first_model(task)
    for played in (1, 2):
        trained, examples = theirs.train(theta)
        assert examples == ours.n_examples == 30
        np.testing.assert_allclose(trained, theta + ours.train(theta, round=played).update, rtol=1e-4, atol=atol)
        theta = trained
    assert 0 < accuracy(task, theta) < 1


@pytest.mark.end_to_end
def test_a_play_that_goes_on_too_long_is_ended() -> None:
    endless = Task(clients=2, per_round=1, model_bytes=4000, rated_round=10**9)
    with pytest.raises(PlayError, match="sockets: too slow"):
        play(SYSTEMS["sockets"], endless, replace(SHORT, within_s=2.0))


def test_every_repetition_plays_each_cell_with_pausefl_and_others_and_another_first() -> None:
    due = list(turns(list(CELLS), 3))
    for name in cells_of("benchmarks"):
        of_cell = [[turn.system for turn in due if (turn.cell.name, turn.repetition) == (name, k)] for k in (1, 2, 3)]
        assert all({"pausefl", "flower-1.17", "sockets"} <= set(systems) for systems in of_cell)
        assert len({systems[0] for systems in of_cell}) > 1
    assert {turn.system for turn in due} == set(SYSTEMS)
    assert {turn.cell.name for turn in due if turn.repetition > 3} == {TRAINING}


def turn_of(repetition: int, system: str = "pausefl", cell: str = CELL) -> Turn:
    return Turn(CELLS[cell], repetition, system, SHORT)


def found_of(round_s: float) -> dict[str, float]:
    return {"rounds": 300, "round_s": round_s, "cpu_s": 0.5, "others": 0.02, "peak_rss_bytes": 3e8, "pss_bytes": 1e8}


def test_results_go_on_but_not_those_of_another_machine_and_a_cell_can_be_played_anew(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results = Results.opened(path, anew=[])
    results.add(turn_of(1), found_of(0.003))
    results.add(turn_of(1, cell=TRAINING), found_of(0.01))
    assert Results.opened(path, anew=[]).has(turn_of(1))
    assert not Results.opened(path, anew=[]).has(turn_of(2))
    anew = Results.opened(path, anew=[CELL])
    assert (anew.has(turn_of(1)), anew.has(turn_of(1, cell=TRAINING))) == (False, True)
    Results.opened(tmp_path / "other.jsonl", anew=[]).add(turn_of(1), found_of(0.003))
    written = (tmp_path / "other.jsonl").read_text("utf-8")
    (tmp_path / "other.jsonl").write_text(written.replace('"cores": ', '"cores": 9'), "utf-8")
    with pytest.raises(ConfigError, match="another machine"):
        Results.opened(tmp_path / "other.jsonl", anew=[])
    assert not Results.opened(tmp_path / "other.jsonl", anew=[CELL]).has(turn_of(1))


def test_ratios_compare_plays_of_the_same_repetition() -> None:
    of_pausefl, of_sockets = {1: 0.002, 2: 0.004}, {1: 0.001, 2: 0.001, 3: 9.0}
    plays = [(k, name, s) for name, of in (("pausefl", of_pausefl), ("sockets", of_sockets)) for k, s in of.items()]
    lines = [{"cell": CELL, "repetition": k, "system": system, **found_of(s)} for k, system, s in plays]
    text = tables.ratio_table([{}, *lines])
    assert "| 10 clients, 4 kB | 0.38 (0.25–0.50) | 2.5 | 4.0 |" in text
    assert "3.00 ms" in tables.round_table([{}, *lines])
    assert duel.said_of([0.5, 2.0]) == "1.000 ± 0.693 times as long after as before", "a geometric mean and its error"
    assert duel.said_of([0.9]) == "0.900 times as long after as before"


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 28, 28)), ("cnn3", (3, 32, 32))])
def test_the_lean_loop_computes_what_a_trainer_does(name: str, shape: tuple[int, ...]) -> None:
    """Equal up to rounding. Adam's first steps are ±0.01 per value; rounding is up to a thousandth of that."""
    torch.set_num_threads(1)
    examples, settings = random_images(1, "test", 50, shape), TrainingSettings()
    first, second = (build_model(name, shape, 10, 1) for _ in range(2))
    theta, device = ModelVector(first).values(), torch.device("cpu")
    trainer = TorchTrainer(first, LocalData(examples), settings, device=device, seed=1, client_id="c")
    lean = LeanLoop(second, examples, settings)
    for t in (1, 2):
        rng = generator(1, "batches", "c", t)
        rng.integers(2**63)  # the draw that seeds dropout
        update = lean.train(theta, rng.permutation(50))
        np.testing.assert_allclose(trainer.train(theta, round=t).update, update, atol=1e-5)


def test_what_does_not_play_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        duel.main([str(ROOT), str(tmp_path)])
    assert f"{tmp_path}: no checkout of pausefl" in capsys.readouterr().err
    with pytest.raises(PlayError, match=r"(?s)sockets: ended with 1.*ValueError"):
        play(SYSTEMS["sockets"], Task(clients=1, per_round=2, model_bytes=4), SHORT)


@pytest.mark.end_to_end
def test_two_checkouts_are_played_at_once() -> None:
    few = ("--rounds", "20", "--times", "1")
    line, result = python("-m", "benchmarks.duel", str(ROOT), str(ROOT), *few, cwd=ROOT).splitlines()
    assert line.count(" ms") == 2
    assert result.endswith(" times as long after as before")


@pytest.mark.end_to_end
def test_both_fleets_end_where_one_fails(tmp_path: Path) -> None:
    (tmp_path / "emulator/pausefl").mkdir(parents=True)
    (tmp_path / "emulator/pausefl/__init__.py").write_text("raise SystemExit('broken')")
    command = [sys.executable, "-m", "benchmarks.duel", str(ROOT), str(tmp_path), "--rounds", "1000000"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert played.returncode == 1
    assert "broken" in played.stderr
    assert played.stderr.endswith("a play failed, see above\n")


def measurement(figures: Mapping[str, Sequence[float]], cores: int = 2) -> dict[str, Any]:
    listed = [{"benchmark": "b", "case": "c", "figure": name, "values": v} for name, v in figures.items()]
    return {"name": "all", "machine": {"cores": cores}, "versions": {"numpy": "2"}, "figures": listed}


def test_every_figure_has_a_value_of_each_repetition() -> None:
    found = measured(lambda _: None, PARTS[:1], budget_s=0.0)
    assert json.loads(json.dumps(found))["repetitions"] == 3
    (figure,) = found["figures"]
    assert (figure["benchmark"], figure["figure"]) == ("machine", "yardstick_s")
    assert len(figure["values"]) == 3
    assert min(figure["values"]) > 0
    assert found["machine"]["cores"] >= 1
    assert "host" not in found


def test_an_interrupted_measurement_keeps_what_was_measured() -> None:
    told: list[str] = []

    def interrupted(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt

    found = measured(interrupted, PARTS[:1], budget_s=0.0)
    assert (found["repetitions"], found["was_interrupted"], len(found["figures"][0]["values"])) == (1, True, 2)


def test_a_change_beyond_noise_is_told_from_noise() -> None:
    rng = np.random.default_rng(1)

    def values(mean: float) -> list[float]:
        return [float(x) for x in mean * np.exp(rng.normal(0, 0.02, 5))]

    before = measurement({"train_s": values(1.0), "ratio": values(2.0), "rounds_per_s": values(60.0)})
    after = measurement({"train_s": values(0.7), "ratio": values(2.0), "rounds_per_s": values(40.0)})
    found = {change.figure: change for change in changes(before, after)}
    verdicts = {"train_s": "better", "ratio": "same", "rounds_per_s": "worse"}
    assert {name: change.verdict for name, change in found.items()} == verdicts
    assert found["train_s"].ratio_low < 0.7 < found["train_s"].ratio_high < 1
    words = list(in_words(before, after, list(found.values())))
    assert words[-1] == "2 of 3 figures changed beyond noise; 0 could not be compared"
    assert any(line.startswith("better: b, c: train_s") for line in words)


def test_what_cannot_be_compared_is_counted_and_another_machine_is_named() -> None:
    before = measurement({"a": [1.0, 1.1], "gone": [1.0, 1.1], "negative": [-1.0, 2.0], "once": [1.0]})
    after = measurement({"a": [1.0, 1.1], "new": [1.0, 1.1], "negative": [-1.0, 2.0], "once": [2.0]}, cores=4)
    found = changes(before, after)
    assert [change.figure for change in found] == ["a"]
    words = list(in_words(before, after, found))
    assert words[0] == "cores: 2 before, 4 after"
    assert words[-1] == "0 of 1 figures changed beyond noise; 4 could not be compared"


def test_the_command_compares_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).write_text(json.dumps(measurement({"train_s": [value, value * 1.01, value * 1.02]})))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "worse: b, c: train_s 1.01 -> 2.02, 2.00 times" in capsys.readouterr().out
    for other in ("{}", '{"name": "all"}'):
        (tmp_path / "c").write_text(other)
        assert main(["diff", str(tmp_path / "a"), str(tmp_path / "c")]) == 2
        assert "was not written by `python -m benchmarks.own all --json`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["selection", "--payload-bytes", "1"], "bench selection: takes no --payload-bytes"),
        (["rounds", "a.json"], "diff takes two files of all --json, the others none"),
        (["all", "--clients", "3"], "all takes neither --clients nor --payload-bytes"),
        (["diff", "a.json"], "diff takes two files of all --json, the others none"),
        (["diff", "a.json", "b.json"], "diff: a.json cannot be read"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"benchmarks.own: {said}")
    assert err.count("\n") == 1


def test_an_infinite_figure_is_no_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no infinity. A law with a dead client, or a figure that was never observed, once gave one."""
    module = types.ModuleType("endless")
    module.cases = lambda: iter([{"case": "endless", "a": math.inf, "b": math.nan, "c": 1.5}])  # type: ignore[attr-defined]  # mypy does not see it
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(BENCHMARKS, "endless", Benchmark("endless", ""))
    run_benchmark("endless", {}, as_json=True)
    assert capsys.readouterr().out == '{"case": "endless", "a": null, "b": null, "c": 1.5}\n'
    run_benchmark("endless", {}, as_json=False)
    assert capsys.readouterr().err == "measured: endless\n"


@pytest.mark.end_to_end
@pytest.mark.parametrize("begun", [1, 2])
def test_an_interrupted_baseline_ends_its_processes(begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server and its clients wait for each other, so Python's exit would wait for all of them."""
    started = list[Any]()

    def interrupted(process: Any) -> None:
        start(process)
        started.append(process)
        if len(started) == begun:
            raise KeyboardInterrupt

    monkeypatch.setattr("pausefl.bench.echo.start", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            time_echo(clients=2, payload_bytes=1000, rounds=1)
        assert not {process.pid for process in started} & {child.pid for child in multiprocessing.active_children()}
        assert all(process.exitcode is not None for process in started)
    finally:
        for process in started:
            process.kill()
