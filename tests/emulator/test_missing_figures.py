"""A figure beside a run never costs it: each is made to raise in turn, and is missing with its reason."""

import importlib
import inspect
import io
import json
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import pausefl
from pausefl.cli.summary_table import summary_table
from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.results.figures import Figures
from pausefl.results.report import report_runs, style
from pausefl.results.report.comparison import compare, write_comparison
from pausefl.results.report.sweep import write_sweep
from pausefl.results.stored_summary import read_summary
from pausefl.results.summary import summarise
from pausefl.results.tally import RunTally
from pausefl.runtime.plan import plan_of
from pausefl_server.service import RunResult
from pausefl_server.state import replay
from pausefl_server.storage.store import Store
from rigs.experiments import small

NEWCOMERS = """
experiment = { rounds = 4, clock = "virtual" }
selection = { policy = "fed-ts", m = 2 }
privacy.clip = 1.0
latency.delay = { kind = "constant", value_s = 0.1 }
workload = { dataset = "digits", step_s = 0.001 }
evaluation.every = 1
[clients.groups]
original = { count = 3, drift = { kind = "bernoulli", small = 0.9 } }
relevant = { count = 2, role = "relevant", join_round = 2, drift = { kind = "bernoulli", small = 0.8 } }
[clients.groups.poisoned]
count = 2
role = "irrelevant"
join_round = 2
behaviours = [{ kind = "gaussian-update", scale = 3.0 }]
drift = { kind = "bernoulli", small = 0.2 }
"""
REASON = "ZeroDivisionError: by design"


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("by design")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played") / "run"
    pausefl.run(parse_experiment(NEWCOMERS), folder, progress=False)
    return folder


def summarised(run_dir: Path) -> dict[str, Any]:
    """The summary of the run, from its log once more."""
    experiment = parse_experiment(NEWCOMERS)
    policy = selected_policy(experiment.selection)
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        state = replay(policy, 1, store.rounds(), tau_min_s=None, unfinished=store.failed_attempts())
        tally = RunTally(store.log(), store.failed_attempts(), store.late_events())
    result = RunResult(state, np.zeros(10, np.float32), None, (), (), "all rounds done", "completed", 0)
    return {**summarise(plan_of(experiment, "run").server.summary, policy, tally, result, charged_size=10)}


@pytest.fixture(autouse=True)
def quickly_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering takes most of the time."""
    monkeypatch.setattr("pausefl.results.report.style.rendered", lambda *_: b"<svg ></svg>")


class Played:
    """Does something twice or more: each time another figure raises, and all others are those of the first time."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what = what
        self._found: dict[tuple[str, int], Any] = {}
        self._compute = Figures.compute
        self.do(None)
        self.figures = tuple(self._found)
        """The name of each figure, and which of its name it is: it may be drawn, then written, then embedded."""

    def do(self, failing: tuple[str, int] | None) -> None:
        times: Counter[str] = Counter()

        def compute(figures: Figures, name: str, how: Callable[[], Any]) -> Any:
            times[name] += 1
            key = name, times[name]
            if key == failing:
                return self._compute(figures, name, fails)
            if key not in self._found:
                self._found[key] = self._compute(figures, name, how)
            return self._found[key]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figures, "compute", compute)
            self._what()


def test_each_figure_of_a_summary_fails_alone(run_dir: Path) -> None:
    found: dict[str, Any] = {}
    summary = Played(lambda: found.update(summarised(run_dir)))
    report, whole = Played(lambda: report_runs([run_dir], csv=False)), dict(found)
    assert whole["missing_figures"] == {}
    assert whole["max_epsilon_spent"] > 0
    names = [name for name, _ in summary.figures]
    assert {"data", "suspect_because", "epsilon_at_delta", "starts"} < set(names)
    kept = (run_dir / "summary.json").read_text("utf-8")
    for name in names:
        summary.do((name, 1))
        assert found == whole | {name: None, "missing_figures": {name: REASON}}
        try:
            (run_dir / "summary.json").write_text(json.dumps(json.loads(kept) | found))
            assert read_summary(run_dir)["missing_figures"] == {name: REASON}
            report.do(None)
            assert f"Missing: {name} ({REASON})" in (run_dir / "report.html").read_text("utf-8")
            shown = io.StringIO()
            Console(file=shown, width=200).print(summary_table(read_summary(run_dir)))
            assert f"{name}: {REASON}" in shown.getvalue()
        finally:
            (run_dir / "summary.json").write_text(kept)


