"""`import pausefl`: the public surface, and what its functions return."""

import csv
import json
import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import pausefl
from pausefl.cli import main
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.objects import labels_of
from pausefl.studies import simulations
from pausefl.studies.compare import variant_of
from pausefl.studies.simulation.outputs import setting_of
from pausefl_proto.errors import ConfigError
from pausefl_server.monitoring.noise import NOISE_REMEDY
from rigs.command import python
from rigs.experiments import SMALL, small
from rigs.refusals import refused

pytestmark = pytest.mark.usefixtures("quickly_written")

TINY = {**SMALL, "experiment.clock": "real", "latency.time_scale": 0.01}
SIX = {"clients.count": 6, "selection.m": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pausefl.Run:
    return pausefl.run(pausefl.load("demo", TINY), tmp_path_factory.mktemp("runs") / "run", progress=False)


def test_the_library_and_the_command_begin_without_large_packages() -> None:
    large = "{'asyncio', 'torch', 'grpc', 'matplotlib', 'numba', 'pandas'}"
    assert python("-c", f"import pausefl.__main__, sys; print({large} & set(sys.modules))") == "set()\n"


def test_a_run_answers_with_data(run: pausefl.Run) -> None:
    assert run.summary["rounds"] == 3
    assert list(run.rounds["round"]) == [1, 2, 3]
    assert len(run.observations) == len(run.breakdown) == len(run.releases) == 6
    assert run.rounds["total_latency_s"].iloc[-1] == pytest.approx(run.summary["total_latency_s"])
    assert run.evaluations.empty
    assert set(run.model()) == {"synthetic"}
    assert run.columns("choices")["client_id"].shape == (6,)
    assert "total_latency_s" in run._repr_html_()


def test_a_run_counts_its_clients_examples_as_they_are(tmp_path: Path) -> None:
    """Some count for less where a client states many more than the median."""
    skewed = {"workload.partition": {"kind": "dominant-label", "concentration": 0.1, "dominant_share": 0.1}}
    few = {**TINY, **skewed, "experiment.clock": "virtual", "workload.model": "mlp", "workload.step_s": 0.01}
    summary = pausefl.run(pausefl.load("demo", few), tmp_path / "run").summary
    assert summary["capped"]
    assert summary["data"] == "digits, examples: 1,200 with the clients, 297 for validation, 300 to test on"


def test_an_experiment_is_loaded_from_tables_and_from_another_and_is_not_changed(run: pausefl.Run) -> None:
    tables = {"clients": {"count": 4}, "selection.m": 2, "workload": {"model": "synthetic"}}
    told = pausefl.load(tables, ["privacy.eta=1"])
    assert (told.clients.count, told.selection.m, told.privacy.eta) == (4, 2, 1.0)
    changed = pausefl.load(told, {"clients.groups.slow.count": 3}).replace({"clients.groups.slow.count": 5})
    assert (changed.clients.count, told.clients.count, changed.workload.model) == (5, 4, "synthetic")
    assert changed.replace({"clients.groups": {}}).clients.count == 5
    with pytest.raises(ConfigError, match=r"^selection\.m = 9: must be at most clients\.count = 4$"):
        told.replace({"selection.m": 9})
    for table in (told, told.selection, told.privacy):
        with pytest.raises(ConfigError, match=r"^m = 1: an experiment does not change; Experiment\.replace makes"):
            table.m = 1
    assert repr(told) == "<Experiment: pause on synthetic, 100 rounds of 2 of 4 clients>"
    assert "100 steps of 5 updates of 4" in repr(told.replace({"server.mode": "asynchronous"}))
    noise, _, *departures = pausefl.validate(told)
    assert noise.endswith("it passes 5 times after about 12 rounds; " + NOISE_REMEDY)
    assert "clients.count: 30 in the defaults, 4 here" in departures
    steps = {"server.mode": "asynchronous", "asynchronous.concurrency": 4, "asynchronous.buffer": 2}
    slow = {"clients": "client-003", "delay": {"kind": "constant", "value_s": 9.0}}
    delays = {"latency.delay": {"kind": "constant", "value_s": 3.0}, "latency.groups": [slow]}
    for changes, said in (
        (steps, "delays of a step take 2.25 s, so 100 steps take"),
        ({"latency.mode": "total"}, "training and transfer are part of it"),
        ({"selection.over_selection": 1.0}, "the delays of a round take 3.00 s"),  # two of four answers are enough
        ({"selection.policy": "all", "server.round_timeout_s": 5.0}, "a round take 5.00 s"),
    ):
        assert said in pausefl.validate(told.replace(delays | changes))[1]


def test_a_run_goes_on_from_python(tmp_path: Path) -> None:
    experiment = small()
    pausefl.run(experiment, tmp_path / "run", progress=False, resume=True)  # begins the run, as there is none
    go_on = re.escape(f"go on with it: pausefl.run(run_dir={str(tmp_path / 'run')!r}, resume=True)")
    with pytest.raises(ConfigError, match=go_on):
        pausefl.run(experiment, tmp_path / "run", progress=False)
    longer = pausefl.run(run_dir=tmp_path / "run", resume=True, rounds=5, progress=False)
    before = longer.columns("choices")["client_id"].tolist()
    again = pausefl.run(experiment, tmp_path / "run", resume=True, rounds=5, back_to=4, progress=False)
    assert (longer.summary["rounds"], again.summary["rounds"]) == (5, 5)
    assert again.columns("choices")["client_id"].tolist() == before


def test_finished_campaigns_are_opened_and_are_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = small()
    compared = pausefl.compare(experiment, ["all"], folder=tmp_path / "compared", progress=False)
    opened: Any = pausefl.open("compared")
    assert opened.to_frame()["total_latency_s.mean"].tolist() == compared.to_frame()["total_latency_s.mean"].tolist()
    assert repr(opened) == f"<Comparison of all over 1 seed: {tmp_path / 'compared'}>"
    swept = pausefl.sweep(experiment, {"selection.m": [2]}, folder=tmp_path / "swept", progress=False)
    again: Any = pausefl.open(tmp_path / "swept")
    assert again.to_frame()["total_latency_s"].tolist() == [row["total_latency_s"] for row in swept.rows]


CELL = """
import dataclasses, pickle
import numpy as np, torch
import pausefl
from pausefl_server.selection import Policy, Selection

@dataclasses.dataclass(frozen=True)
class Base(Policy):
    def select(self, state, context):
        return Selection(np.sort(context.eligible[-self.m:]))

pausefl.load("demo", {"selection.policy": Base})

class Last(Base): ...

@dataclasses.dataclass(frozen=True)
class Even(pausefl.SampledDelay):
    mean_s: float = 0.25
    def sample(self, rng, n, first_round=1):
        return np.full(n, self.mean_s)

def net(inputs, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))

settings = {"experiment.rounds": 2, "clients.count": 3, "workload.model": lambda *shapes: net(*shapes)}
settings |= {"selection.policy": Last(m=2), "latency.delay": Even(), "experiment.clock": "virtual"}
experiment = pausefl.load("demo", settings)
pausefl.run(experiment, "run", progress=False)
pausefl.run(experiment.replace({"selection.policy": Last(m=2)}), "run", resume=True, rounds=3, progress=False)
simulation = pausefl.simulate(experiment, 5, "simulated", policies=[Last, "pause"], jobs=2)
print(simulation.to_frame()["policy"].tolist())
print(experiment)
"""


def test_what_a_script_or_a_notebook_defines_is_carried_to_the_processes(tmp_path: Path) -> None:
    shown = "['Last', 'pause']\n<Experiment: Last on digits, 2 rounds of 2 of 3 clients>\n"
    assert python("-c", CELL, cwd=tmp_path) == shown
    run = pausefl.open(tmp_path / "run")
    assert run.columns("choices")["client_id"].tolist() == ["client-001", "client-002"] * 3
    assert run.rounds["round_latency_s"].tolist() == pytest.approx([0.25] * 3, abs=0.01)
    for file, code in (("config.toml", r"'\S+'"), ("report.html", "…")):  # code may hold all data of a notebook
        carried = rf"\n\[experiment\.by_value\]\npausefl_cell_\w+ = {code}\n"
        assert re.search(carried, (run.path / file).read_text("utf-8"))
    again = pausefl.run(run_dir=run.path, resume=True, rounds=4, progress=False)  # in another process
    assert (again.summary["rounds"], again.summary["policy"]) == (4, run.summary["policy"])


def test_reading_a_run_needs_no_extra_and_what_a_run_lacks_is_one_line(run: pausefl.Run) -> None:
    code = f"""
import sys
hidden = "numba", "torch", "matplotlib", "jinja2", "prometheus_client", "safetensors", "pandas", "pausefl_offline"
sys.modules.update(dict.fromkeys(hidden))  # None: as if not installed
import pausefl
print(pausefl.open({str(run.path)!r}).summary["rounds"])
uses = lambda: pausefl.run(pausefl.load("demo"), progress=False), lambda: pausefl.replay, lambda: pausefl.fit_latency
for use in uses:
    try:
        use()
    except pausefl.ConfigError as error:
        print(error)
"""
    missing = "jinja2, matplotlib, numba, prometheus_client, safetensors, torch: not installed"
    needed = f'{missing}; pip install "pausefl[server,client,report]"'
    assert python("-c", code) == f"3\n{needed}\n" + "".join(
        f'pausefl_offline: not installed; pip install "pausefl[{extra}]"; '
        f'in a checkout: pip install ".[{extra}]" ./plugins/pausefl-offline\n'
        for extra in ("replay", "latency")
    )


def test_results_are_found_from_elsewhere(run: pausefl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose folder was moved must not count as a run that is still going on."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.path, "copy")
    opened, simulation = pausefl.open("copy"), pausefl.simulate(pausefl.load("demo", SIX), 20, "simulated")
    monkeypatch.chdir("/")
    assert opened.summary == pickle.loads(pickle.dumps(opened)).summary == run.summary
    assert (simulation.folder / "simulation.json").exists()
    opened.path.rename(tmp_path / "moved")
    with pytest.raises(pausefl.ConfigError, match=r"copy: not a run directory, it has no run\.db$"):
        _ = opened.summary
    assert pausefl.open(tmp_path / "moved").summary == run.summary


def test_what_is_no_run_or_no_table_is_refused_in_one_line(run: pausefl.Run, tmp_path: Path) -> None:
    half = pausefl.open(shutil.copytree(run.path, tmp_path / "half"))
    (half.path / "summary.json").write_text('{"rounds": ')
    (half.path / "model.safetensors").write_bytes((run.path / "model.safetensors").read_bytes()[:20])
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: pausefl.open(tmp_path), "not a run directory"),
        (lambda: run.columns("wrong"), "table 'wrong': must be one of rounds"),
        (lambda: run.model("best_model"), "best_model.safetensors: there is none"),
        (lambda: run.model("nope"), "model 'nope': must be model or best_model"),  # type: ignore[arg-type] # on purpose
        (lambda: half.summary, "summary.json: not JSON"),
        (half.model, "model.safetensors: cannot be read as a model"),
    ]
    for call, said in wrong:
        with refused(said):
            call()


