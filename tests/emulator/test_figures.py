"""Figures in reports: the newcomers' figures, and that a figure that fails is missing, with a reason."""

import csv
import importlib
import inspect
import io
import json
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from scipy import stats

import pausefl
import pausefl_offline
from pausefl.cli.experiments import summary_table
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.results.figures import Figures
from pausefl.results.reading import RunData, read_run
from pausefl.results.report import _drifts, export_csv, group_plots, report_runs, style
from pausefl.results.report.comparison import compare, write_comparison
from pausefl.results.report.learning import Learning, learning
from pausefl.results.report.learning_plots import beta_density, participation, posteriors
from pausefl.results.report.plots import drawings
from pausefl.results.report.style import rendered
from pausefl.results.report.sweep import write_sweep
from pausefl.results.selections import choices_by_group
from pausefl.results.stored_summary import read_summary
from pausefl.results.summary import summarise
from pausefl.results.tally import RunTally
from pausefl.runtime.plan import plan_of
from pausefl_server.records import LogEvent
from pausefl_server.service import RunResult
from pausefl_server.state import RunState, replay
from pausefl_server.storage.store import Store
from rigs.command import summary_of
from rigs.experiments import play, small
from rigs.newcomers import round_with

pytestmark = pytest.mark.usefixtures("quickly_written")

EXPERIMENT = """
experiment = { rounds = 10, clock = "virtual" }
selection = { policy = "fed-ts", m = 2, fed-ts = { newcomer_share = 0.5 } }
privacy.enabled = false
latency.delay = { kind = "constant", value_s = 0.1 }
workload.model = "synthetic"
[clients]
groups.original = { count = 4 }
groups.relevant = { count = 3, role = "relevant", join_round = 3 }
[clients.groups.poisoned]
count = 3
role = "irrelevant"
join_round = 3
behaviours = [{ kind = "gaussian-update", scale = 3.0 }]
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run, with its tables."""
    folder = tmp_path_factory.mktemp("newcomers") / "run"
    play(parse_experiment(EXPERIMENT), folder)
    export_csv(read_run(folder))
    return folder


HAND = [
    round_with(1, ("original-000", "original-001"), original_000=0.1, original_001=0.2),
    round_with(
        2, ("relevant-000", "relevant-001", "poisoned-000"), relevant_000=1.0, relevant_001=3.0, poisoned_000=9.0
    ),
    round_with(3, original_000=0.4, relevant_000=5.0),
    round_with(4, ("poisoned-001",), relevant_000=20.0, poisoned_000=20.0),
    round_with(5, relevant_001=1.0, poisoned_001=40.0),
]
"""Rounds 2 to 5. Centroids 2 and 9; one drift only; 2 and 20, with all drifts at 20, which succeed; 1 and 40."""


@pytest.fixture(scope="module")
def by_hand(played: Path) -> RunData:
    ids = sorted({event.client_id for record in HAND for event in record.events})
    return replace(read_run(played), records=HAND, clients={"client_id": np.array(ids)})


def learnt_of(data: RunData) -> Learning:
    found = learning(data)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def learnt(by_hand: RunData) -> Learning:
    return learnt_of(by_hand)


def test_the_lines_of_many_insertions_differ(learnt: Learning) -> None:
    many = replace(learnt, join_round=np.arange(2, 10), chosen=np.zeros((5, 8), np.bool_))
    lines = participation(many).axes[0].lines[:8]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8
    sizes = [np.column_stack(line.get_data()).tolist() for line in participation(learnt).axes[0].lines[:2]]
    assert sizes == [[[2, 3], [3, 1], [4, 2], [5, 1]], [[4, 0], [5, 1]]]
    assert len(posteriors(learnt, {}).axes[0].lines) == 3, "of those that have joined"
    x = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(beta_density(x, 3, 5), stats.beta.pdf(x, 3, 5))
    for kind in style.KINDS:
        one, other = (rendered(participation(learnt), kind) for _ in range(2))
        assert (one, b"CreationDate" in one) == (other, False), "the same data give the same bytes"


@pytest.mark.slow
def test_the_policys_fold_is_kept_round_by_round(learnt: Learning) -> None:
    assert learnt.newcomers.tolist() == ["poisoned-000", "relevant-000", "relevant-001", "poisoned-001"]
    assert learnt.join_round.tolist() == [2, 2, 2, 4]
    assert learnt.s.tolist() == [[1, 1, 1, 1], [1, 2, 2, 1], [1, 3, 2, 1], [2, 4, 2, 1], [2, 4, 3, 1]]
    assert learnt.f.tolist() == [[1, 1, 1, 1], [2, 1, 1, 1], [2, 1, 1, 1], [2, 1, 1, 1], [2, 1, 1, 2]]
    np.testing.assert_array_equal(learnt.threshold, [np.nan, 5.5, np.nan, np.nan, 20.5])
    sizes = {insertion: size.tolist() for insertion, size in learnt.sizes.items()}
    assert sizes == {2: [0, 3, 1, 2, 1], 4: [0, 0, 0, 0, 1]}


