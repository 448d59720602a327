"""A run directory belongs to one run, one configuration and one process at a time."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pausefl.cli import main
from pausefl.cli.arguments import folder as as_folder
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.in_force import in_force
from pausefl.runtime import run_dir as run_dir_module
from pausefl.runtime.run_dir import made_run_dir, refuse_clients_elsewhere, resume_command, stored_experiment
from pausefl_audit.audit import check_ledgers
from pausefl_client.privacy.ledger import verified_spend
from pausefl_proto.errors import ConfigError
from pausefl_server.records import RoundRecord
from pausefl_server.storage.store import Store
from rigs.command import PAUSEFL, Background, command_line, is_alive, rounds_in, summary_of
from rigs.refusals import complaint
from rigs.waiting import wait_for

pytestmark = pytest.mark.end_to_end

SYNTHETIC = """
clients.count = 3
selection = { policy = "random", m = 2 }
latency.delay.kind = "none"
workload.model = "synthetic"
metrics.enabled = false
"""

PLAYED = {"experiment.rounds": 3, "workload.train_s": 0.0}


def experiment(changes: Mapping[str, Any] | None = None, rounds: int = 3, train_s: float = 0.0) -> Experiment:
    played = {"experiment.rounds": rounds, "workload.train_s": train_s}
    return parse_experiment(SYNTHETIC, {**played, **(changes or {})})


def config_in(folder: Path, **keys: Any) -> Path:
    path = folder / "synthetic.toml"
    path.write_text(experiment(**keys).to_toml())
    return path


def begin(run_dir: Path, of: Experiment, *, resume: bool = False) -> None:
    with made_run_dir(in_force(of), run_dir, resume=resume):
        pass


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    return partial(complaint, capsys)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was killed after some rounds."""
    folder = tmp_path_factory.mktemp("killed")
    words: list[str | Path] = [*PAUSEFL, "run", config_in(folder, rounds=100_000), "--run-dir", folder / "run"]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: rounds_in(folder / "run") > 2, "some rounds", running=process)
        os.killpg(process.pid, signal.SIGKILL)
    return folder / "run"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "config.toml: is empty; restore"),
        (lambda path: path.unlink(), "config.toml: cannot be read (No such file or directory); restore"),
        (lambda path: path.write_text(path.read_text().replace("m = 2", "m = 1")), "config.toml: was changed since"),
    ],
    ids=["empty", "missing", "changed"],
)
def test_a_run_goes_on_with_no_other_configuration(
    killed: Path, tmp_path: Path, refused: Refused, damage: Callable[[Path], object], message: str
) -> None:
    run_dir = shutil.copytree(killed, tmp_path / "run")
    damage(run_dir / "config.toml")
    serve = "server", config_in(tmp_path, rounds=100_000), "--resume", "--run-dir", run_dir
    for arguments in (("run", "--resume", run_dir), serve):
        assert message in refused(*arguments)
    for name in ("run.db", "server.log", "ledgers/client-000.db"):
        assert (run_dir / name).read_bytes() == (killed / name).read_bytes()


@pytest.fixture
def served(tmp_path: Path, background: Background) -> Path:
    """The directory of a run that `pausefl server` began and that waits for clients on other machines."""
    run_dir = tmp_path / "run"
    server = background("server", config_in(tmp_path), "--run-dir", run_dir)
    wait_for(lambda: b'"ready"' in (tmp_path / "output").read_bytes(), "the server", running=server)
    server.kill()
    server.wait()
    return run_dir


def test_a_run_of_clients_elsewhere_does_not_go_on_here(served: Path, tmp_path: Path, refused: Refused) -> None:
    """Local clients would take the ids of absent remote ones and spend their ε a second time."""
    go_on = f"pausefl server CONFIG --resume --run-dir {served}"
    line = refused("run", "--resume", served, "--rounds", 9)
    assert line.startswith(f"{served}: was served to clients elsewhere")
    assert line.endswith(f"go on with: {go_on}")
    assert stored_experiment(served).experiment.rounds == 3
    for command in ("run", "server"):
        line = refused(command, config_in(tmp_path), "--run-dir", served)
        assert line.endswith(f"holds a run; choose another folder, or go on with it: {go_on}")


