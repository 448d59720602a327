"""Fixtures for all tests: a tap on the wire, certificates, telemetry, a coordinator, a store, a fake docker, runs."""

import os

from pausefl.runtime.processes.environment import grpc_defaults

os.environ.update(grpc_defaults())  # as in every process of a run; must precede the import of gRPC

import gc
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from pausefl.runtime.processes.logs import VARIABLE
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.selection.base import Policy
from pausefl_server.settings import PrivacySettings
from pausefl_server.storage.store import Store
from rigs.authority import Authority
from rigs.command import PAUSEFL, Background
from rigs.coordinator import CoordinatorRig, MakeRig
from rigs.databases import open_ledgers
from rigs.docker import docker_of_ours
from rigs.settings import server_settings
from rigs.wiretap import Wiretap

# No deadline: how long an example takes depends on the machine's load. The examples are the same in every run.
settings.register_profile("pausefl", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("pausefl")

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores SIGHUP, and started processes would inherit that


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without looking for garbage, which takes a quarter of that time; later, leave them out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def wiretap() -> Iterator[Wiretap]:
    """A relay between clients and a server that records their messages."""
    tap = Wiretap()
    yield tap
    tap.close()


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    """The environment in which `make` finds a fake docker command."""
    return docker_of_ours(tmp_path)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The certificate authority that clients and server trust."""
    return _authority(tmp_path_factory, "ours")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority that neither clients nor server trust."""
    return _authority(tmp_path_factory, "strange")


def _authority(tmp_path_factory: pytest.TempPathFactory, name: str) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command here to make certificates with")
    return Authority(tmp_path_factory.mktemp("certificates") / name)


@pytest.fixture(autouse=True)
def own_log_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo log settings after each test. A command called in this process would pass them on to later processes."""
    monkeypatch.setenv(VARIABLE, "")


@pytest.fixture(autouse=True)
def closed_ledgers() -> Iterator[None]:
    """Close ledgers after each test. The garbage collector would do it later, with a warning in an unrelated test."""
    with open_ledgers:
        yield


@pytest.fixture
def quickly_written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures without rendering them, which would take most of the time; tests marked `pictures` render."""
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr("pausefl.results.report.style.rendered", lambda *_: b"<svg ></svg>")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """(name, text) -> the file of an importable module, as a user may write it, in the test's folder."""

    def write(name: str, text: str) -> Path:
        file = tmp_path / f"{name}.py"
        file.write_text(text, "utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return file

    return write


@pytest.fixture(scope="session")
def make_telemetry() -> Callable[..., Telemetry]:
    """(privacy, model_size, other settings...) -> a server's telemetry before round 1."""

    def make(privacy: PrivacySettings | None, model_size: int = 1, **changes: Any) -> Telemetry:
        settings = server_settings(model_size, **{"privacy": privacy, "rounds": 10, "tau_min_s": None, **changes})
        return Telemetry(settings, clock=lambda: 1000.0)

    return make


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MakeRig]:
    """(policy, other settings...) -> a coordinator with its real store. No client is connected yet."""
    with ExitStack() as closing:

        def make(policy: Policy | None = None, **changes: Any) -> CoordinatorRig:
            made = CoordinatorRig(tmp_path, policy, **changes)
            closing.callback(made.close)
            return made

        yield make


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an ended run wait a moment, not 3 s, for clients that the test never lets answer."""
    monkeypatch.setattr("pausefl_server.rounds.coordinator._DRAIN_S", 0.1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The log of a run, in the test's folder."""
    with closing(Store(tmp_path / "run.db")) as store:
        yield store


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    """Start `pausefl` in a process group of its own, which is killed after the test."""
    started = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        output = (tmp_path / "output").open("wb")
        process = subprocess.Popen(
            [*PAUSEFL, *map(str, arguments)], stdout=output, stderr=output, start_new_session=True
        )
        output.close()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