def test_failed_attempts_are_no_rounds(by_hand: RunData, learnt: Learning) -> None:
    records = [replace(r, failed_attempts=(replace(r, observations=()),), events=()) for r in HAND]
    found = learnt_of(replace(by_hand, records=records))
    assert (found.s.tolist(), found.f.tolist()) == (learnt.s.tolist(), learnt.f.tolist())
    np.testing.assert_array_equal(found.threshold, learnt.threshold)


def test_every_drift_from_the_first_insertion_on_stands_beside_what_it_counted_as(learnt: Learning) -> None:
    rows = list(zip(*(column.tolist() for column in learnt.drifts.values()), strict=True))
    assert rows[:4] == [
        (2, "relevant-000", 1.0, False, True),
        (2, "relevant-001", 3.0, False, True),
        (2, "poisoned-000", 9.0, False, False),
        (3, "original-000", 0.4, True, False),
    ]
    assert [small for *_, small in rows[4:]] == [True, True, True, True, False]
    assert [row[-1] for row in _drifts(learnt)] == [5.5, 5.5, 5.5, None, None, None, None, 20.5, 20.5]


def test_policies_without_posteriors_and_runs_without_newcomers_have_nothing_learnt(by_hand: RunData) -> None:
    summary = by_hand.summary
    assert learning(replace(by_hand, summary={**summary, "policy": "random", "policy_parameters": {"m": 2}})) is None
    assert learning(replace(by_hand, summary={**summary, "policy": "my.own:Policy"})) is None
    assert learning(replace(by_hand, records=HAND[:1])) is None
    assert learning(replace(by_hand, records=[])) is None
    assert learning(replace(by_hand, summary={**summary, "policy": "drift-ucb"})) is not None


@pytest.mark.parametrize("drift", [{}, {"drift": 0.0}])
def test_newcomers_without_drifts_can_be_reported_on(by_hand: RunData, drift: Mapping[str, float]) -> None:
    """No client answered, or all updates were equal: a logarithmic axis then has no point to show."""
    records = [replace(r, observations=tuple(replace(o, statistics=drift) for o in r.observations)) for r in HAND]
    found = drawings(replace(by_hand, records=records))
    assert found["threshold"]() is None
    assert (posteriors := found["posteriors"]()) is not None
    assert "<svg" in rendered(posteriors, "svg").decode()


