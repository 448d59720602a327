"""The `pausefl` command as a user types it: its output, its files, its exit status."""

import contextlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import pausefl
from pausefl.cli import main, parser
from pausefl.cli.experiments import summary_table
from pausefl.cli.registries import REGISTRIES
from pausefl.experiment.toml_source import preset_names
from pausefl.results.reading import read_run
from pausefl.terminal_table import plain_console
from pausefl_server.selection import POLICIES
from rigs.command import PAUSEFL, played, python, query, run, summary_of, synthetic
from rigs.experiments import play
from rigs.refusals import complaint, refused
from rigs.reports import summary
from rigs.waiting import free_port

Printed = pytest.CaptureFixture[str]
NETEM = ("--set", "latency.injection=netem", "--set", "clients.per_process=1")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return synthetic(tmp_path, rounds=4, clients=3)


def test_presets_are_listed_and_each_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    main(["validate", "--list"])
    presets, _, others = capsys.readouterr().out.partition("policies\n")
    listed = presets.split()[1:]
    assert listed == preset_names()
    for registry in REGISTRIES:
        assert re.search(rf"^  {next(iter(registry))} +built in$", others, re.MULTILINE)
    assert {"demo", "small_mnist", "small_cifar", "large_mnist"} <= set(listed)
    for name in listed:
        main(["validate", name, "--set", "workload.model=synthetic"])  # whose data need not be on this machine
        assert "[experiment]" in capsys.readouterr().out


def test_what_validate_prints_is_the_same_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["validate", "demo", "--set", "selection.policy=random", "--set", "experiment.seed=7"])
    printed = capsys.readouterr().out
    again = tmp_path / "again.toml"
    again.write_text(printed)
    main(["validate", str(again)])
    # An experiment file's folder is on the Python path; a preset has no folder.
    beside = f'python_path = [\n    "{tmp_path}",\n]'
    expected, found = printed.replace("# python_path is not set", beside), capsys.readouterr().out
    # The comments list what differs from the preset; a file of its own does not name the preset.
    listed = [[line for line in text.splitlines() if line[:1] != "#"] for text in (found, expected)]
    assert listed[0] == listed[1]
    assert 'policy = "random"' in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "needs either CONFIG or --resume RUN_DIR"),
        (["run", "demo", "--resume", "nowhere"], "pausefl: CONFIG and --resume RUN_DIR: cannot go together"),
        (["compare"], "pausefl: needs one of CONFIG, --runs or --resume DIR"),
        (["run", "demo", "--run-dir", ""], "argument --run-dir: is empty; name a folder; see pausefl run --help"),
        (["run", "demo", "--run-dir", "begun", "--set", "selection.m=31"], "selection.m = 31: must be at most clients"),
        (["client", "--server=a:1", "--client-id=b", "--ledger-dir="], "--ledger-dir: is empty; name a folder"),
        (["run", "demmo"], '"demmo" is neither a .toml file nor a preset; did you mean demo?'),
        (["simulat", "demo"], "simulat: no such command; did you mean simulate?; see pausefl --help"),
        (["sweep", "demo", "--seds", "3"], "unrecognized arguments: --seds 3; did you mean --seeds?; see pausefl"),
        (["run", "demo", "other"], "unrecognized arguments: other; see pausefl run --help"),
        (["run", "demo", "--policy", "all"], "arguments: --policy all; --set KEY=VALUE changes the experiment; see"),
        (["run", "demo", "-q", "-v"], "argument -v/--verbose: not allowed with argument -q/--quiet"),
        (["run", "demo", "--rounds", "9"], "--rounds 9: goes with --resume; a new run takes --set experiment.rounds"),
        (["run", "--resume", "nowhere"], "nowhere: is not a run directory"),
        (["validate", "demo", "--set", "experiment.observers=['x']"], 'experiment.observers = "x": must be one of'),
        (["compare", "demo", "--policies", ","], "--policies: needs at least one name"),
        (["compare", "demo", "--policies", "pause,paus"], 'selection.policy = "paus": did you mean'),
        (["compare", "demo", "--policies", "oort"], 'add privacy.disclose = ["loss"]'),
        (["compare", "demo", "--policies=all,random", "--set=privacy.ledger_dir=x"], "2 runs: go without privacy"),
        (["simulate", "demo", "--rounds", "0"], "--rounds 0: must be at least 1"),
        (["bench", "sprint"], 'bench "sprint": must be one of'),
        (["bench", "rounds", "--payload-bytes=-5"], "workload.model_bytes = -8: must be at least 4"),
        (["data", "mnist9"], 'workload.dataset = "mnist9": did you mean mnist'),
        (["new", "mine", "--client-column", "device"], "--client-column: goes with --fleet"),
        (["server", "demo", "--resume"], "--resume: needs --run-dir"),
        (["client", "demo", "--server", "127.0.0.1:1", "--client-id", "me"], "client id 'me': must be one of"),
        (["client", "demo", "--server", "127.0.0.1:1", "--slot", "x"], "--slot x: must be auto or a number from 0"),
        (["client", "demo", "--server", "127.0.0.1:1", "--slot", "9" * 5000], "9: must be auto or a number from 0"),
        (["certs", "certs", "localhost", "--clients", "9" * 5000], "clients.count = '999"),
        (["client", "demo", "--server", "127.0.0.1:1", "--slot", "30"], "--slot 30: must be at most 29"),
        (["client", "demo", "--server", "h:1", "--slot", "0", "--count", "0"], "--count 0: must be at least 1"),
        (["client", "demo", "--server", "h:1", "--client-id", "a", "--count", "2"], "--count: goes with --slot"),
        (["client", "demo", "--server", "h:1", "--slot", "0", *NETEM], 'latency.injection = "netem": goes with'),
        (["client", "--server", "::1:50051", "--client-id", "a"], "HOST:PORT, an IPv6 address in brackets"),
        (["server", "demo", "--run-dir", "/proc/run"], "--run-dir /proc/run: cannot be written (No such file"),
        (["client", "--server", "h:1", "--slot", "0"], "--slot: needs CONFIG"),
        (["client", "demo", "--own", "a.toml", "--server", "h:1", "--client-id", "a"], "--own: goes without CONFIG"),
        (["server", "demo", *NETEM], 'latency.injection = "netem": goes with pausefl run'),
        (["run", "--resume", "r", "--virtual"], "--virtual: cannot go with --resume"),
        (["compare", "--resume", "c", "--jobs", "2", "--seeds=1"], "--seeds: cannot go with --resume"),
        (["compare", "--resume", "c", "--polic", "all"], "--policies: cannot go with --resume"),
        (["compare", "--runs", "a", "b", "--set", "a.b=1"], "--set: cannot go with --runs"),
        (["compare", "demo", "--policies", "all", "--labels", "a"], "--labels a: goes with --runs"),
        (["sweep", "--resume", "s", "--set", "selection.m=1"], "--set: cannot go with --resume"),
        (["tune", "--resume", "t", "--trials", "50"], "only --real-seeds, --jobs, --on, --on-option can"),
        (["audit", ".", "--set", "privacy.eta=9"], "--set: cannot go with RUN_DIR"),
        (["certs", "certs", "localhost", "--clients=-1"], "--clients -1: is no name"),
        (["certs", "certs", "localhost", "--clients=1000001"], "clients.count = 1000001: must be at most 1000000"),
    ],
)
def test_bad_input_is_said_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message.removeprefix("pausefl: ") in complaint(capsys, *arguments)
    assert not [path for name in ("run.db", "begun", "certs") for path in tmp_path.rglob(name)]


