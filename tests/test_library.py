"""`import pausefl`: the public surface, and what its functions return."""

import csv
import importlib.metadata
import inspect
import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

import pausefl
from pausefl.campaigns import simulations
from pausefl.cli import main
from pausefl.config.loading import parse_experiment
from pausefl_proto.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
TINY = {
    "experiment.rounds": 3,
    "clients.count": 4,
    "selection.m": 2,
    "workload.model": "synthetic",
    "latency.time_scale": 0.01,
}
SIX = {"clients.count": 6, "selection.m": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pausefl.Run:
    return pausefl.run(pausefl.load("demo", TINY), tmp_path_factory.mktemp("runs") / "run", progress=False)


def test_every_key_of_the_summary_stands_on_its_reference_page(run: pausefl.Run) -> None:
    page = (ROOT / "docs/reference/summary.md").read_text("utf-8")
    assert [key for key in run.summary if f"| `{key}` |" not in page] == []
    assert "|  |" not in page


def test_every_public_name_can_be_imported_and_stands_on_the_reference_page() -> None:
    page = (ROOT / "docs/library.md").read_text("utf-8")
    for name in pausefl.__all__:
        assert getattr(pausefl, name).__doc__, name
        assert f"`{name}" in page or f"pausefl.{name}" in page, name
    assert set(pausefl.__all__) <= set(dir(pausefl))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pausefl.nothing


def test_the_table_of_functions_gives_every_parameter() -> None:
    page = (ROOT / "docs/library.md").read_text("utf-8")
    shown = dict(re.findall(r"^\| `pausefl\.(\w+)(\(.*?\))` \|", page, re.MULTILINE))
    functions = {name: found for name in pausefl.__all__ if inspect.isfunction(found := getattr(pausefl, name))}
    assert shown == {name: signature_without_types(function) for name, function in functions.items()}


def signature_without_types(function: Callable[..., object]) -> str:
    signature, empty = inspect.signature(function), inspect.Signature.empty
    parameters = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=empty))


def test_importing_the_library_imports_neither_torch_nor_grpc_nor_matplotlib() -> None:
    code = "import pausefl, sys; print(sorted({'torch', 'grpc', 'matplotlib', 'numba', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_citation_names_the_version_that_is_stated_once() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"]
    assert cited == pausefl.__version__ == importlib.metadata.version("pausefl")


def test_a_run_answers_with_data(run: pausefl.Run) -> None:
    assert run.summary["rounds"] == 3
    assert list(run.rounds["round"]) == [1, 2, 3]
    assert len(run.observations) == len(run.breakdown) == len(run.releases) == 6
    assert run.rounds["total_latency_s"].iloc[-1] == pytest.approx(run.summary["total_latency_s"])
    assert run.evaluations.empty
    assert set(run.model()) == {"synthetic"}
    assert run.columns("choices")["client_id"].shape == (6,)
    assert "total_latency_s" in run._repr_html_()


def test_open_reads_the_same_run(run: pausefl.Run) -> None:
    assert pausefl.open(run.path).summary == run.summary


def test_a_run_whose_folder_was_moved_does_not_pass_for_one_that_goes_on(run: pausefl.Run, tmp_path: Path) -> None:
    copied = pausefl.open(shutil.copytree(run.path, tmp_path / "run"))
    copied.path.rename(tmp_path / "moved")
    with pytest.raises(pausefl.ConfigError, match=r"run: not a run directory, it has no run\.db$"):
        _ = copied.summary
    assert pausefl.open(tmp_path / "moved").summary == run.summary


def test_a_damaged_model_is_refused_in_one_line(run: pausefl.Run, tmp_path: Path) -> None:
    copied = pausefl.open(shutil.copytree(run.path, tmp_path / "run"))
    (copied.path / "model.safetensors").write_bytes((run.path / "model.safetensors").read_bytes()[:20])
    with pytest.raises(pausefl.ConfigError, match=r"model\.safetensors: cannot be read as a model"):
        copied.model()


def test_results_are_found_from_another_working_directory(
    run: pausefl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.path, "copy")
    opened, simulation = pausefl.open("copy"), pausefl.simulate(pausefl.load("demo", SIX), 20, "simulated")
    monkeypatch.chdir("/")
    assert opened.summary == pickle.loads(pickle.dumps(opened)).summary == run.summary
    assert (simulation.folder / "simulation.json").exists()


