"""`benchmarks.own all` and `diff`: one file of figures, and which of them changed beyond noise."""

import json
import math
import multiprocessing
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.own.__main__ import main
from benchmarks.own.changes import changes, in_words
from benchmarks.own.whole import PARTS, measured
from pausefl.bench import BENCHMARKS, Benchmark, run_benchmark
from pausefl.bench.echo import time_echo
from pausefl.runtime.processes.lifetime import start


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


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=6), st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=6))
def test_the_other_way_round_a_change_is_the_reverse(one: list[float], other: list[float]) -> None:
    (there,) = changes(measurement({"a_s": one}), measurement({"a_s": other}))
    (back,) = changes(measurement({"a_s": other}), measurement({"a_s": one}))
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ratio_low <= there.ratio * (1 + 1e-9)
    assert there.p == pytest.approx(back.p)
    assert {there.verdict, back.verdict} in ({"same"}, {"better", "worse"})


def test_the_command_compares_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        values = [value, value * 1.01, value * 1.02]
        (tmp_path / name).write_text(json.dumps(measurement({"train_s": values})))
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
    """JSON has no infinity, of which a law with a dead client, or a figure that nobody saw, made one."""
    module = types.ModuleType("endless")
    module.cases = lambda: iter([{"name": "endless", "a": math.inf, "b": math.nan, "c": 1.5}])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(BENCHMARKS, "endless", Benchmark("endless", ""))
    run_benchmark("endless", {}, as_json=True)
    assert capsys.readouterr().out == '{"name": "endless", "a": null, "b": null, "c": 1.5}\n'


@pytest.mark.end_to_end
@pytest.mark.parametrize("begun", [1, 2])
def test_an_interrupted_baseline_ends_its_processes(begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server waits for clients, and they wait for it: Python's end would wait for both."""
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