def test_a_script_needs_no_guard_and_a_running_loop_is_no_obstacle(tmp_path: Path) -> None:
    code = f"""import asyncio, pausefl
experiment = pausefl.load("demo", {TINY!r})
async def main():
    return pausefl.run(experiment, "out", progress=False)
print(asyncio.run(main()).summary["rounds"])
"""
    (tmp_path / "script.py").write_text(code)
    assert python("script.py", cwd=tmp_path) == "3\n"


def test_runs_at_a_relative_path_have_a_name(run: pausefl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path)
    main(["compare", "--runs", ".", "--run-dir", str(tmp_path / "out")])
    assert list(json.loads((tmp_path / "out/campaign.json").read_text())["arguments"]["runs"]) == [run.path.name]


@pytest.mark.pictures
def test_several_policies_are_simulated_under_the_same_latencies(tmp_path: Path) -> None:
    experiment = pausefl.load("demo", SIX)
    policies = ["pause", "random"]
    a, b = ([*setting_of(variant_of(experiment, name, 2), 9).latencies_s(9)] for name in policies)
    np.testing.assert_array_equal(a, b)
    alone = pausefl.simulate(experiment, 50, tmp_path / "alone", policies=policies, seeds=3, jobs=1)
    found = pausefl.simulate(experiment, 50, tmp_path / "found", policies=policies, seeds=3, jobs=2)
    for path in (written := [*alone.folder.rglob("*.csv"), *alone.folder.rglob("*.json")]):
        assert path.read_bytes() == (found.folder / path.relative_to(alone.folder)).read_bytes()
    assert len(written) == 2 + 6 * 3
    pause, random = (found.summary["policies"][name]["total_latency_s"] for name in ("pause", "random"))
    assert pause["least"] <= pause["mean"] <= pause["greatest"] < random["least"]
    answer, caveat = found.summary["answers"]
    range_of_seeds = r"\([\d.]+ to [\d.]+ %, 3 seeds, too few for an interval\)"
    assert re.fullmatch(rf"pause waits [\d.]+ % less than random {range_of_seeds}", answer)
    assert "no network, training or accuracy was measured" in caveat
    with (found.folder / "simulations.csv").open(encoding="utf-8") as file:
        assert [(r["policy"], r["seed"]) for r in csv.DictReader(file)] == [(p, s) for p in policies for s in "123"]
    assert (found.folder / "simulations.png").stat().st_size > 10_000


