"""Processes start even if the fork server is killed at that moment. Each has an environment of its own."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.forks import forked_client, forked_run, spawned
from pausefl.runtime.plan import plan_of
from pausefl.runtime.processes import environment
from pausefl.runtime.processes.environment import added_to_environment, environment_of_children, grpc_defaults
from pausefl.runtime.processes.forking import ForkedProcess, forget_fork_server
from pausefl.runtime.processes.lifetime import begin_to_import, in_children, start
from pausefl_proto.errors import ConfigError, PauseflError
from rigs.forked import tell_variable
from rigs.waiting import wait_for


def tell_masked(told: "Connection[Any, Any]") -> None:
    """Send the signals that this process blocks."""
    told.send(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


class KilledWhenAsked:
    """Stops the fork server before each of the first `times` requests, and kills it after it has received them."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._ask = forkserver.connect_to_new_process

    def __call__(self, fds: list[int]) -> tuple[int, int]:
        if self.left == 0:
            return self._ask(fds)
        self.left -= 1
        forkserver.ensure_running()
        pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # mypy does not see it
        os.kill(pid, signal.SIGSTOP)
        ends = self._ask(fds)
        os.kill(pid, signal.SIGKILL)
        return ends


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_is_started_leaves_signals_to_all_processes_to_who_started_it(method: str) -> None:
    """Signals are blocked from the first instant: imports may take seconds before the process can set a handler."""
    context: Any = multiprocessing.get_context(method)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # the old server has inherited another signal mask
    assert told_by(context.Process, tell_masked) == {signal.SIGINT, signal.SIGHUP, signal.SIGUSR2}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_fork_server_killed_while_it_is_asked_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = KilledWhenAsked(2)
    monkeypatch.setattr(forkserver, "connect_to_new_process", killed)
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    start(process)
    process.join()
    assert (killed.left, process.exitcode) == (0, 0)


def test_a_fork_server_that_ends_every_time_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "connect_to_new_process", KilledWhenAsked(99))
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid, name="pausefl-client-000")
    with pytest.raises(PauseflError, match="pausefl-client-000: the fork server ended 5 times"):
        start(process)


