"""The benchmarks of this machine: their output, the states that are timed, and processes that must not be left."""

import math
import multiprocessing
import sys
import types
from typing import Any

import pytest

from pausefl.runtime.processes.lifetime import start
from pausefl_bench import BENCHMARKS, Benchmark, run_benchmark, selection
from pausefl_bench.echo import time_echo


def test_the_benchmark_times_usual_and_hard_states() -> None:
    case = next(selection.cases())
    assert (case["name"], case["case"]) == ("selection", "R1 exact, 300 / 15")
    assert 0 < case["median_s"] <= case["p99_s"]
    assert case["worst_s"] > 0


def test_an_infinite_figure_is_no_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no infinity. A law with a dead client, or a figure that was never observed, once gave one."""
    module = types.ModuleType("endless")
    module.cases = lambda: iter([{"name": "endless", "a": math.inf, "b": math.nan, "c": 1.5}])  # type: ignore[attr-defined]  # mypy does not see it
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(BENCHMARKS, "endless", Benchmark("endless", ""))
    run_benchmark("endless", {}, as_json=True)
    assert capsys.readouterr().out == '{"name": "endless", "a": null, "b": null, "c": 1.5}\n'


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

    monkeypatch.setattr("pausefl_bench.echo.start", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            time_echo(clients=2, payload_bytes=1000, rounds=1)
        assert not {process.pid for process in started} & {child.pid for child in multiprocessing.active_children()}
        assert all(process.exitcode is not None for process in started)
    finally:
        for process in started:
            process.kill()