def test_regrets_of_different_objectives_do_not_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(simulations, "write_picture", lambda _, draw: drawn.append(draw()))
    experiment = pausefl.load("demo", {**SIX, "selection.pause.alpha": 1.0})
    found = pausefl.simulate(experiment, 20, tmp_path / "unlike", policies=["pause", "random"])
    assert {policy: genie["alpha"] for policy, genie in found.summary["genies"].items()} == {"pause": 1, "random": 100}
    assert json.loads((found.folder / "simulations.json").read_text("utf-8"))["genies"] == found.summary["genies"]
    with (found.folder / "simulations.csv").open(encoding="utf-8") as file:
        assert [row["genie_alpha"] for row in csv.DictReader(file)] == ["1.0", "100.0"]
    said = list(simulations.in_words(found.summary))
    assert not any(" to " in line for line in said), "one seed has no range"
    assert said[3:] == [
        "regrets are of different objectives, and do not compare:",
        "pause: against a genie with alpha = 1.0, gamma = 5.0, beta = 2.0, zeta = 1.0, reward = R1",
        "random: against a genie with alpha = 100.0, gamma = 5.0, beta = 2.0, zeta = 1.0, reward = R1",
    ]
    assert drawn[0].get_supxlabel() == "\n".join(["one seed: differences may be chance", *said[3:]])


