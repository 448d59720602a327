"""Output that nobody reads: a reader that goes, as `| head -1` does, or a process that was started without any."""

import json
import os
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from pausefl.outcomes import FAILED
from rigs.command import PAUSEFL, rounds_in, synthetic
from rigs.ports import free_port
from rigs.waiting import wait_for

pytestmark = pytest.mark.end_to_end


def read_one_line(*arguments: object, of: bytes = b"") -> tuple[bytes, int, bytes]:
    """The first line of a command's output that holds `of`; its exit status and complaints once its reader is gone."""
    with subprocess.Popen([*PAUSEFL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = next(line for line in process.stdout if of in line)
        process.stdout.close()
        complaint = process.stderr.read()
        return line, process.wait(60), complaint


@pytest.mark.parametrize("json", [True, False])
def test_a_run_ends_in_order_when_its_reader_goes(tmp_path: Path, json: bool) -> None:
    config, run_dir = synthetic(tmp_path, rounds=100_000), tmp_path / "run"
    line, status, complaint = read_one_line(
        "run", config, "--run-dir", run_dir, *(["--json"] if json else []), of=b'"round"' if json else b"round "
    )
    assert line.startswith(b"{") == json
    assert (status, complaint) == (FAILED, b"")
    assert (run_dir / "summary.json").exists(), "the server was asked to end, not killed"


def test_output_that_no_process_reads_is_no_traceback() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run([*PAUSEFL, "validate", "--list"], stdout=theirs, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (FAILED, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["validate", "demo"], ["validate", "--list"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*PAUSEFL, *arguments], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == FAILED
    assert done.stderr == b"pausefl: its output or a connection failed (No space left on device)\n"


@pytest.mark.slow
def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    config = synthetic(tmp_path, rounds=2)
    done = subprocess.run(
        [*PAUSEFL, "run", config, "--virtual", "--run-dir", tmp_path / "run"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u03b5" in done.stdout
    assert (tmp_path / "run/report.html").exists()


def in_shell(how: str, *command: object) -> list[str]:
    """A command as a shell starts it, with what stands after or before it."""
    return ["sh", "-c", how, "sh", *map(str, command)]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_that_is_started_without_output_is_played(tmp_path: Path, closed: str) -> None:
    """Its processes failed, and said no more than that their log was empty."""
    command = in_shell(f'"$@" {closed}', *PAUSEFL, "run", synthetic(tmp_path, rounds=3), "--run-dir", tmp_path / "run")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 3
    assert "Traceback" not in (tmp_path / "run/server.log").read_text()


@pytest.mark.parametrize("is_open", [True, False], ids=["a reader that goes", "closed from the start"])
def test_a_server_and_its_clients_go_on_without_readers(tmp_path: Path, is_open: bool) -> None:
    """A server ended with a traceback of 90 lines, and left no summary."""
    config, run_dir = synthetic(tmp_path, rounds=100, clients=2), tmp_path / "run"
    how, port = '"$@"' if is_open else '"$@" >&-', free_port()
    serve = in_shell(how, *PAUSEFL, "server", config, "--run-dir", run_dir, "--set", f"server.port={port}")
    join = in_shell(how, *PAUSEFL, "client", config, "--server", f"127.0.0.1:{port}", "--ledger-dir", tmp_path)
    with (tmp_path / "complaints").open("wb") as complaints:
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=complaints)
        clients = [
            subprocess.Popen([*join, "--client-id", f"client-00{i}"], stderr=complaints, stdout=subprocess.PIPE)
            for i in range(2)
        ]
        assert server.stdout is not None
        if is_open:
            assert server.stdout.readline()
        for process in (server, *clients):
            assert process.stdout is not None
            process.stdout.close()
        assert [process.wait(60) for process in (server, *clients)] == [0, 0, 0]
    assert json.loads((run_dir / "summary.json").read_text())["stopped_because"] == "all rounds done"
    assert "Traceback" not in (tmp_path / "complaints").read_text()


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_evaluator_goes_on_without_a_reader(tmp_path: Path) -> None:
    serve = [*PAUSEFL, "evaluator", "demo", "--set", f"evaluation.port={(port := free_port())}"]
    with subprocess.Popen(in_shell('exec "$@" >&-', *serve), stderr=subprocess.PIPE) as evaluator:
        wait_for(lambda: is_listening(port), "the evaluator to listen", running=evaluator)
        evaluator.send_signal(signal.SIGHUP)
        assert evaluator.stderr is not None
        assert evaluator.stderr.read() == b""
    assert evaluator.returncode == 0


@pytest.mark.parametrize("is_ignored", [False, True], ids=["hangup", "nohup"])
def test_a_closed_terminal_ends_a_run_in_order_unless_nohup(tmp_path: Path, is_ignored: bool) -> None:
    """It was a kill: no summary, not a word."""
    config, run_dir = synthetic(tmp_path, rounds=100_000), tmp_path / "run"
    nohup = 'trap "" HUP; ' if is_ignored else ""
    command = in_shell(f'{nohup}exec "$@"', *PAUSEFL, "run", config, "--run-dir", run_dir)
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        wait_for(lambda: rounds_in(run_dir) >= 5, "five rounds", running=process)
        os.killpg(process.pid, signal.SIGHUP)  # as a terminal does: to all processes at once
        if is_ignored:
            played = rounds_in(run_dir)
            wait_for(lambda: rounds_in(run_dir) > played + 5, "further rounds", running=process)
            process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 130
    reason = json.loads((run_dir / "summary.json").read_text())["stopped_because"]
    assert reason == f"stopped by {'SIGTERM' if is_ignored else 'SIGHUP'}"