def test_what_is_no_run_or_no_table_is_refused_in_one_line(run: pausefl.Run, tmp_path: Path) -> None:
    with pytest.raises(pausefl.ConfigError, match=r"not a run directory"):
        pausefl.open(tmp_path)
    with pytest.raises(pausefl.ConfigError, match="table 'wrong': must be one of rounds"):
        run.columns("wrong")
    with pytest.raises(pausefl.ConfigError, match=r"best_model\.safetensors: there is none"):
        run.model("best_model")
    with pytest.raises(pausefl.ConfigError, match=r"^model 'nope': must be model or best_model$"):
        run.model("nope")  # type: ignore[arg-type] # on purpose
    with pytest.raises(pausefl.ConfigError, match=r"experiment\.round"):
        pausefl.load("demo", {"experiment.round": 3})
    shutil.copytree(run.path, tmp_path / "half")
    (tmp_path / "half/summary.json").write_text('{"rounds": ')
    with pytest.raises(pausefl.ConfigError, match=r"summary\.json: not JSON"):
        _ = pausefl.open(tmp_path / "half").summary


def test_a_script_needs_no_guard_and_a_running_loop_is_no_obstacle(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, pausefl\n"
        f"experiment = pausefl.load('demo', {TINY!r})\n"
        "async def main():\n"
        "    return pausefl.run(experiment, 'out', progress=False)\n"
        "print(asyncio.run(main()).summary['rounds'])\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr


def test_simulate_returns_what_it_wrote(tmp_path: Path) -> None:
    found = pausefl.simulate(pausefl.load("demo", SIX), 50, tmp_path)
    assert found.summary["rounds"] == 50
    assert (found.folder / "simulation.png").exists()


def test_runs_at_a_relative_path_are_named_by_their_folders(
    run: pausefl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path)
    main(["compare", "--runs", ".", "--run-dir", str(tmp_path / "out")])
    assert list(json.loads((tmp_path / "out/campaign.json").read_text())["arguments"]["runs"]) == [run.path.name]


def test_several_policies_are_simulated_under_the_same_latencies(tmp_path: Path) -> None:
    experiment = pausefl.load("demo", SIX)
    found = pausefl.simulate(experiment, 50, tmp_path, policies=["pause", "random"], seeds=3)
    pause, random = (found.summary["policies"][name]["total_latency_s"] for name in ("pause", "random"))
    assert pause["least"] <= pause["mean"] <= pause["greatest"] < random["least"]
    with (found.folder / "simulations.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"]) for row in rows] == [(p, s) for p in ("pause", "random") for s in "123"]
    alone = pausefl.simulate(pausefl.load("demo", {**SIX, "selection.policy": "random"}), 50, tmp_path / "alone")
    assert float(rows[3]["total_latency_s"]) == alone.summary["total_latency_s"]
    assert (found.folder / "simulations.png").stat().st_size > 10_000


def test_regrets_of_different_objectives_are_not_shown_as_if_they_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(simulations, "save_png", lambda figure, _: drawn.append(figure))
    experiment = pausefl.load("demo", {**SIX, "selection.pause.alpha": 1.0})
    found = pausefl.simulate(experiment, 20, tmp_path / "unlike", policies=["pause", "random"])
    assert {policy: genie["alpha"] for policy, genie in found.summary["genies"].items()} == {"pause": 1, "random": 100}
    written = json.loads((found.folder / "simulations.json").read_text("utf-8"))
    assert written["genies"] == found.summary["genies"]
    with (found.folder / "simulations.csv").open(encoding="utf-8") as file:
        assert [row["genie_alpha"] for row in csv.DictReader(file)] == ["1.0", "100.0"]
    said = list(simulations.in_words(found.summary))
    assert not any(" to " in line for line in said), "one seed has no range"
    assert said[3:] == [
        "regrets are of different objectives, and do not compare:",
        "pause: against a genie with alpha = 1.0, gamma = 5.0, beta = 2.0, zeta = 1.0, reward = R1",
        "random: against a genie with alpha = 100.0, gamma = 5.0, beta = 2.0, zeta = 1.0, reward = R1",
    ]
    assert drawn[0].get_supxlabel() == "\n".join(said[3:])


def test_regrets_of_one_objective_are_shown_without_a_word(tmp_path: Path) -> None:
    """A genie explores nothing: ζ does not change what it weighs."""
    experiment = pausefl.load("demo", {**SIX, "selection.pause.zeta": 3.0})
    found = pausefl.simulate(experiment, 20, tmp_path, policies=["pause", "random"], seeds=2)
    *policies, spread, regret = simulations.in_words(found.summary)
    assert [line.partition(":")[0] for line in policies] == ["pause", "random"]
    assert spread.startswith("a mean over the seeds each")
    assert regret.startswith("regret: the reward lost against a genie")


