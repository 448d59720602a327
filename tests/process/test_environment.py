"""What the processes of a run find in their environment, and that it is nobody else's."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from pausefl.runtime.processes import environment
from pausefl.runtime.processes.environment import added_to_environment, environment_of_children, grpc_defaults
from pausefl.runtime.processes.forking import ForkedProcess
from pausefl.runtime.processes.lifetime import start

OPEN_A_SERVER = """
import grpc
server = grpc.server(None)
server.add_insecure_port("127.0.0.1:0")
server.start()
"""


@pytest.fixture(autouse=True)
def as_a_caller_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRPC_VERBOSITY", "GRPC_EXPERIMENTS"):
        monkeypatch.delenv(name, raising=False)


def said_by_grpc(**variables: str) -> str:
    """What gRPC writes when a server is opened in this environment."""
    command = [sys.executable, "-c", OPEN_A_SERVER]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return done.stderr


def test_grpc_knows_what_it_is_asked_for() -> None:
    assert grpc_defaults().keys() == {"GRPC_VERBOSITY", "GRPC_EXPERIMENTS"}
    assert said_by_grpc(**grpc_defaults()) == ""
    assert "Unknown experiment: unheard_of" in said_by_grpc(GRPC_VERBOSITY="ERROR", GRPC_EXPERIMENTS="unheard_of")


def test_a_later_grpc_polls_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not know the names any more, and would print a line in every process."""
    monkeypatch.setattr(environment, "version", lambda _: "1.86.0.dev0")
    assert "GRPC_EXPERIMENTS" not in grpc_defaults()
    monkeypatch.setattr(environment, "version", lambda _: "1.73.1")
    assert "GRPC_EXPERIMENTS" in grpc_defaults()


def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    assert grpc_defaults() == {}
    assert environment_of_children()["GRPC_VERBOSITY"] == "INFO"


def test_what_is_added_is_gone_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFORE", "before")
    with pytest.raises(OSError, match="at once"), added_to_environment(BEFORE="within", NEW="new"):
        assert (os.environ["BEFORE"], os.environ["NEW"]) == ("within", "new")
        raise OSError("it ends at once")
    assert os.environ["BEFORE"] == "before"
    assert "NEW" not in os.environ


def _tell(found: "Connection[str, str]") -> None:
    found.send(os.environ.get("GRPC_EXPERIMENTS", ""))


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_processes_of_a_run_begin_with_it_and_their_caller_does_not(kind: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process: BaseProcess = spawn.Process(target=_tell, args=(theirs,))
    if kind == "fork":
        process = ForkedProcess("test", (), _tell, (theirs,))
    start(process)
    assert ours.recv() == grpc_defaults()["GRPC_EXPERIMENTS"]
    process.join()
    assert "GRPC_EXPERIMENTS" not in os.environ