def test_what_a_cell_defined_goes_by_its_own_name_unless_two_have_it() -> None:
    one, two = "pausefl_cell_b243a67751dc:Mine", "pausefl_cell_b243a67751dd:Mine"
    assert list(labels_of([one, "own:Mine", "pause"]).values()) == ["Mine", "own:Mine", "pause"]
    assert list(labels_of([one, two]).values()) == [one, two]


def test_regrets_of_one_objective_are_shown_without_a_word_and_no_saving_where_all_are_asked(tmp_path: Path) -> None:
    """A genie does not explore, so ζ does not change its objective."""
    everybody = pausefl.load("demo", {**SIX, "selection.m": SIX["clients.count"]})
    found = pausefl.simulate(everybody, 5, tmp_path / "all", policies=["pause", "random"])
    assert "each round asks all 6 clients, so no policy can choose" in found.summary["warning"]
    assert not found.summary["answers"]
    experiment = pausefl.load("demo", {**SIX, "selection.pause.zeta": 3.0})
    found = pausefl.simulate(experiment, 20, tmp_path / "some", policies=["pause", "random"], seeds=2)
    *policies, spread, regret = simulations.in_words(found.summary)
    assert [line.partition(":")[0] for line in policies] == ["pause", "random"]
    assert spread.startswith("a mean over the seeds each")
    assert regret.startswith("regret: the reward lost against a genie")