def test_policies_with_unlike_regrets_are_not_drawn_together(tmp_path: Path) -> None:
    newcomers = """
[clients.groups.old]
count = 4
[clients.groups.late]
count = 2
join_round = 4
drift = { kind = "lognormal", mean = 1.0, sd = 0.2 }
[selection]
policy = "fed-ts"
m = 2
"""
    with pytest.raises(
        ConfigError, match=r"^--policies: fed-ts is simulated by drifts and pause by latencies; simulate"
    ):
        pausefl.simulate(parse_experiment(newcomers), 9, tmp_path / "out", policies=["fed-ts", "pause"])
    assert not (tmp_path / "out").exists()


def test_a_whole_number_of_numpy_is_one(tmp_path: Path) -> None:
    seeds: Any = np.int64(2)
    rounds: Any = np.int64(3)
    simulated = pausefl.simulate(pausefl.load("demo", SIX), rounds, tmp_path / "s", policies=["random"], seeds=seeds)
    assert simulated.summary["rounds"] == 3
    assert len([*(tmp_path / "s").glob("random-seed*")]) == 2
    swept = pausefl.sweep(pausefl.load("demo", TINY), {"selection.m": [1]}, seeds, tmp_path / "w", progress=False)
    assert len(swept.rows) == 2


class Deaf(pausefl.Observer):
    def on_event(self) -> None:  # type: ignore[override] # on purpose
        pytest.fail("is never called")


