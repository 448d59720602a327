"""The wheel and a package with a policy, installed outside the repository, and uses of libraries' private names."""

import json
import os
import pkgutil
import re
import sqlite3
import subprocess
import sys
import tomllib
import zipfile
from contextlib import closing, suppress
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from pausefl_process.plugins import is_library
from rigs.command import python, synthetic
from rigs.places import ROOT, copied_sources, pip, source_files
from rigs.waiting import wait_for

PACKAGES = ("pausefl", "pausefl_client", "pausefl_process", "pausefl_proto", "pausefl_server")
PLUGINS = ("examples/plugin/", *(f"plugins/{each.name}/" for each in (ROOT / "plugins").iterdir()))
# Only packages of the environment are used: nothing is downloaded.
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", *OFFLINE, "--wheel-dir", folder, copied_sources(folder / "source"))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, a package that adds a policy, and the plug-ins."""
    folder = tmp_path_factory.mktemp("installed")
    sources = tmp_path_factory.mktemp("plugins")
    plugins = [copied_sources(sources, each) for each in PLUGINS]
    pip(sys.executable, "install", *OFFLINE, "--target", folder, wheel, *plugins)
    return folder


@pytest.mark.parametrize("plugin", [each.name for each in (ROOT / "plugins").iterdir()])
def test_a_plug_in_is_published_and_measured_and_its_errors_are_not_taken_for_those_of_a_users_own_code(
    plugin: str,
) -> None:
    package, project = plugin.replace("-", "_"), tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert is_library(package, "")
    assert package in project["tool"]["coverage"]["run"]["source_pkgs"]
    assert package in (ROOT / ".github/workflows/publish.yml").read_text("utf-8")
    assert any(plugin in needed for needed in project["project"]["optional-dependencies"].values())


def command(installed: Path, cwd: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `pausefl` as installed there, with the libraries of the tests' environment."""
    words, environment = [sys.executable, "-m", "pausefl", *map(str, arguments)], with_packages(installed)
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def with_packages(installed: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed)}


@pytest.mark.end_to_end
def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    sources = {name.partition("/")[2] for name in source_files()}
    wanted = {name for name in sources if name.partition("/")[0] in PACKAGES}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted
    for ending in ("presets/demo.toml", ".html", ".css", ".js", ".sql", ".proto", ".pyi", "py.typed", "digits.csv.gz"):
        assert any(name.endswith(ending) for name in held), ending


@pytest.mark.end_to_end
def test_the_installed_command_is_the_wheels_and_an_installed_package_adds_a_policy_that_plays(
    installed: Path, tmp_path: Path
) -> None:
    code = "import pausefl, pausefl_server; print(pausefl.__file__, pausefl_server.__file__)"
    assert python("-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).count(str(installed)) == 2
    listed = command(installed, tmp_path, "validate", "--list")
    assert listed.returncode == 0, listed.stderr
    assert "  demo\n" in listed.stdout
    assert re.search(r"^  equal-turns +package pausefl-equal-turns 0\.1\.0$", listed.stdout, re.MULTILINE)
    experiment = synthetic(tmp_path, rounds=6, clients=4, m=2)
    settings = ("--set", "selection.policy=equal-turns", "--run-dir", tmp_path / "run")
    done = command(installed, tmp_path, "run", experiment, *settings)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text("utf-8"))
    assert (summary["policy"], summary["rounds"]) == ("equal-turns", 6)


@pytest.mark.end_to_end
def test_a_search_that_was_killed_goes_on_by_the_installed_package(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, few = synthetic(tmp_path, rounds=6, clients=4, m=2), ("--trials", "8", "--seeds", "1")
    words = ("-m", "pausefl", "tune", experiment, *few, "--fresh-seeds", "2", "--run-dir", "found")
    # Compiling the kernels for this folder takes 15 s, which only `make test-package` does.
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    command_line, environment = [sys.executable, *map(str, words)], with_packages(installed)
    with subprocess.Popen(command_line, cwd=tmp_path, env=environment) as search:
        wait_for(lambda: n_tried(tmp_path / "found/study.db") > 2, "three trials", running=search)
        search.kill()
    resumed = command(installed, tmp_path, "tune", "--resume", "found")
    assert resumed.returncode == 0, resumed.stderr
    assert "Pareto front on fresh seeds 2 to 3" in resumed.stdout
    assert n_tried(tmp_path / "found/study.db") == 8


def n_tried(study: Path) -> int:
    """The number of trials of a study that have ended."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{study}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM trials WHERE state IN ('COMPLETE', 'PRUNED')").fetchone()[0])
    return 0


PRIVATE = {
    "multiprocessing.forkserver._forkserver": "multiprocessing.forkserver:_forkserver",
    "PollerCompletionQueue._handle_events": "grpc._cython.cygrpc:PollerCompletionQueue._handle_events",
    "submitit.SlurmExecutor._valid_parameters": "submitit:SlurmExecutor._valid_parameters",
    "torch.nn.modules.batchnorm._NormBase": "torch.nn.modules.batchnorm:_NormBase",
    "torch.nn.modules.dropout._DropoutNd": "torch.nn.modules.dropout:_DropoutNd",
    "torch._foreach_copy_": "torch:_foreach_copy_",
    "torch._foreach_zero_": "torch:_foreach_zero_",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_there(name: str) -> None:
    assert pkgutil.resolve_name(PRIVATE[name]) is not None
    assert f"`{name}`" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_a_fork_server_can_be_given_up_and_a_dataclass_makes_its_init_of_a_text() -> None:
    server = pkgutil.resolve_name(PRIVATE["multiprocessing.forkserver._forkserver"])
    assert {f"_forkserver_{name}" for name in ("alive_fd", "pid", "address")} <= set(vars(server))
    assert vars(make_dataclass("Made", ["field"]))["__init__"].__code__.co_filename == "<string>"