def test_selections_are_counted_by_client_and_averaged_by_group(
    by_hand: RunData, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = choices_by_group(by_hand.records, by_hand.groups)
    looks = group_plots.group_looks({**groups, **{f"more-{k}-like-them": groups["relevant"] for k in range(3)}})
    assert len(set(looks.values())) == 6, "no two look alike"
    numbered = group_plots.group_looks({f"poisoned{k}": groups["poisoned"] for k in (1, 2)})
    assert len({look.colour for look in numbered.values()}) == 1, "names that differ by a number alone"
    by_round, by_client = group_plots.selections(by_hand, groups).axes
    means = {line.get_label(): line for line in by_round.lines if not line.get_label().startswith("_")}
    assert list(means) == ["original", "relevant", "poisoned"]
    assert means["relevant"].get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert means["relevant"].get_ydata().tolist() == [0, 1, 1.5, 2, 2.5]
    assert [label.get_text() for label in by_client.get_xticklabels()][2:4] == ["relevant-000", "relevant-001"]
    assert [bar.get_height() for bar in by_client.patches] == [2, 1, 3, 2, 2, 1]
    monkeypatch.setattr(group_plots, "MOST_NAMED", 5)
    steps = replace(by_hand, summary={**by_hand.summary, "mode": "asynchronous"})
    by_step, many = group_plots.selections(steps, groups).axes
    around = group_plots.accuracy_around_joins(steps, groups).axes[0]
    assert (by_round.get_xlabel(), by_step.get_xlabel(), around.get_xlabel()) == ("round", "step", "step")
    assert "relevant-000" not in [label.get_text() for label in many.get_xticklabels()], "names would overlap"


def test_a_run_counts_its_selections_by_group(played: Path) -> None:
    groups = summary_of(played)["selections_by_group"]
    counted = {name: (group["clients"], group["join_round"]) for name, group in groups.items()}
    assert counted == {"original": (4, 1), "relevant": (3, 3), "poisoned": (3, 3)}
    assert groups["original"]["selections_after_join"] == 2 * 10
    newcomers = [groups[name] for name in ("relevant", "poisoned")]
    assert sum(group["selections_after_join"] for group in newcomers) == 3 * 8
    for group in newcomers:
        assert group["per_client_round"] == group["selections_after_join"] / (3 * 8)


def rows(path: Path) -> Sequence[Mapping[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_its_tables_hold_what_it_learnt(played: Path) -> None:
    found = learnt_of(read_run(played))
    posteriors = rows(played / "csv" / "posteriors.csv")
    assert len(posteriors) == 6 * 8
    assert [int(row["s"]) for row in posteriors[-6:]] == found.s[-1].tolist()
    drifts = rows(played / "csv" / "drifts.csv")
    statistics = rows(played / "csv" / "statistics.csv")
    since = [float(row["value"]) for row in statistics if int(row["round"]) >= 3]
    assert [float(row["drift"]) for row in drifts] == since
    assert {row["name"] for row in statistics} == {"drift"}
    thresholds = {int(row["round"]): float(row["threshold"]) for row in drifts if row["threshold"]}
    assert thresholds == {t: x for t, x in enumerate(found.threshold, start=1) if not np.isnan(x)}
    assert {row["client_id"]: row["join_round"] for row in rows(played / "csv" / "joins.csv")}["relevant-000"] == "3"


def test_accuracy_is_drawn_around_the_joins(played: Path) -> None:
    data = read_run(played)
    accuracy = {
        "round": np.array([0, 5, 10]), "split": np.array(["test"] * 3), "subset": np.ones(3, np.int64),
        "accuracy": np.array([0.1, 0.5, 0.7]), "total_latency_s": np.array([0.0, 1.0, 2.0]),
    }  # fmt: skip
    figure = drawings(replace(data, accuracy=accuracy))["joins"]()
    assert figure is not None
    axes = figure.axes[0]
    assert axes.lines[0].get_xdata().tolist() == [0, 5, 10]
    assert [text.get_text() for text in axes.texts] == ["round 3: relevant, poisoned"]


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
    play(parse_experiment(NEWCOMERS), folder)
    return folder


def summarised(run_dir: Path, *late: LogEvent) -> dict[str, Any]:
    """The summary of the run, computed again from its log and these later events."""
    experiment = parse_experiment(NEWCOMERS)
    policy = selected_policy(experiment.selection)
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        state = replay(RunState.start(policy, 1), store.rounds(), unfinished=store.log().failed_attempts())
        tally = RunTally(store.log(), store.log().failed_attempts(), [*store.late_events(), *late])
    result = RunResult(state, np.zeros(10, np.float32), None, (), (), "all rounds done", "completed")
    plan = plan_of(experiment, "run").server
    return {**summarise(plan.summary, plan.settings, tally, result, charged_size=10)}


class Played:
    """Runs `what` repeatedly. In each run one figure raises; the others are taken from the first run."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what = what
        self._found: dict[tuple[str, int], Any] = {}
        self._compute = Figures.compute
        self.do(None)
        self.figures = tuple(self._found)
        """(name, n) of each figure: its n-th use. A figure may be written, then embedded."""

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


def test_every_epsilon_of_a_summary_counts_jobs_without_an_answer(run_dir: Path) -> None:
    clients = parse_experiment(NEWCOMERS).client_ids
    told, owed = summarised(run_dir), summarised(run_dir, *(LogEvent("unsettled", client_id) for client_id in clients))
    for key in ("max_epsilon_spent", "median_epsilon_spent", "vector_epsilon_max", "epsilon_at_delta"):
        assert owed[key] > told[key]


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
                played.do((name, time))  # nor is there one to remove
            else:
                assert f"Missing: {name} ({REASON})" in page.read_text("utf-8")
                assert not (page.parent / f"plots/{name}.svg").exists()
        write()


def drawing_functions() -> list[tuple[str, Callable[..., Any]]]:
    """Every function of the product that returns a figure, with its name."""
    modules = [
        importlib.import_module(m.name)
        for package in (pausefl, pausefl_offline)
        for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
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
    """Every drawing function raises, wherever it is called; the tables are written all the same."""
    functions = dict(drawing_functions())
    assert len(functions) > 20
    for module in [module for name, module in sys.modules.items() if name.startswith(("pausefl.", "pausefl_offline."))]:
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
    """Here ε cannot be composed: e^ε_1 = e^784 exceeds float64. The summary then has the plain sum."""
    monkeypatch.setattr("pausefl.results.report.write_report", fails)
    experiment = small({"privacy.unit": "vector", "privacy.clip": 10.0, "privacy.epsilon_budget": 20_000.0})
    summary = pausefl.run(experiment, tmp_path / "run", progress=False).summary
    assert not (tmp_path / "run/report.html").exists()
    assert (summary["rounds"], summary["missing_figures"]) == (3, {})
    assert 784 < summary["epsilon_at_delta"] <= summary["max_epsilon_spent"]


def test_an_older_picture_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, older = Figures(), [tmp_path / "rounds.svg", tmp_path / "rounds.png"]
    for path in older:
        path.write_text("older")
    monkeypatch.setattr(style, "write_durably", fails)
    assert style.write_picture(tmp_path / "rounds", Figure, figures, ["svg", "png"])
    assert ([path.read_text() for path in older], list(figures.missing)) == (["older"] * 2, ["rounds"])
    assert style.write_picture(tmp_path / "rounds", lambda: None, figures) is None
    assert not list(tmp_path.iterdir())
