"""Searches of parameters: which keys may be searched, which trials are pruned, and resuming a search."""

import csv
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from rich.console import Console

import pausefl
from pausefl import Tuning
from pausefl.cli import main
from pausefl.experiment.experiment import parse_experiment
from pausefl_process.files import locked
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_tune import resume_tuning, tune_experiment
from pausefl_tune.front import FrontPoint, compared
from pausefl_tune.measure import CLOCK, REACHED, Figures, figures_of_run, simulated
from pausefl_tune.outputs import tables
from pausefl_tune.plan import Point, TuningPlan
from pausefl_tune.study import MeasureSetting, Say, SearchResult, TrialResult, dominates, tried
from rigs.tuning import SEARCH, SMALL, FailingAt, measure_by_m, plan

pytestmark = pytest.mark.usefixtures("quickly_written")

BATCHED = SMALL.replace("count = 8", 'count = 8\nbatched = "on"').replace(
    "rounds = 30", 'rounds = 30\nclock = "virtual"'
)


def test_spaces_are_ranges_or_lists() -> None:
    asked = plan(search=[*SEARCH, "selection.policy=pause,ucb", "selection.pause.beta=1.5..4"])
    assert asked.space == {
        "selection.pause.alpha": FloatDistribution(0.1, 1000, log=True),
        "selection.pause.gamma": IntDistribution(0, 20),
        "selection.m": CategoricalDistribution([1, 2, 3]),
        "selection.policy": CategoricalDistribution(["pause", "ucb"]),
        "selection.pause.beta": FloatDistribution(1.5, 4),
    }
    assert asked.own_point == {
        "selection.pause.alpha": 100.0,
        "selection.pause.gamma": 5.0,
        "selection.m": 2,
        "selection.policy": "pause",
        "selection.pause.beta": 2.0,
    }
    quoted = plan(search=['selection."pause".alpha=1..200'])
    assert quoted.own_point == {'selection."pause".alpha': 100.0}