def test_policies_with_unlike_regrets_are_not_drawn_together(tmp_path: Path) -> None:
    experiment = parse_experiment("""
clients.groups.old.count = 4
clients.groups.late = { count = 2, join_round = 4, drift = { kind = "lognormal", mean = 1.0, sd = 0.2 } }
selection = { policy = "fed-ts", m = 2 }
""")
    with refused("--policies: fed-ts is simulated by drifts and pause by latencies; simulate"):
        pausefl.simulate(experiment, 9, tmp_path / "out", policies=["fed-ts", "pause"])
    assert not (tmp_path / "out").exists()


def test_a_whole_number_of_numpy_is_one(tmp_path: Path) -> None:
    seeds: Any = np.int64(2)
    rounds: Any = np.int64(3)
    simulated = pausefl.simulate(pausefl.load("demo", SIX), rounds, tmp_path / "s", policies=["random"], seeds=seeds)
    assert simulated.summary["rounds"] == 3
    assert len([*(tmp_path / "s").glob("random-seed*")]) == 2
    swept = pausefl.sweep(small(), {"selection.m": [1]}, seeds, tmp_path / "w", progress=False)
    assert len(swept.rows) == 2


class Deaf(pausefl.Observer):
    def on_event(self) -> None:  # type: ignore[override] # on purpose
        pytest.fail("is never called")