WRONG: dict[str, tuple[Callable[[pausefl.Experiment], object], str]] = {
    "rounds": (lambda e: pausefl.simulate(e, 0), r"^rounds = 0: must be a whole number of at least 1$"),
    "a text for a number": (lambda e: pausefl.simulate(e, "10"), r"^rounds = '10': must be"),  # type: ignore[arg-type] # on purpose
    "seeds": (lambda e: pausefl.simulate(e, 10, seeds=0), r"^seeds = 0: must be"),
    "a truth for seeds": (lambda e: pausefl.compare(e, ["all"], seeds=True), r"^seeds = True: must be a whole number"),
    "a float for seeds": (lambda e: pausefl.compare(e, ["all"], seeds=2.0), r"^seeds = 2\.0: must be a whole"),  # type: ignore[arg-type] # on purpose
    "trials": (lambda e: pausefl.tune(e, trials=0), r"^trials = 0: must be a whole number of at least 1$"),
    "jobs": (lambda e: pausefl.compare(e, ["random"], jobs=0), r"^jobs = 0: must be"),
    "one policy": (lambda e: pausefl.compare(e, "pause"), r"^policies = 'pause': must be a list of names$"),
    "a policy's class": (lambda e: pausefl.simulate(e, 10, policies=[Path]), r"^policies = .*must be a list of names$"),  # type: ignore[list-item] # on purpose
    "one value": (lambda e: pausefl.sweep(e, {"selection.m": 3}), r"^selection\.m = 3: must be a list"),  # type: ignore[dict-item] # on purpose
    "no value": (lambda e: pausefl.sweep(e, {"selection.m": []}), r"^selection\.m = \[\]: must be a list"),
    "keys without values": (lambda e: pausefl.sweep(e, ["selection.m"]), r"^grid = \['selection\.m'\]: must be lists"),  # type: ignore[arg-type] # on purpose
    "a grid's key": (lambda e: pausefl.sweep(e, {3: [2]}), r"^grid = \{3: \[2\]\}: must be lists of values by key"),  # type: ignore[dict-item] # on purpose
    "no policy": (lambda e: pausefl.compare(e, []), r"^policies = \[\]: must name at least one$"),
    "policies' number": (lambda e: pausefl.simulate(e, 10, policies=3), r"^policies = 3: must be a list of names$"),  # type: ignore[arg-type] # on purpose
    "fresh seeds": (lambda e: pausefl.tune(e, fresh_seeds="a"), r"^fresh_seeds = 'a': must be a whole number of at"),  # type: ignore[arg-type] # on purpose
    "real seeds": (lambda e: pausefl.tune(e, real_seeds="a"), r"^real_seeds = 'a': must be a whole number of at"),  # type: ignore[arg-type] # on purpose
    "one search": (lambda e: pausefl.tune(e, "selection.m=1..2"), r"^search = 'selection\.m=1\.\.2': must be a list"),
    "what is played": (lambda e: pausefl.tune(e, by="runs"), r"^by = 'runs': must be simulate or run$"),  # type: ignore[arg-type] # on purpose
    "a target": (lambda e: pausefl.tune(e, target_accuracy="high"), r"^target_accuracy = 'high': must be a number"),  # type: ignore[arg-type] # on purpose
    "draws": (lambda _: pausefl.replay("run", "all", draws=0), r"^draws = 0: must be a whole number of at least 1$"),
    "a text for draws": (lambda _: pausefl.replay("run", "all", draws="x"), r"^draws = 'x': must be a whole number of"),  # type: ignore[arg-type] # on purpose
    "a policy's number": (lambda _: pausefl.replay("run", 3), r"^policy = 3: must be the name of a policy$"),  # type: ignore[arg-type] # on purpose
    "a path's number": (lambda _: pausefl.replay(3), r"^run_dir = 3: must be a path$"),  # type: ignore[arg-type] # on purpose
    "a run's folder": (lambda e: pausefl.run(e, 3), r"^run_dir = 3: must be a path$"),  # type: ignore[arg-type] # on purpose
    "a folder": (lambda e: pausefl.simulate(e, 10, 3), r"^folder = 3: must be a path$"),  # type: ignore[arg-type] # on purpose
    "no run": (lambda _: pausefl.open(None), r"^run_dir = None: must be a path$"),  # type: ignore[arg-type] # on purpose
    "no source": (lambda _: pausefl.fit_latency(None), r"^source = None: must be a path$"),  # type: ignore[arg-type] # on purpose
    "a preset": (lambda _: pausefl.run("demo"), r"^experiment = 'demo': must be an Experiment"),  # type: ignore[arg-type] # on purpose
    "no observers": (lambda e: pausefl.run(e, observers=3), r"^observers = 3: must be a list of"),  # type: ignore[arg-type] # on purpose
    "an observer's name": (lambda e: pausefl.run(e, observers="mlflow"), r"^observers = 'mlflow': must be a list of"),  # type: ignore[arg-type] # on purpose
    "its class": (lambda e: pausefl.run(e, observers=[pausefl.Observer]), r"^observers = \[<class.*: must be a list"),  # type: ignore[list-item] # on purpose
    "an object": (lambda e: pausefl.run(e, observers=[object()]), r": must be a list of pausefl\.Observer objects$"),  # type: ignore[list-item] # on purpose
    "its method": (
        lambda e: pausefl.run(e, observers=[Deaf()]),
        r"^observers: Deaf: its `on_event` must take \(event\);",
    ),
    "a table": (lambda _: pausefl.load("demo", {"privacy": {"eta": 1}}), r'^"privacy": must .* such as privacy\.eta$'),
    "an unknown observer": (
        lambda _: pausefl.load("demo", {"experiment.observers": ["nomod:X"]}),
        r'^experiment\.observers: "nomod:X": cannot be imported',
    ),
    "a setting": (lambda _: pausefl.load("demo", "selection.m=2"), r"^overrides = 'selection\.m=2': must be values by"),
    "pairs": (lambda _: pausefl.load("demo", [("selection.m", 2)]), r"^overrides = \[\('sel"),  # type: ignore[list-item] # on purpose
    "a number": (lambda _: pausefl.load("demo", 3), r"^overrides = 3: must be values by"),  # type: ignore[arg-type] # on purpose
    "an experiment": (pausefl.load, r"^source = Experiment\(.{1,70}: must be a TOML file"),  # type: ignore[dict-item] # on purpose
    "a key": (lambda _: pausefl.load("demo", {3: 2}), r"^overrides = \{3: 2\}: must be"),  # type: ignore[dict-item] # on purpose
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_refused_in_one_line(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = WRONG[wrong]
    with pytest.raises(pausefl.ConfigError, match=message):
        call(pausefl.load("demo", SIX))
    assert not list(tmp_path.iterdir())


def test_numbers_and_arrays_of_numpy_and_paths_are_values(tmp_path: Path) -> None:
    given = {
        "selection.m": np.int64(2),
        "latency.time_scale": np.float64(0.5),
        "selection.pause": {"rho": np.array([0.25, 0.5]), "reward": "R2", "clusters": 3},
        "privacy.ledger_dir": tmp_path,
    }
    changed = pausefl.load("demo", given)
    assert (changed.selection.m, changed.latency.time_scale) == (2, 0.5)
    assert changed.selection.parameters("pause")["rho"] == [0.25, 0.5]
    assert changed.privacy.ledger_dir == str(tmp_path)


def test_a_simulation_replaces_no_results(run: pausefl.Run, tmp_path: Path) -> None:
    experiment = pausefl.load("demo", SIX)
    before = pausefl.simulate(experiment, 20, tmp_path / "one").summary
    for folder in (tmp_path / "one", run.path):
        with pytest.raises(pausefl.ConfigError, match=r"holds (other results|a run)"):
            pausefl.simulate(experiment, 30, folder)
    assert json.loads((tmp_path / "one/simulation.json").read_text()) == before


def test_a_run_is_played_in_any_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        played = threads.submit(pausefl.run, pausefl.load("demo", TINY), tmp_path / "run", progress=False)
        assert played.result().summary["rounds"] == TINY["experiment.rounds"]
