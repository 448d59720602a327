"""Settings that a search tries: the published one is played once, and the seed is no setting."""

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.results.statistics import FEWEST_SEEDS, Interval
from pausefl.studies.campaign import Missing, Planned
from pausefl.studies.executors import side_by_side
from pausefl.studies.playing import OneByOne
from pausefl.studies.simulation.curves import SimulationResult
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.policies.baselines import Random
from pausefl_tune import measure as measure_module
from pausefl_tune import tune_experiment
from pausefl_tune.front import compared, relative_difference
from pausefl_tune.measure import CLOCK, Figures, Measure, imbalance, simulated
from pausefl_tune.plan import IMBALANCE, LATENCY, LEAKAGE, Point, TuningPlan, value_of

pytestmark = pytest.mark.usefixtures("quickly_written")
SMALL = """
[experiment]
rounds = 30
clock = "virtual"
[clients]
count = 8
[selection]
m = 2
[asynchronous]
concurrency = 4
buffer = 2
"""
SEARCH = ["selection.pause.alpha=log:1..1000", "selection.m=1,2,3"]
OWN = {"selection.pause.alpha": 100, "selection.m": 2}  # Optuna draws whole numbers; the default is 100.0


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders played, each once. Each further run has other figures, as with fresh noise."""
    played: list[Path] = []

    def play(_: OneByOne, runs: Sequence[Planned], folder: Path) -> Missing:
        paths = [folder / run.name for run in runs]
        played.extend(path for path in paths if path not in played)
        return {}

    def figures(run_dir: Path, target_accuracy: float | None) -> Figures:
        place = 1.0 + played.index(run_dir)
        return {"total_latency_s": place, "max_epsilon_spent": place, "final_accuracy": 0.5 / place, "rounds": 30}

    monkeypatch.setattr(OneByOne, "play", play)
    monkeypatch.setattr(measure_module, "figures_of_run", figures)
    return played


def test_a_setting_that_is_the_published_one_is_played_once_and_differs_in_nothing(
    tmp_path: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = TuningPlan(SMALL, SEARCH, by="run", seeds=1, fresh_seeds=2, real_seeds=1)
    measure = Measure(plan, tmp_path, OneByOne(lambda _: pytest.fail("shows nothing")))
    found, published = compared([OWN], plan.unseen_seeds, plan.objectives, measure, pytest.fail)
    assert (published.name, found.figures) == ("published", published.figures)
    assert {change.mean for change in found.changes.values()} == {0.0}
    assert len(folders) == 2, "one for each fresh seed"
    real: Point = {CLOCK: "real"}
    found, published = compared([OWN], plan.real_clock_seeds, plan.objectives, measure, pytest.fail, real)
    assert (published.name, found.figures) == ("published", published.figures)
    assert len(folders) == 3
    measure({**OWN, "selection.m": 3, **real}, 1)
    assert len(folders) == 4, "another setting"
    monkeypatch.setattr(Experiment, "to_toml", lambda _: "as a version with more keys writes it")
    Measure(plan, tmp_path, OneByOne(lambda _: pytest.fail("shows nothing")))(real, plan.real_clock_seeds[0])
    assert len(folders) == 4, "found again by another version"


def test_of_settings_that_are_nowhere_worse_the_best_on_the_whole_is_recommended() -> None:
    """It is not the setting whose least gain is the greatest."""
    found = {None: (10.0, 10.0, 1.0), 1.0: (5.0, 9.0, 0.8), 2.0: (8.0, 8.0, 0.8)}

    def measure(point: Point, seed: int) -> Figures:
        latency_s, leakage, imbalance = found[point.get("selection.pause.alpha")]
        return {"total_latency_s": latency_s, "max_epsilon_spent": leakage, "imbalance": imbalance}

    points = [{"selection.pause.alpha": alpha} for alpha in (2.0, 1.0)]
    recommended, *_ = compared(points, [2, 3], (LATENCY, LEAKAGE, IMBALANCE), measure, pytest.fail)
    assert recommended.point == {"selection.pause.alpha": 1.0}


class Way(Enum):
    FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class Typed(Random):
    way: Way = Way.FIRST


def test_a_parameter_of_an_own_type_has_the_value_that_a_file_gives_it() -> None:
    experiment = parse_experiment(SMALL, {"selection.policy": f"{__name__}:Typed"})
    assert value_of(experiment, f'selection."{__name__}:Typed".way') == "first"


@pytest.mark.parametrize("key", ["seed", "split_seed", "model_seed", "latency_seed"])
def test_a_search_of_the_seed_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--search experiment\.{key}: a lucky seed is no setting"):
        _ = TuningPlan(SMALL, [f"experiment.{key}=1..5"]).space


@pytest.mark.parametrize(
    ("search", "why"),
    [
        ("privacy.enabled=true,false", "decides whether leakage is measured; search with privacy and without it apart"),
        ("privacy.unit=coordinate,vector", "decides what every ε protects, and ε of two units do not compare"),
        ("workload.dataset=digits,mnist", "decides what scores are of, and those of two data sets do not compare"),
        ("server.mode=rounds,asynchronous", "decides whether the sum of latencies is measured"),
        ("experiment.clock=virtual,real", "decides whether latencies are measured, and the two do not compare"),
        ("experiment.rounds=5..30", "fewer take and leak less, and simulations do not learn; search it --by run"),
        ("latency.signal=round_trip,communication", "decides what counts as latency, and the two do not compare"),
    ],
)
def test_a_key_that_changes_what_is_measured_is_refused(search: str, why: str) -> None:
    key = search.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^--search {re.escape(key)}: {re.escape(why)}"):
        _ = TuningPlan(SMALL, [search]).space
    if key == "experiment.rounds":
        assert TuningPlan(SMALL, [search], by="run").space


@pytest.mark.parametrize("more", [{"by": "run"}, {"real_seeds": 1}, {}])
def test_where_runs_cannot_be_played_is_refused_before_the_search(more: dict[str, Any], tmp_path: Path) -> None:
    """Once a search was played for hours before the runs on the real clock were refused."""
    plan = TuningPlan(SMALL.replace("virtual", "real") if "by" in more else SMALL, SEARCH, **more)
    why = 'needs experiment.clock = "virtual"' if more else "is for runs; trials are simulations"
    with pytest.raises(ConfigError, match=rf"^--jobs 2: {why}"):
        tune_experiment(plan, tmp_path / "t", Console(quiet=True), side_by_side(2, pytest.fail))
    assert not (tmp_path / "t").exists()


def test_choices_may_be_tables_and_nothing_warns_of_them(tmp_path: Path) -> None:
    laws = 'latency.delay={kind="exponential",mean_s=0.1},{kind="exponential",mean_s=0.2}'
    plan = TuningPlan(SMALL, [laws], trials=2, seeds=1, fresh_seeds=2)
    for _ in range(2):  # the second call resumes from the first one's journal
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            tuning = tune_experiment(plan, tmp_path, Console(quiet=True))
        assert not [str(warning.message) for warning in warned]
    assert {trial.point["latency.delay"]["kind"] for trial in tuning.tried.trials} == {"exponential"}


@pytest.mark.parametrize("policy", ["pause", "ucb", "random"])
def test_a_setting_is_simulated_under_latencies_that_change_with_the_round(policy: str) -> None:
    """Regret is not measured here, so no expected latency is needed."""
    delay = {"kind": "drift", "of": {"kind": "constant", "value_s": 0.5}, "rounds": [1, 3], "factors": [1.0, 2.0]}
    changes = {"selection.policy": policy, "experiment.rounds": 4, "latency.delay": delay, "latency.tau_min_s": 0.05}
    figures = simulated(parse_experiment("", changes))
    assert figures["total_latency_s"] == pytest.approx(0.5 + 0.75 + 1.0 + 1.0)


def test_a_setting_without_rounds_is_simulated_by_its_steps() -> None:
    """Once it was simulated in rounds of selection.m clients. Here two clients at work give an update each in 0.5 s."""
    steps = {"server.mode": "asynchronous", "asynchronous.concurrency": 2, "asynchronous.buffer": 1}
    changes = {"experiment.rounds": 4, "latency.delay": {"kind": "constant", "value_s": 0.5}, "workload.step_s": 1e-9}
    assert simulated(parse_experiment("", steps | changes))["total_latency_s"] == pytest.approx(2 * 0.5)
    for scale, label in ((1.0, "elapsed time (s)"), (0.5, "elapsed time (emulated s)")):
        source = parse_experiment("", {**steps, "latency.time_scale": scale}).to_toml()
        assert TuningPlan(source).objectives[0].label == label
        to_target = TuningPlan(source, by="run", target_accuracy=0.5).objectives[0].label
        assert to_target == label.replace("time", "time to the target accuracy")


def test_the_imbalance_is_half_the_sum_of_what_choices_and_data_differ_by() -> None:
    none, chosen = np.zeros(1), np.array([3, 1])
    result = SimulationResult(("a", "b"), np.array([4]), none, none, none, none, none, chosen, chosen)
    assert imbalance(result, {"a": 100, "b": 300}) == 0.5
    assert imbalance(result, {"a": 300, "b": 100}) == 0.0


def test_a_setting_is_tried_once_and_a_search_ends_when_all_were(tmp_path: Path) -> None:
    """Of four settings in thirty trials, the sampler once tried one nine times and another never."""
    plan = TuningPlan(SMALL, ["selection.m=1..2", "selection.pause.gamma=1,5,5.0"], trials=30, seeds=1, fresh_seeds=2)
    for _ in range(2):  # the second call resumes from the first one's journal
        said = io.StringIO()
        found = tune_experiment(plan, tmp_path, Console(file=said)).tried
        assert "the search ended after 4 of 30 trials: its space holds no other setting" in said.getvalue()
        tried = sorted((trial.point["selection.m"], trial.point["selection.pause.gamma"]) for trial in found.trials)
        assert tried == [(1, 1), (1, 5), (2, 1), (2, 5)]


def test_a_setting_that_was_refused_is_neither_asked_nor_counted_again(tmp_path: Path) -> None:
    budgets = f"{SMALL}[privacy]\nepsilon_budget = 10.0\neta = 0.3\nepsilon_floor = 0.3\n"
    plan = TuningPlan(budgets, ["selection.m=1..4"], trials=30, seeds=1, fresh_seeds=2)
    found = tune_experiment(plan, tmp_path, Console(quiet=True)).tried
    refused = [line.partition("}")[0] for line in found.refused]
    assert (len(found.trials), sorted(refused), found.pruned) == (2, ["{'selection.m': 3", "{'selection.m': 4"], 0)


def share_of(first: list[float] | FloatArray, second: list[float] | FloatArray) -> Interval:
    found = relative_difference(first, second)
    assert found is not None
    return found


@given(st.lists(st.floats(0.1, 1e3), min_size=FEWEST_SEEDS, max_size=12), st.floats(0.1, 10))
def test_a_relative_difference_is_paired(values: list[float], factor: float) -> None:
    found = share_of(factor * np.array(values), np.array(values))
    assert (found.mean, found.low, found.high) == pytest.approx([factor - 1] * 3), "no seed says otherwise"


def test_a_relative_difference_spreads_as_its_pairs_do_and_has_no_interval_where_the_mean_may_be_0() -> None:
    found = share_of([8.0, 21.0, 24.0, 35.0, 50.0], [10.0, 20.0, 30.0, 40.0, 50.0])
    low, high = found.low, found.high
    assert low is not None
    assert high is not None
    assert found.mean == pytest.approx(138 / 150 - 1)
    assert low < found.mean < high
    assert share_of([8.0], [10.0]).low is None
    found = share_of([1.0] * 5, [0.0, 0.0, 0.0, 0.0, 5.0])
    assert (found.mean, found.low, found.high) == (0.0, None, None)
    for second in ([0.0] * 6, [1e-17, 0.0, 3e-17, 0.0, 0.0, 0.0]):  # a mean of 0 gives no ratio
        assert relative_difference([1.0] * 6, second) is relative_difference([0.0] * 6, second) is None