def test_a_server_that_cannot_start_leaves_a_run_where_it_was(killed: Path, tmp_path: Path, refused: Refused) -> None:
    """The run can be resumed with the command that began it, and by no other once a client has released an update."""
    run_dir, config = shutil.copytree(killed, tmp_path / "run"), config_in(tmp_path, rounds=100_000)
    line = refused("server", config, "--run-dir", run_dir)
    assert line.endswith(f"or go on with it: pausefl run --resume {run_dir}")
    line = refused("server", config, "--resume", "--run-dir", run_dir)
    assert line.endswith(f"ledgers lie in it; go on with: pausefl run --resume {run_dir}")
    (run_dir / "run.db").unlink()  # without rounds, too
    with pytest.raises(ConfigError, match="ledgers lie in it"):
        refuse_clients_elsewhere(run_dir, served=True)
    shutil.rmtree(run_dir)
    begin(run_dir, experiment(rounds=100_000))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"server.port={taken.getsockname()[1]}"
        assert "Address already in use" in refused("server", config, "--resume", "--run-dir", run_dir, "--set", port)
    assert resume_command(run_dir) == f"pausefl run --resume {run_dir}"


def test_a_run_in_use_is_refused_and_names_every_epsilon_spent_once_stopped(
    tmp_path: Path, background: Background, refused: Refused
) -> None:
    """SIGTERM comes while clients train; what they charge is in the log and counts in the summary."""
    config = config_in(tmp_path, rounds=100_000, train_s=0.2)
    first = background("run", config, "--run-dir", tmp_path / "run")
    wait_for(lambda: rounds_in(tmp_path / "run"), "a round", running=first)
    serve = "server", config, "--resume", "--run-dir", tmp_path / "run"
    for arguments in (("run", "--resume", tmp_path / "run"), serve):
        assert f"run directory {tmp_path / 'run'}: another process is using it" in refused(*arguments)
    first.terminate()
    assert first.wait(60) == 130
    ledgers = [verified_spend(path)[1] for path in (tmp_path / "run/ledgers").glob("*.db")]
    assert 0 < max(ledgers) <= summary_of(tmp_path / "run")["max_epsilon_spent"]
    assert "count more" not in check_ledgers(tmp_path / "run")


def test_the_server_keeps_the_lock_of_a_killed_run_and_no_process_outlives_it(
    tmp_path: Path, background: Background, refused: Refused
) -> None:
    first = background("run", config_in(tmp_path, rounds=100_000), "--run-dir", tmp_path / "run")
    wait_for(lambda: rounds_in(tmp_path / "run") >= 2, "two rounds", running=first)
    (server,) = (p for p in psutil.Process(first.pid).children() if "spawn_main" in command_line(p))
    family = psutil.Process(first.pid).children(recursive=True)
    assert len(family) >= 4, "a server and three clients at least"
    server.suspend()
    first.kill()
    first.wait()
    try:
        assert "another process is using it" in refused("run", "--resume", tmp_path / "run")
    finally:
        server.resume()
    wait_for(lambda: not any(is_alive(process) for process in family), "every process to end", 20)


def held_in(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Bytes and modification time of each file, without the files (-wal, -shm) that a reader of a database leaves."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(("-wal", "-shm")))
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


@pytest.mark.usefixtures("quickly_written")
def test_a_finished_run_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", str(config_in(tmp_path)), "--run-dir", str(tmp_path / "run")])
    before, printed = held_in(tmp_path / "run"), capsys.readouterr().out
    main(["run", "--resume", str(tmp_path / "run")])
    assert held_in(tmp_path / "run") == before
    assert "3 with 3 clients, 2 a round; all rounds done" in capsys.readouterr().out
    assert "all rounds done" in printed


def test_an_extension_that_was_cut_short_leaves_a_readable_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter, longer = (experiment(rounds=rounds) for rounds in (3, 9))
    begin(tmp_path / "run", shorter)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_dir_module, "write_durably", die)
        with pytest.raises(KeyboardInterrupt):
            begin(tmp_path / "run", longer, resume=True)
    assert in_force(stored_experiment(tmp_path / "run")) == in_force(shorter)
    with made_run_dir(in_force(longer), tmp_path / "run", resume=True):
        assert in_force(stored_experiment(tmp_path / "run")) == in_force(longer)