def test_a_folder_that_is_gone_or_that_no_file_can_name_is_said(tmp_path: Path, capsys: Printed) -> None:
    folder = tmp_path / os.fsdecode(b"latin \xff")
    assert "latin \\udcff': is not UTF-8; rename it" in complaint(capsys, "report", folder)
    folder.mkdir()
    with contextlib.chdir(folder):
        with refused("is not UTF-8; rename it"):
            pausefl.load("demo")
        folder.rmdir()
        assert complaint(capsys, "report", "/runs/one") == "the working folder was deleted; change to another one"


def test_paths_are_printed_as_they_are(tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dashed = str(tmp_path / "-r")  # "./-r" without its dot would be taken for an option where it is used
    assert parser().parse_args(["run", "--resume", "./-r"]).resume == dashed
    for run_dir, policy, said in (("r[alpha]/:x:", "pause", "in the genie's own"), ("r[/alpha]", "all", "no regret: ")):
        main(["simulate", "demo", "--rounds", "20", "--run-dir", run_dir, "--set", f"selection.policy={policy}"])
        printed = capsys.readouterr().out
        assert f"figure: {run_dir}/simulation.png\n" in printed
        assert said in printed
        assert "total latency" in printed
        assert (tmp_path / run_dir / "simulation.png").stat().st_size > 0


def test_a_summary_shows_what_failed_as_it_was_said(capsys: Printed) -> None:
    said = "no file [/data/x]"
    failed = summary(data=None, final_accuracy=None, stopped_because=said, failures=[{"jobs": 2, "reason": said}])
    plain_console().print(summary_table(failed))
    assert capsys.readouterr().out.count(said) == 2


@pytest.mark.end_to_end
@pytest.mark.slow
def test_a_comparison_writes_its_table_and_figure(tiny: Path, tmp_path: Path) -> None:
    words = ("--policies", "pause,random", "--seeds", "2", "--run-dir", tmp_path / "out")
    done = played("compare", tiny, *words, timeout_s=300)
    runs = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert runs == {"pause-seed1", "pause-seed2", "random-seed1", "random-seed2"}
    for name in ("comparison.png", "comparison.html", "comparison.json"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert "pause" in done.stdout
    assert "report.html" in run("report", tmp_path / "out/pause-seed1", "--csv").stdout
    assert (tmp_path / "out/pause-seed1/csv/breakdown.csv").read_text().count("\n") == 1 + 4 * 2

    lost = [tmp_path / "out" / name for name in ("comparison.html", "comparison.png", "random-seed2/report.html")]
    for path in lost:
        path.unlink(missing_ok=True)  # a run's report is drawn when it is asked for
    main(["report", str(tmp_path / "out")])
    assert all(path.stat().st_size > 0 for path in lost)


@pytest.mark.end_to_end
def test_the_two_ends_run_alone(tiny: Path, tmp_path: Path) -> None:
    """`pausefl server` and a `pausefl client` per client, as in containers. The last client gets no experiment file."""
    serve = [*PAUSEFL, "server", str(tiny), "--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        events = (json.loads(line) for line in server.stdout)
        port = next(event["port"] for event in events if event["kind"] == "ready")
        join = [*PAUSEFL, "client", "--server", f"127.0.0.1:{port}", "--client-id"]
        clients = [
            subprocess.Popen([*join, f"client-{k:03}", *config], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
            for k, config in enumerate(([str(tiny)], [str(tiny)], []))
        ]
        kinds = [event["kind"] for event in events]
        assert server.wait(60) == 0
        logged = "".join(client.communicate(timeout=30)[1] for client in clients)
    assert [client.returncode for client in clients] == [0, 0, 0]
    assert kinds[-1] == "finished"
    assert summary_of(tmp_path / "run")["rounds"] == 4
    answered = query(tmp_path / "run", "SELECT client_id, CAST(round AS TEXT) FROM observations ORDER BY 1, round")
    assert sorted(re.findall(r" (client-\d+): round (\d+): ok", logged)) == answered, "a client logs a line a round"
    assert {path.name for path in (tmp_path / "ledgers").glob("*.db")} == {f"client-{k:03}.db" for k in range(3)}


@pytest.mark.end_to_end
def test_a_killed_server_goes_on_with_its_run(tiny: Path, tmp_path: Path, capsys: Printed) -> None:
    """A restarted container runs the same command again. Its three clients, one slot, wait for it meanwhile."""
    port = free_port()
    settings = ["--set", f"server.port={port}", "--set", "workload.train_s=0.2"]
    serve = [*PAUSEFL, "server", str(tiny), "--run-dir", str(tmp_path / "run"), "--resume", *settings]
    join = [*PAUSEFL, "client", str(tiny), "--server", f"127.0.0.1:{port}", "--slot", "0", "--count", "3", *settings]
    with subprocess.Popen(join, cwd=tmp_path) as client:
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout is not None
            assert any(json.loads(line)["kind"] == "round" for line in killed.stdout)
            killed.kill()
        again = subprocess.run(serve, capture_output=True, text=True, timeout=150, check=True)
        assert client.wait(30) == 0
    played = [event["round"] for event in map(json.loads, again.stdout.splitlines()) if event["kind"] == "round"]
    assert played == list(range(played[0], 5))
    assert played[0] > 1
    other = complaint(capsys, *serve[len(PAUSEFL) :], "--set", "selection.m=3")
    assert "holds the run of another experiment" in other


def test_a_shell_can_complete_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    assert "--log-json" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize("fleet", [False, True])
def test_a_new_project_passes_its_own_test(fleet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes also after its folder has been moved."""
    monkeypatch.delitem(sys.modules, "own", raising=False)  # another test's, whose folder stays on the path
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / "own.py").exists()])
    (tmp_path / "here").mkdir()
    rows = "".join(f"phone-{k},1,{k}00\n" for k in range(1, 5))
    (tmp_path / "here/fleet.csv").write_text(f"device,at,ms\n{rows}phone-1,2,lost\n")
    columns = ["--client-column=device", "--column=ms", "--unit=ms", "--time-column=at", "--lost=lost", "--timeout-s=2"]
    options = ["--fleet", str(tmp_path / "here/fleet.csv"), *columns, "--policy", "pause"] if fleet else []
    main(["new", str(tmp_path / "here/mine"), *options])
    (tmp_path / "here").rename(tmp_path / "there")
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "there/mine"), cwd=tmp_path)
    experiment = pausefl.load(tmp_path / "there/mine/experiment.toml")
    assert experiment.selection.policy == ("pause" if fleet else "own:Own")
    assert experiment.client_ids[0] == ("phone-1" if fleet else "client-000")
    own = runpy.run_path(str(tmp_path / "there/mine/own.py"))["Own"](m=1)
    told = [SimpleNamespace(client_id=name, latency_s=2.0, teaches=name != "stopped") for name in ("a", "stopped", "b")]
    record = SimpleNamespace(observations=told[:2], misses=told[2:])
    assert own.observe({}, record, None) == {"a": (2.0, 1), "b": (2.0, 1)}, "all that teaches, misses too"
    with pytest.raises(SystemExit, match="2"):
        main(["new", str(tmp_path / "there/mine")])


def test_a_new_project_takes_each_policy_that_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in POLICIES.built_in:
        main(["new", str(tmp_path / f"with {policy}"), "--policy", policy])
        assert capsys.readouterr().out.endswith(f"run it: pausefl run '{tmp_path}/with {policy}/experiment.toml'\n")
        assert pausefl.load(tmp_path / f"with {policy}/experiment.toml").selection.policy == policy
    assert "did you mean pause" in complaint(capsys, "new", tmp_path / "misspelt", "--policy", "puase")


def test_a_fleet_that_no_project_could_play_is_refused(tmp_path: Path, capsys: Printed) -> None:
    for device, said in (
        ("my phone", "clients.ids: 'my phone' is no name; "),
        ("a", "selection.m = 2: must be at most"),
    ):
        (tmp_path / "fleet.csv").write_text(f"client,seconds\n{device},0.1\n")
        assert f"fleet.csv: {said}" in complaint(capsys, "new", tmp_path / "mine", "--fleet", tmp_path / "fleet.csv")
        assert not (tmp_path / "mine").exists()


# -- places that cannot be read or written, and damaged files

MISSING = "No such file or directory"
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    play(pausefl.load(synthetic(folder, rounds=4), {"experiment.clock": "virtual"}), folder / "run")
    return folder / "run"


def test_unwritable_results_are_named(run_dir: Path, tmp_path: Path, capsys: Printed) -> None:
    for command in ("simulate demo --rounds 3 --run-dir", "sweep demo --set selection.m=2 --run-dir"):
        assert complaint(capsys, *command.split(), "/dev/null/x").startswith("/dev/null/x: cannot be ")
    (tmp_path / "pings.csv").write_text("client,time,seconds\na,1,0.1\na,2,0.2\n")
    said = complaint(capsys, "fit-latency", tmp_path / "pings.csv", "--figure", tmp_path / "no/such.png")
    assert said == f"{tmp_path}/no/such.png: cannot be read or written ({MISSING})"
    said = complaint(capsys, "replay", run_dir, "--policy", "random", "--draws", 1, "--out", "/dev/null/x")
    assert said == "/dev/null/x: cannot be read or written (Not a directory)"
    (tmp_path / "found/front.csv").mkdir(parents=True)
    few = ("--trials", 1, "--seeds", 1, "--fresh-seeds", 2, "--set", "experiment.rounds=2")
    said = complaint(capsys, "tune", "demo", *few, "--run-dir", tmp_path / "found")
    assert said == f"{tmp_path}/found/front.csv: cannot be read or written (Is a directory)"
    for command in ("validate", "fit-latency"):
        assert complaint(capsys, command, "no/such.toml") == f"no/such.toml: cannot be read ({MISSING})"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_text("[clients.groups.a]\ncount = 'x'"), "is damaged (1 validation error"),
        (lambda file: file.write_text("no toml"), "is damaged (Expected '=' after a key"),
        (lambda file: file.write_text("clients = 3"), "is damaged ("),
        (lambda file: file.write_bytes(b"\xff\xfe"), "cannot be read (line 1, column 1 is no UTF-8"),
    ],
    ids=["a wrong value", "no TOML", "no table", "no text"],
)
def test_a_run_whose_configuration_is_damaged(damage: Damage, message: str, run_dir: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "run"
    shutil.copytree(run_dir, damaged)
    damage(damaged / "config.toml")
    with refused(f"{damaged / 'config.toml'}: {message}"):
        assert not read_run(damaged).groups