POOL = ThreadPoolExecutor(1)
AT_ONCE = {"latency.tau_min_s": "auto", "latency.delay.kind": "none"}
KEPT = make_dataclass("Kept", [("share", float, 0.5)])
WRONG: dict[str, tuple[Callable[[pausefl.Experiment], object], str]] = {
    "rounds": (lambda e: pausefl.simulate(e, 0), r"^rounds = 0: must be a whole number of at least 1$"),
    "many rounds": (lambda e: pausefl.run(e, rounds=10**7), r"^experiment.rounds = 10000000: must be at most 1000000$"),
    "seeds": (lambda e: pausefl.simulate(e, 10, seeds=0), r"^seeds = 0: must be"),
    "a child's": (lambda e: pausefl.simulate(e.replace(AT_ONCE), 9, seeds=2, jobs=2), r"^latency\.tau_min_s = .auto."),
    "a truth for seeds": (lambda e: pausefl.compare(e, ["all"], seeds=True), r"^seeds = True: must be a whole number"),
    "trials": (lambda e: pausefl.tune(e, trials=0), r"^trials = 0: must be a whole number of at least 1$"),
    "jobs": (lambda e: pausefl.compare(e, ["random"], jobs=0), r"^jobs = 0: must be"),
    "their executor": (
        lambda e: pausefl.compare(e, ["all"], jobs=2, executor=POOL),
        r"^jobs = 2: goes without executor",
    ),
    "a fleet's": (lambda e: pausefl.compare(e, ["all"], fleet="h:1", executor=POOL), r"^executor: goes without fleet"),
    "one policy": (lambda e: pausefl.compare(e, "pause"), r"^policies = 'pause': must be a list of names and classes$"),
    "no policy's class": (lambda e: pausefl.simulate(e, 10, policies=[Path]), r"^selection\.policy = .pathlib.*:Path"),
    "one value": (lambda e: pausefl.sweep(e, {"selection.m": 3}), r"^selection\.m = 3: must be a list"),  # type: ignore[dict-item] # on purpose
    "no value": (lambda e: pausefl.sweep(e, {"selection.m": []}), r"^selection\.m = \[\]: must be a list"),
    "keys without values": (lambda e: pausefl.sweep(e, ["selection.m"]), r"^grid = \['selection\.m'\]: must be lists"),  # type: ignore[arg-type] # on purpose
    "a grid's key": (lambda e: pausefl.sweep(e, {3: [2]}), r"^grid = \{3: \[2\]\}: must be lists of values by key"),  # type: ignore[dict-item] # on purpose
    "no policy": (lambda e: pausefl.compare(e, []), r"^policies = \[\]: must name at least one$"),
    "fresh seeds": (lambda e: pausefl.tune(e, fresh_seeds="a"), r"^fresh_seeds = 'a': must be a whole number of at"),  # type: ignore[arg-type] # on purpose
    "real seeds": (lambda e: pausefl.tune(e, real_seeds="a"), r"^real_seeds = 'a': must be a whole number of at"),  # type: ignore[arg-type] # on purpose
    "one search": (lambda e: pausefl.tune(e, "selection.m=1..2"), r"^search = 'selection\.m=1\.\.2': must be a list"),
    "what is played": (lambda e: pausefl.tune(e, by="runs"), r"^by = 'runs': must be simulate or run$"),  # type: ignore[arg-type] # on purpose
    "a target": (lambda e: pausefl.tune(e, target_accuracy="high"), r"^target_accuracy = 'high': must be a number"),  # type: ignore[arg-type] # on purpose
    "draws": (lambda _: pausefl.replay("run", "all", draws=0), r"^draws = 0: must be a whole number of at least 1$"),
    "a policy's number": (lambda _: pausefl.replay("run", 3), r"^policy = 3: must be the name of a policy$"),  # type: ignore[arg-type] # on purpose
    "a path's number": (lambda _: pausefl.replay(3), r"^run_dir = 3: must be a path$"),  # type: ignore[arg-type] # on purpose
    "a run's folder": (lambda e: pausefl.run(e, 3), r"^run_dir = 3: must be a path$"),  # type: ignore[arg-type] # on purpose
    "a folder": (lambda e: pausefl.simulate(e, 10, 3), r"^folder = 3: must be a path$"),  # type: ignore[arg-type] # on purpose
    "no run": (lambda _: pausefl.open(None), r"^folder = None: must be a path$"),  # type: ignore[arg-type] # on purpose
    "no source": (lambda _: pausefl.fit_latency(None), r"^source = None: must be a path$"),  # type: ignore[arg-type] # on purpose
    "a replaced policy": (lambda e: pausefl.run(e.replace({"selection.policy": "fedat"})), "fedat.: goes with server"),
    "one to go on": (lambda e: pausefl.run(e.replace({"selection.policy": "fedat"}), "r", resume=True), "fedat.: go"),
    "a simulated one": (lambda e: pausefl.simulate(e.replace({"selection.policy": "fedat"}), 3), "fedat.: goes with s"),
    "a preset": (lambda _: pausefl.run("demo"), r"^experiment = 'demo': must be an Experiment"),  # type: ignore[arg-type] # on purpose
    "an observer's name": (lambda e: pausefl.run(e, observers="mlflow"), r"^observers = 'mlflow': must be a list of"),  # type: ignore[arg-type] # on purpose
    "its class": (lambda e: pausefl.run(e, observers=[pausefl.Observer]), r"^observers = \[<class.*: must be a list"),  # type: ignore[list-item] # on purpose
    "its method": (lambda e: pausefl.run(e, observers=[Deaf()]), r"^observers: Deaf: its `on_event` must take \(eve"),
    "a table": (lambda _: pausefl.load("demo", {"privacy": {"eta": 1}}), r'^"privacy": must .* such as privacy\.eta$'),
    "an unknown observer": (lambda e: pausefl.load(e, {"experiment.observers": ["no:X"]}), '"no:X": cannot be impo'),
    "no number": (lambda _: pausefl.load("demo", {"workload.max_steps": None}), r"^workload\.max_steps = None: cannot"),
    "no delay": (lambda _: pausefl.load("demo", {"latency.delay": None}), r"^latency\.delay = None: cannot be said in"),
    "a field": (lambda _: pausefl.load("demo", {"workload.partition": KEPT(None)}), r"^workload\.partition\.share = N"),
    "a setting": (lambda _: pausefl.load("demo", "selection.m=2"), r"^overrides = 'selection\.m=2': must be values by"),
    "pairs": (lambda _: pausefl.load("demo", [("selection.m", 2)]), r"^overrides = \[\('sel"),  # type: ignore[list-item] # on purpose
    "a number's source": (lambda _: pausefl.load(3), r"^source = 3: must be a TOML file, a preset, tables or an Exp"),  # type: ignore[arg-type] # on purpose
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
        played = threads.submit(pausefl.run, small(), tmp_path / "run", progress=False)
        assert played.result().summary["rounds"] == 3
