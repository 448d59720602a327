"""Places that cannot be read or written, and damaged files: one line that names each, and never a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pausefl.cli import main
from pausefl.results.reading import read_run
from pausefl_proto.errors import ConfigError
from rigs.command import synthetic

MISSING = "No such file or directory"
Damage = Callable[[Path], object]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a command ends with, and status 2."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2, line
    return line.removeprefix("pausefl: ")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    main(["run", str(synthetic(folder, rounds=4)), "--virtual", "--run-dir", str(folder / "run")])
    return folder / "run"


@pytest.mark.parametrize("command", ["simulate demo --rounds 3 --run-dir", "sweep demo --set selection.m=2 --run-dir"])
def test_a_command_whose_results_cannot_be_written_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, *command.split(), "/dev/null/x").startswith("/dev/null/x: cannot be ")


def test_a_figure_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pings.csv").write_text("client,time,seconds\na,1,0.1\na,2,0.2\n")
    figure = tmp_path / "no/such.png"
    said = complaint(capsys, "fit-latency", tmp_path / "pings.csv", "--figure", figure)
    assert said == f"{figure}: cannot be read or written ({MISSING})"


def test_an_estimate_that_cannot_be_written_is_named(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "replay", run_dir, "--policy", "random", "--draws", 1, "--out", "/dev/null/x")
    assert said == "/dev/null/x: cannot be read or written (Not a directory)"


@pytest.mark.parametrize("command", ["validate", "fit-latency"])
def test_a_file_that_is_not_there_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    with pytest.raises(ConfigError) as refused:
        assert not read_run(damaged).groups
    assert str(refused.value).startswith(f"{damaged / 'config.toml'}: {message}")


def test_a_negative_number_of_clients_is_no_client_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "certs", tmp_path / "certs", "localhost", "--clients=-1")
    assert said.startswith("--clients -1: is no name")
    assert not (tmp_path / "certs").exists()