def test_without_a_space_the_weights_of_the_policy_are_searched() -> None:
    assert list(plan(search=[]).space) == [f"selection.pause.{name}" for name in ("alpha", "gamma", "zeta", "beta")]
    with pytest.raises(ConfigError, match="--search: random has none of PAUSE's weights"):
        _ = plan(search=[], source=SMALL.replace("m = 2", 'm = 2\npolicy = "random"')).space


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("selection.pause.alhpa=1..2", "--search selection.pause.alhpa: selection.pause.alhpa: unknown key"),
        ("nothing.here=1..2", "--search nothing.here: "),
        ("selection.m=1..99", "--search selection.m: selection.m = 99: must be at most clients.count = 8"),
        ("selection.pause.alpha", "--search selection.pause.alpha: must be KEY=SPACE"),
        ("selection.pause.alpha=5..1", "must be two numbers A..B with A < B"),
        ("selection.pause.alpha=log:0..1", "must be two numbers A..B with A < B, above 0 with log:"),
        ("selection.pause.alpha=a..b", "must be two numbers"),
    ],
)
def test_a_bad_space_is_one_line(setting: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        _ = plan(search=[setting]).space
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"by": "run"}, "--by run: needs a model that learns"),
        ({"target_accuracy": 0.5}, "--target-accuracy 0.5: goes with --by run"),
        ({"target_accuracy": 1.5, "by": "run"}, "--target-accuracy 1.5: must lie between 0 and 1"),
        ({"trials": 0}, "--trials 0: must be at least 1"),
        ({"fresh_seeds": 1}, "--fresh-seeds 1: must be at least 2"),
        ({"by": "run", "real_seeds": 1}, "--real-seeds 1: goes with --by run --virtual, or with --by simulate"),
        (
            {"real_seeds": 1, "source": BATCHED},
            '--real-seeds 1: goes with clients.batched = "auto" or "off"',
        ),
        ({"real_seeds": 1}, "--real-seeds 1: needs a model that learns"),
        ({"real_seeds": -1}, "--real-seeds -1: must be at least 0"),
        (
            {"source": SMALL.replace("m = 2", 'm = 2\npolicy = "fed-ts"')},
            "fed-ts looks at updates, which simulations have not; tune it --by run",
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        plan(**changes)


def test_a_trial_is_pruned_only_when_its_other_seeds_cannot_save_it() -> None:
    played: list[int] = []

    def measure(point: Point, seed: int) -> Figures:
        played.append(seed)
        return {"total_latency_s": float(point["latency"]), "max_epsilon_spent": 4.0, "imbalance": 0.5}

    asked = plan(seeds=4)
    finished = [(10.0, 1.0, 0.1)]
    assert tried(asked, {"latency": 9.0}, measure, finished) == [9.0, 4.0, 0.5]
    assert played == [1, 2, 3, 4]
    played.clear()
    assert tried(asked, {"latency": 15.0}, measure, finished) is None
    assert played == [1, 2, 3], "two quarters of 15 are below 10, three are not"
    played.clear()
    assert tried(asked, {"latency": 41.0}, measure, finished) is None
    assert played == [1]


def test_a_search_finds_settings_that_run_and_says_how_much_better_they_are(tmp_path: Path) -> None:
    tuning = tune_experiment(plan(), tmp_path / "out", Console(quiet=True))
    found = tuning.tried
    assert len(found.trials) + found.pruned + len(found.refused) == 8
    assert found.trials[0].point == {"selection.pause.alpha": 100.0, "selection.pause.gamma": 5, "selection.m": 2}
    for trial in found.front:
        assert not any(dominates(other.values, trial.values, tuning.plan.objectives) for other in found.trials)
    assert (tuning.front[0].name, tuning.front[-1].name) == ("recommended", "published")
    assert set(tuning.plan.unseen_seeds).isdisjoint(tuning.plan.trial_seeds)
    for point in tuning.front:
        experiment = pausefl.load(tmp_path / f"out/{point.name}.toml")
        text = experiment.to_toml()
        fresh = [simulated(parse_experiment(text, {"experiment.seed": seed})) for seed in tuning.plan.unseen_seeds]
        mean_s = np.mean([figures["total_latency_s"] for figures in fresh])
        assert point.figures["total_latency_s"] == pytest.approx(mean_s), "the file is the setting that was measured"
    with (tmp_path / "out/front.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["setting"] for row in rows] == [point.name for point in tuning.front]
    assert (tmp_path / "out/front.png").stat().st_size > 0


def test_a_search_that_another_process_plays_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "held"), pytest.raises(ConfigError, match="another process is using it"):
        tune_experiment(plan(trials=1), tmp_path, Console(quiet=True))


def test_short_rounds_that_teach_nothing_do_not_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """m = 2 is the published setting. A miss of the target costs twice the greater total: its own or m = 2's."""
    times_s = {1: (42.0, math.inf), 2: (152.0, 100.0), 3: (300.0, math.inf)}
    figures = {m: {"total_latency_s": total_s, "latency_to_target_s": to_s} for m, (total_s, to_s) in times_s.items()}
    learning = SMALL.replace('model = "synthetic"', 'model = "mlp"')
    measure = measure_by_m(plan(source=learning, by="run", target_accuracy=0.6), tmp_path, figures, monkeypatch)
    found = [measure({"selection.m": m}, 1)["latency_to_target_s"] for m in (1, 2, 3)]
    assert found == [2 * 152.0, 100.0, 2 * 300.0]


@pytest.mark.slow
def test_runs_are_measured_by_what_they_reached(tmp_path: Path) -> None:
    tiny = {"experiment.rounds": 4, "clients.count": 3, "clients.per_process": 3, "selection.m": 2}
    quick = {"latency.time_scale": 0.01, "evaluation.every": 2}
    pausefl.run(pausefl.load("demo", tiny | quick), tmp_path / "run", progress=False)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    found = figures_of_run(tmp_path / "run", target_accuracy=0.999999)
    assert (found["latency_to_target_s"], found[REACHED]) == (math.inf, 0.0), "never reached"
    assert found["total_latency_s"] == summary["total_latency_s"]
    assert found["final_accuracy"] == summary["final_accuracy"]
    found = figures_of_run(tmp_path / "run", target_accuracy=0.01)
    assert 0 <= found["latency_to_target_s"] < summary["total_latency_s"]
    assert found[REACHED] == 1.0


@pytest.mark.slow
def test_the_recommended_setting_is_held_on_the_real_clock(tmp_path: Path) -> None:
    tiny = {"experiment.rounds": 4, "clients.count": 4, "clients.per_process": 4, "selection.m": 2}
    quick = {"latency.time_scale": 0.01, "evaluation.every": 2, "experiment.clock": "virtual"}
    few = {"by": "run", "trials": 2, "seeds": 1, "fresh_seeds": 2, "real_seeds": 1}
    tuning = pausefl.tune(pausefl.load("demo", tiny | quick), ["selection.m=1,2"], tmp_path / "out", **few)  # type: ignore[arg-type]  # of several types
    assert [point.name for point in tuning.confirmed] == ["recommended", "published"]
    assert [table.title for table in tables(tuning)][1:] == ["On the real clock, fresh seed 4"]
    assert tuning.confirmed[0].changes["final_accuracy"].low is None, "one seed gives no interval"
    clocks = [json.loads(path.read_text())["clock"] for path in sorted(tmp_path.glob("out/runs/*/summary.json"))]
    assert clocks.count("real") == 2 - (tuning.front[0].point == {"selection.m": 2})
    summary = json.loads((tmp_path / "out/tuning.json").read_text())
    assert (summary["clock"], summary["real_seeds"]) == ("virtual", [4])


@pytest.mark.slow
def test_a_simulated_search_is_held_on_the_real_clock_afterwards(tmp_path: Path) -> None:
    tiny = {"experiment.rounds": 4, "clients.count": 4, "clients.per_process": 4, "selection.m": 2}
    experiment = pausefl.load("demo", tiny | {"latency.time_scale": 0.01, "evaluation.every": 2})
    tuning = pausefl.tune(experiment, ["selection.m=1,2"], tmp_path, trials=2, seeds=1, fresh_seeds=2)
    assert not tuning.confirmed
    confirmed = resume_tuning(tmp_path, Console(quiet=True), real_seeds=1).confirmed
    assert [point.name for point in confirmed] == ["recommended", "published"]
    assert all(0 < point.figures["final_accuracy"] < 1 for point in confirmed)
    summary = json.loads((tmp_path / "tuning.json").read_text())
    assert [each["name"] for each in summary["confirmed_objectives"]][-1] == "final_accuracy"
    assert summary["real_seeds"] == [4]


def test_the_command_prints_the_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    words = ["tune", str(tmp_path / "small.toml"), "--trials", "2", "--seeds", "1", "--fresh-seeds", "2"]
    main([*words, "--run-dir", str(tmp_path / "out")])
    assert "Pareto front on fresh seeds 2 to 3" in capsys.readouterr().out
    assert (tmp_path / "out/recommended.toml").exists()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--search", "selection.pause.alhpa=1..2", "--run-dir", str(tmp_path / "no")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("pausefl: --search selection.pause.alhpa: ")
    assert not (tmp_path / "no").exists()


TRIED = SearchResult(
    trials=[], front=[TrialResult({"selection.pause.alpha": alpha}, ()) for alpha in (1.0, 2.0)], pruned=0, refused=()
)


def held(asked: TuningPlan, found: SearchResult, measure: MeasureSetting, say: Say) -> list[FrontPoint]:
    """The front of a search, compared with the published setting."""
    return compared([each.point for each in found.front], asked.unseen_seeds, asked.objectives, measure, say)


def test_a_setting_that_fails_on_a_fresh_seed_leaves_the_front(tmp_path: Path) -> None:
    asked, said = plan(), list[str]()
    front = held(asked, TRIED, FailingAt((1.0, asked.unseen_seeds[1])), said.append)
    assert [(point.name, point.figures["total_latency_s"]) for point in front] == [
        ("recommended", 2.0), ("published", 9.0),
    ]  # fmt: skip
    (line,) = said
    assert line.startswith("left out, as it failed on a fresh seed: {'selection.pause.alpha': 1.0} (runs/ab12: ")
    with pytest.raises(PauseflError, match=r"published setting failed .*: runs/ab12: .*; .* delete that folder, then"):
        held(asked, TRIED, FailingAt((None, 4)), said.append)


def test_a_recommended_setting_that_fails_on_the_real_clock_is_left_out() -> None:
    asked, said = plan(source=SMALL.replace('model = "synthetic"', ""), real_seeds=1), list[str]()
    (seed,) = asked.real_clock_seeds
    point, measure = TRIED.front[0].point, FailingAt((1.0, seed))
    (published,) = compared([point], [seed], asked.confirmed_objectives, measure, said.append, {CLOCK: "real"})
    assert published.name == "published"
    assert len(said) == 1


def imbalanced(**by_alpha: float) -> MeasureSetting:
    """A measure: latency is alpha (published: 9); imbalance is the value of "alpha_1" and so on, else 0."""

    def measure(point: Point, seed: int) -> Figures:
        alpha = point.get("selection.pause.alpha", 9.0)
        imbalance = by_alpha.get(f"alpha_{alpha:.0f}", 0.0)
        return {"total_latency_s": alpha, "max_epsilon_spent": 4.0, "imbalance": imbalance}

    return measure


def test_what_is_worse_than_a_published_0_is_infinitely_worse(tmp_path: Path) -> None:
    front = held(plan(), TRIED, imbalanced(alpha_1=0.1007), pytest.fail)
    assert [(point.name, point.figures["total_latency_s"]) for point in front] == [
        ("recommended", 2.0), ("front-01", 1.0), ("published", 9.0),
    ]  # fmt: skip
    assert "imbalance" not in front[1].changes, "no share of 0"
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(*tables(Tuning(tmp_path, plan(), TRIED, front, ())))
    assert re.findall(r"0 → \S+", console.export_text()) == ["0 → 0", "0 → 0.1007", "0 → x:"], "the last explains it"


def test_rounding_is_no_worse_than_a_published_0() -> None:
    front = held(plan(), TRIED, imbalanced(alpha_1=5e-17), pytest.fail)
    assert [point.figures["total_latency_s"] for point in front] == [1.0, 2.0, 9.0]
