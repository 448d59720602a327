"""SIGTERM ends every process of a run in order and within a bound; the exit status says that a signal ended it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.popen_spawn_posix import Popen
from pathlib import Path
from typing import Any

import psutil
import pytest

from pausefl.cli import main
from pausefl.experiment.experiment import load_experiment
from pausefl.runtime import fleet
from pausefl.runtime.evaluator.plan import evaluator_plan
from pausefl.runtime.evaluator.process import OwnEvaluator
from pausefl_process.ending import DRAIN_S, INTERRUPTED, signals_to
from pausefl_proto.wire import Vector
from pausefl_server import service
from pausefl_server.records import Evaluation
from pausefl_server.selection.policies.baselines import All
from rigs.command import Background, command_line, rounds_in, run, synthetic
from rigs.federation import clients, federation
from rigs.waiting import wait_for


async def test_a_slow_evaluator_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More evaluations are waiting than can be done before the run must end."""
    monkeypatch.setattr(service, "_LAST_EVALUATIONS_S", 0.1)
    begun = asyncio.Event()

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        begun.set()
        await asyncio.Event().wait()
        return ()

    async with federation(tmp_path, All(1), evaluate=evaluate, evaluation_every=1, rounds=1000) as run, clients() as c:
        c.start_all("ab", await run.port)
        await run.event("round")
        await begun.wait()
        signal.raise_signal(signal.SIGTERM)
        result = await run.finished()
    assert (result.outcome, result.final_evaluations, result.best_evaluations) == ("interrupted", (), ())


STUCK = """
import os, sys, time
from contextlib import nullcontext, suppress
from pausefl_process import ending
from pausefl.runtime.processes.outbox import posted_output

ending.DRAIN_S = 0.5
if "unread" in sys.argv:  # nobody takes what it says, and the pipe is full
    os.set_blocking(2, False)
    with suppress(BlockingIOError):
        while True:
            os.write(2, bytes(4096))
    os.set_blocking(2, True)
with posted_output() if "posted" in sys.argv else nullcontext(), ending.sigterm_as_interrupt():
    said = "ready"
    while True:
        try:
            print(said, flush=True)
            while True:
                time.sleep(0.1)  # a wait without end would miss a signal that comes just before it
        except KeyboardInterrupt:
            said = "asked"
"""