def test_nothing_but_more_rounds_extends_a_run_and_a_refusal_takes_them_back(tmp_path: Path) -> None:
    begin(run_dir := tmp_path / "run", experiment())
    with pytest.raises(ConfigError, match=r"experiment.rounds = 2: the run in .* goes to 3 already, give it more"):
        begin(run_dir, experiment(rounds=2), resume=True)
    longer = in_force(experiment(rounds=9))
    with closing(Store(run_dir / "run.db")) as store:
        for played, is_idle, rounds in ((0, True, 3), (3, True, 3), (0, False, 9)):  # else a job of round 4 may be out
            if played:
                store.commit_round(RoundRecord(played, 1, ()))
            with pytest.raises(ConfigError, match="refused"), made_run_dir(longer, run_dir, resume=True):
                store.save_late_events(4, [], is_end=is_idle)
                raise ConfigError("refused")
            assert stored_experiment(run_dir).experiment.rounds == rounds


def test_the_keys_in_which_a_run_differs_are_named_and_the_configuration_is_written_once(tmp_path: Path) -> None:
    begin(tmp_path / "run", experiment({"selection.pause.alpha": 10.0}))
    before = (tmp_path / "run/config.toml").stat()
    begin(tmp_path / "run", stored_experiment(tmp_path / "run"), resume=True)
    after = (tmp_path / "run/config.toml").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    differences = (
        'another experiment: aggregation.optimizer.kind is "sgd" there, "fedadam" here; selection.m is 2 there, 1 here;'
        " selection.pause.alpha is 10.0 there, not set here$"
    )
    with pytest.raises(ConfigError, match=differences):
        begin(tmp_path / "run", experiment({"selection.m": 1, "aggregation.optimizer": "fedadam"}), resume=True)


ELSEWHERE = """
clients.connect_timeout_s = 5.0
metrics = { enabled = true, port = 9464 }
server = { host = "0.0.0.0", port = 50051, insecure = true }
tls = { ca = "new/ca.pem", certificate = "new/server.pem", key = "new/server.key" }
admission = { tokens = "new/tokens.txt", token = "new/token", clients = ["client-000", "client-001"] }
[evaluation]
address = "evaluator:50052"
host = "0.0.0.0"
port = 50052
metrics_port = 9466
insecure = true
answer_timeout_s = 5.0
connect_timeout_s = 5.0
"""


def test_a_run_goes_on_elsewhere(tmp_path: Path) -> None:
    """Another address, renewed certificates and other timeouts do not change what is played."""
    began = experiment()
    begin(tmp_path / "run", began)
    elsewhere = parse_experiment(SYNTHETIC.replace("metrics.enabled = false", ELSEWHERE), PLAYED)
    with made_run_dir(in_force(elsewhere), tmp_path / "run", resume=True):
        assert in_force(stored_experiment(tmp_path / "run")) == in_force(began)


def test_commands_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-120000")
    folders = [run_dir_module.new_run_dir("demo", None) for _ in range(3)]
    assert [folder.name.removeprefix("demo-20260101-120000") for folder in folders] == ["", "-2", "-3"]
    assert all(folder.is_dir() for folder in folders)
    assert {Path(as_folder(each)).name for each in (".", "runs/..")} == {tmp_path.name}, "runs are called by it"


def test_a_command_that_is_refused_leaves_no_default_folder(tmp_path: Path) -> None:
    arguments = ["compare", "demo", "--policies", "paus"]
    assert subprocess.run([*PAUSEFL, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, check=False).returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_input_that_is_refused_takes_nothing_away_that_was_not_made_for_it(tmp_path: Path) -> None:
    """Files put there while the run was tried stay as well."""
    (tmp_path / "mine").mkdir()
    for run_dir in (tmp_path / "mine", tmp_path / "a/b/c"):
        with pytest.raises(ConfigError, match="bad input"), made_run_dir(in_force(experiment()), run_dir):
            (run_dir / "server.log").touch()
            raise ConfigError("bad input")
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    with pytest.raises(ConfigError, match="bad input"), made_run_dir(in_force(experiment()), tmp_path / "mine"):
        (tmp_path / "mine/notes.txt").write_text("keep me")
        raise ConfigError("bad input")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_second_run_leaves_the_first_ones_directory_alone(tmp_path: Path, background: Background) -> None:
    """Both begin at once, so neither finds the other's log."""
    config = config_in(tmp_path, rounds=5)
    both = [background("run", config, "--run-dir", tmp_path / "run") for _ in range(2)]
    assert sorted(process.wait(120) for process in both) == [0, 2]
    assert summary_of(tmp_path / "run")["rounds"] == 5