def test_a_child_whose_start_was_interrupted_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: BaseProcess) -> None:
        start(process)
        raise KeyboardInterrupt

    monkeypatch.setattr("pausefl.runtime.processes.lifetime.start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        [*in_children(lambda *of: spawned("child", *of), 1, signal.sigwait, [{signal.SIGUSR1}])]
    assert not multiprocessing.active_children()


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    """Neither does the command `pausefl` import from it: its sys.path does not start with that directory."""
    (tmp_path / "decimal.py").write_text("raise SystemExit('mine')")
    settings = ["experiment.rounds=2", "workload.model=synthetic", "privacy.enabled=false"]
    words = ["run", "demo", "--virtual", "--run-dir", "r", *(word for each in settings for word in ("--set", each))]
    command = [str(Path(sys.executable).with_name("pausefl")), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r/summary.json").exists()


def test_what_cannot_be_imported_ends_no_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise AttributeError('of another version')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    forget_fork_server()
    assert told_after(["broken_library"]) == []


def test_a_forked_process_forks_by_a_server_of_its_own() -> None:
    """It inherits the parent's record of the parent's own fork server."""
    assert told_after([]) == []
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=tell_forked, args=(theirs,))
    child.start()
    assert ours.recv() == []
    child.join()


def test_a_folder_too_long_for_a_socket_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the virtual clock then start without the fork server."""
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert isinstance(forked_run("run", os.sync, needs_torch=False), SpawnProcess)
    with pytest.raises(ConfigError, match=r"TMPDIR = .*tttt: for a socket, 70 bytes at most"):
        start(forked_client("client", os.sync, needs_torch=False))


def test_forked_processes_draw_their_own_from_numpys_shared_generator() -> None:
    """A user's code may draw from it without a seed."""
    assert len({told_by(forked("numpy"), tell_draw) for _ in range(2)}) == 2


def test_forked_processes_order_sets_of_texts_as_an_evaluator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise classes that a data set numbers by a set of names would be others for clients and evaluator."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # Dask's workers leave one
    forget_fork_server()
    assert not told_by(forked(), tell_whether_sets_have_an_order_of_their_own)


def forked(*imports: str) -> Callable[..., BaseProcess]:
    """(target, args) -> a process of the fork server, which imports these modules."""
    return lambda target, args: ForkedProcess("telling", imports, target, args)


def told_by(make: Callable[..., BaseProcess], tell: Callable[..., None], *arguments: object) -> Any:
    """What `tell` sends from a process that `make` makes."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = make(target=tell, args=(theirs, *arguments))
    start(process)
    theirs.close()
    told = ours.recv()
    process.join()
    return told


def told_after(imports: list[str]) -> list[int]:
    """The signals that a forked process blocks, apart from those that are sent to all processes."""
    return sorted(told_by(forked(*imports), tell_masked) - {signal.SIGINT, signal.SIGHUP, signal.SIGUSR2})


def tell_forked(told: "Connection[Any, Any]") -> None:
    told.send(told_after([]))


def tell_whether_sets_have_an_order_of_their_own(told: "Connection[Any, Any]") -> None:
    told.send(sys.flags.hash_randomization)


def tell_draw(told: "Connection[Any, Any]") -> None:
    told.send(float(np.random.rand()))  # noqa: NPY002 - it is what users may do


@pytest.mark.parametrize("refusal", [BlockingIOError(11, "no process more"), BrokenPipeError(32, "it has ended")])
def test_a_run_without_a_server_says_why(refusal: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise refusal

    monkeypatch.setattr("pausefl.runtime.fleet.start", refuse)
    experiment = parse_experiment("[workload]\nmodel = 'synthetic'\n[privacy]\nenabled = false\n")
    with pytest.raises(type(refusal), match=refusal.strerror):
        Fleet(plan_of(experiment, "run"), tmp_path).run(lambda _: None)


def test_a_fork_server_whose_folder_is_gone_is_begun_anew() -> None:
    """A cleaner of temporary files may remove that folder."""
    assert told_after([]) == []
    shutil.rmtree(Path(forkserver._forkserver._forkserver_address).parent)  # type: ignore[attr-defined]  # mypy does not see it
    assert told_after([]) == []


def test_a_fork_server_that_was_given_up_is_waited_for() -> None:
    assert told_after([]) == []
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # mypy does not see it
    forget_fork_server()
    wait_for(lambda: not psutil.pid_exists(pid), "the end of the server that was given up")


def test_threads_that_begin_a_fork_server_together_leave_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    forget_fork_server()
    barrier = threading.Barrier(4)

    def begin(_: int) -> None:
        barrier.wait(20)
        begin_to_import([])

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(begin, range(4))] == [None] * 4
    assert "PYTHONSAFEPATH" not in os.environ


OPEN_A_SERVER = """
import grpc
server = grpc.server(None)
server.add_insecure_port("127.0.0.1:0")
server.start()
"""


@pytest.fixture(autouse=True)
def as_a_caller_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRPC_DNS_RESOLVER", "GRPC_VERBOSITY", "GRPC_EXPERIMENTS"):
        monkeypatch.delenv(name, raising=False)


def said_by_grpc(**variables: str) -> str:
    """What gRPC writes to standard error when a server is opened with these environment variables."""
    command = [sys.executable, "-c", OPEN_A_SERVER]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return done.stderr


def test_grpc_knows_what_it_is_asked_for() -> None:
    assert grpc_defaults().keys() == {"GRPC_DNS_RESOLVER", "GRPC_VERBOSITY", "GRPC_EXPERIMENTS"}
    assert said_by_grpc(**grpc_defaults()) == ""
    assert "Unknown experiment: unheard_of" in said_by_grpc(GRPC_VERBOSITY="ERROR", GRPC_EXPERIMENTS="unheard_of")


def test_a_later_grpc_polls_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later gRPC may not know the names of the experiments, and would print a line in every process."""
    monkeypatch.setattr(environment, "version", lambda _: "1.86.0.dev0")
    assert "GRPC_EXPERIMENTS" not in grpc_defaults()
    monkeypatch.setattr(environment, "version", lambda _: "1.73.1")
    assert "GRPC_EXPERIMENTS" in grpc_defaults()


def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    assert grpc_defaults() == {"GRPC_DNS_RESOLVER": "native"}  # which knows all names that this machine knows
    assert environment_of_children()["GRPC_VERBOSITY"] == "INFO"


def test_what_is_added_is_gone_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFORE", "before")
    with pytest.raises(OSError, match="at once"), added_to_environment(BEFORE="within", NEW="new"):
        assert (os.environ["BEFORE"], os.environ["NEW"]) == ("within", "new")
        raise OSError("it ends at once")
    assert (os.environ["BEFORE"], os.environ.get("NEW")) == ("before", None)


@pytest.mark.parametrize("make", [forked(), multiprocessing.get_context("spawn").Process], ids=["fork", "spawn"])
def test_processes_of_a_run_begin_with_it_and_their_caller_does_not(make: Callable[..., BaseProcess]) -> None:
    assert told_by(make, tell_variable, "GRPC_EXPERIMENTS") == grpc_defaults()["GRPC_EXPERIMENTS"]
    assert "GRPC_EXPERIMENTS" not in os.environ