def test_each_figure_of_reports_and_comparisons_fails_alone(run_dir: Path, tmp_path: Path) -> None:
    pages: dict[Path, Callable[[], object]] = {
        run_dir / "report.html": lambda: report_runs([run_dir], csv=True),
        tmp_path / "comparison.html": lambda: write_comparison(compare({"fed-ts": [run_dir]}), tmp_path),
    }
    for page, write in pages.items():
        played = Played(write)
        assert "Missing:" not in page.read_text("utf-8")
        assert len(played.figures) > 10
        for name, time in played.figures:
            page.unlink()
            played.do((name, time))
            if name.endswith(".csv"):
                assert not (run_dir / "csv" / name).exists()
            else:
                assert f"Missing: {name} ({REASON})" in page.read_text("utf-8")
                assert not (page.parent / f"plots/{name}.svg").exists()
        write()


def drawing_functions() -> list[tuple[str, Callable[..., Any]]]:
    """Every function of the product that returns a picture, by its name."""
    modules = [
        importlib.import_module(m.name)
        for m in pkgutil.walk_packages(pausefl.__path__, "pausefl.")
        if "__main__" not in m.name and ".observers." not in m.name
    ]
    found = {}
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            draws = function.__annotations__.get("return") in (Figure, Figure | None)
            if draws and function.__module__ != style.__name__:
                found[f"{function.__module__}.{name}"] = function
    return list(found.items())


def test_no_picture_costs_what_it_stands_beside(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever draws raises, wherever it is called from; the tables are there all the same."""
    functions = dict(drawing_functions())
    assert len(functions) > 20
    for module in [module for name, module in sys.modules.items() if name.startswith("pausefl.")]:
        for name, value in list(vars(module).items()):
            if any(value is function for function in functions.values()):
                monkeypatch.setattr(module, name, fails)
    newcomers = parse_experiment(NEWCOMERS)
    latencies = parse_experiment(NEWCOMERS, {"selection.policy": "pause"})
    rows = [{"m": m, "seed": 1, "total_latency_s": 1.0, "max_epsilon_spent": None, "rounds": 1} for m in (1, 2)]
    report_runs([run_dir], csv=False)
    write_comparison(compare({"fed-ts": [run_dir]}), tmp_path / "compare")
    write_sweep(rows, ["m"], tmp_path)
    pausefl.simulate(newcomers, 10, tmp_path / "newcomers")
    pausefl.simulate(latencies, 10, tmp_path / "latencies")
    pausefl.simulate(latencies, 10, tmp_path / "policies", policies=("pause", "random"))
    pausefl.replay(run_dir, policy="random", draws=2, folder=tmp_path / "replay")
    for table in ("compare/comparison.html", "sweep.csv", "newcomers/simulation.csv", "latencies/simulation.csv",
                  "policies/simulations.csv", "replay/replay.csv"):  # fmt: skip
        assert (tmp_path / table).exists()
    assert not list(tmp_path.rglob("*.png"))


def test_a_run_ends_with_its_summary_where_its_report_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl.results.report.write_report", fails)
    assert pausefl.run(small(), tmp_path / "run", progress=False).summary["rounds"] == 3
    assert not (tmp_path / "run/report.html").exists()


def test_a_run_whose_releases_cannot_be_composed_has_the_plain_sum(tmp_path: Path) -> None:
    """ε_1 = 784: e^784 is no float64."""
    experiment = small({"privacy.unit": "vector", "privacy.clip": 10.0, "privacy.epsilon_budget": 20_000.0})
    summary = pausefl.run(experiment, tmp_path / "run", progress=False).summary
    assert summary["missing_figures"] == {}
    assert 784 < summary["epsilon_at_delta"] <= summary["max_epsilon_spent"]