def stuck(*arguments: str) -> "subprocess.Popen[str]":
    """A process that ignores requests to end, and that has just got one."""
    command = [sys.executable, "-c", STUCK, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    return process


@pytest.mark.parametrize("arguments", [(), ("posted",)])
def test_what_does_not_end_in_time_is_ended(arguments: tuple[str, ...]) -> None:
    """It says so, even if its output is written by threads that end with it."""
    with stuck(*arguments) as process:
        said, complaint = process.communicate(timeout=30)
    assert (process.returncode, said) == (INTERRUPTED, "asked\n")
    assert complaint == "pausefl: not at its end 0.5 s after it was asked to end: ended at once\n"


def test_what_nobody_listens_to_is_ended_as_well() -> None:
    with stuck("unread") as process:
        assert process.wait(30) == INTERRUPTED


IMPORTING = """
import os, signal, sys

class Importing:
    def find_spec(self, name, *_):
        if name == "pausefl.runtime.forks":
            exec("signal.raise_signal(int(os.environ['ENDED_BY']))")  # as in a module that defines a dataclass

sys.meta_path.insert(0, Importing())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_is_ended_while_it_imports_its_modules_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    (tmp_path / "sitecustomize.py").write_text(IMPORTING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("ENDED_BY", str(int(number)))
    done = run("validate", "--list")
    assert (done.returncode, done.stderr) == (INTERRUPTED, "pausefl: interrupted\n")


@pytest.mark.end_to_end
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_waiting_for_evaluation_ends(tmp_path: Path, background: Background, number: signal.Signals) -> None:
    settings = ("--set", "evaluation.address=127.0.0.1:1", "--set", "evaluation.connect_timeout_s=300.0")
    process = background("server", "demo", "--run-dir", tmp_path / "run", *settings)
    output = tmp_path / "output"
    wait_for(lambda: b"waiting up to 300 s" in output.read_bytes(), "the wait", running=process)
    process.send_signal(number)
    assert process.wait(DRAIN_S) == INTERRUPTED
    assert output.read_text().splitlines()[-1] == "pausefl: interrupted"


@pytest.mark.end_to_end
@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["heard", "ignored as by sh's &"])
def test_a_client_that_looks_for_its_server_can_be_ended(tmp_path: Path, background: Background, ctrl_c: Any) -> None:
    who = (synthetic(tmp_path), "--server", "127.0.0.1:1", "--slot", "0", "--ledger-dir", tmp_path / "ledgers")
    with signals_to(ctrl_c, signal.SIGINT):  # which the process inherits
        process = background("client", *who, "--set", "metrics.client_port=0")
    wait_for(lambda: b'"metrics"' in (tmp_path / "output").read_bytes(), "the client", running=process)
    process.terminate()
    assert process.wait(DRAIN_S) == INTERRUPTED
    assert (tmp_path / "output").read_text().splitlines()[-1] == "pausefl: interrupted"


@pytest.mark.end_to_end
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_whose_server_is_ended_before_it_listens_was_interrupted(
    tmp_path: Path, background: Background, number: signal.Signals
) -> None:
    """Ctrl-C goes to every process. One Ctrl-C prints one line, even while the server imports its modules."""
    process = background("run", synthetic(tmp_path, rounds=100_000), "--run-dir", tmp_path / "run")

    def server_imports() -> bool:
        servers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in command_line(child)]
        return any("numpy" in file.path for server in servers for file in server.memory_maps())

    wait_for(server_imports, "the server's process", running=process)
    if number == signal.SIGTERM:
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == INTERRUPTED
    *_, asked, ended = (tmp_path / "output").read_text().splitlines()
    assert asked.endswith("finishing; once more ends it at once")
    assert ended == f"pausefl: interrupted; go on with: pausefl run --resume {tmp_path / 'run'}"


@pytest.mark.end_to_end
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_while_it_starts_its_server_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """The process has started, but its `Process` object does not know it yet."""
    launch: Callable[..., None] = vars(Popen)["_launch"]

    def launch_and_be_ended(self: Popen, process: object) -> None:
        launch(self, process)
        signal.raise_signal(number)

    monkeypatch.setattr(Popen, "_launch", launch_and_be_ended)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(synthetic(tmp_path, rounds=100_000)), "--run-dir", str(tmp_path / "run")])
    assert ended.value.code == INTERRUPTED
    assert capfd.readouterr().err.splitlines()[-1].startswith("pausefl: interrupted; go on with: ")
    assert not [c for c in psutil.Process().children() if "spawn_main" in command_line(c)]


async def test_an_evaluator_that_was_not_started_needs_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Popen, process: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Popen, "_launch", interrupted)
    evaluator = OwnEvaluator(evaluator_plan(load_experiment("demo")), lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        await evaluator._start()
    await evaluator.aclose()


@pytest.mark.slow
def test_a_run_whose_server_is_stopped_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that is stopped reacts to no signal but SIGKILL."""
    monkeypatch.setattr(fleet, "DRAIN_S", 0.0)
    run_dir = tmp_path / "run"

    def stop() -> None:
        wait_for(lambda: rounds_in(run_dir) >= 1, "round 1")
        (server,) = (c for c in psutil.Process().children() if "spawn_main" in command_line(c))
        server.suspend()
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(SystemExit) as ended:
        main(["run", str(synthetic(tmp_path, rounds=100_000)), "--run-dir", str(run_dir)])
    stopping.join()
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == f"pausefl: interrupted; go on with: pausefl run --resume {run_dir}\n"
