"""Real runs that are interrupted or killed, or whose output is not read: what they leave and how they are resumed."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest

from pausefl.outcomes import FAILED
from pausefl_process.ending import ask_to_end
from rigs.command import PAUSEFL, Background, is_alive, kill_group, played, query, rounds_in, run, summary_of, synthetic
from rigs.waiting import free_port, wait_for

pytestmark = pytest.mark.end_to_end


@pytest.mark.parametrize(("number", "clock"), [(signal.SIGINT, "real"), (signal.SIGTERM, "virtual")])
def test_an_interrupt_saves_all(tmp_path: Path, background: Background, number: signal.Signals, clock: str) -> None:
    options = "--run-dir", tmp_path / "run", "--set", f"experiment.clock={clock}"
    process = background("run", synthetic(tmp_path, rounds=100_000), *options)
    wait_for(lambda: rounds_in(tmp_path / "run") >= 5, "five rounds")
    os.kill(process.pid, number)
    assert process.wait(30) == 130
    summary = summary_of(tmp_path / "run")
    assert summary["stopped_because"] == f"stopped by {number.name}"
    assert summary["rounds"] == rounds_in(tmp_path / "run") >= 5
    assert (tmp_path / "run/report.html").exists() == (number == signal.SIGINT)
    said = (tmp_path / "output").read_text()
    assert (f"report: pausefl report {tmp_path / 'run'} writes it" in said) == (number == signal.SIGTERM)
    last = said.splitlines()[-1]
    assert last == f"pausefl: stopped by {number.name}; go on with: pausefl run --resume {tmp_path / 'run'}"


def test_a_server_that_has_ended_is_asked_in_vain() -> None:
    """A signal may come while the fleet ends its last processes."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ask_to_end(ended.pid, signal.SIGINT)


def test_the_second_interrupt_ends_it_at_once(tmp_path: Path, background: Background) -> None:
    process = background("run", synthetic(tmp_path, rounds=5, train_s=60.0), "--run-dir", tmp_path / "run")
    wait_for(lambda: len(list((tmp_path / "run/ledgers").glob("*.db"))) == 2, "both clients")
    group = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    wait_for(lambda: b"finishing" in (tmp_path / "output").read_bytes(), "the first interrupt to be taken")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(40) == 130
    wait_for(lambda: not any(is_alive(child) for child in group), "every process to end", 40)


@pytest.mark.timeout(400)  # four fleets are started
@pytest.mark.slow
def test_an_interrupted_comparison_keeps_what_is_finished(tmp_path: Path, background: Background) -> None:
    """Ctrl-C goes to every process. No further run begins, the table has the finished runs, --resume repeats none."""
    config, folder = synthetic(tmp_path, rounds=30, clients=2, m=1, train_s=0.05), tmp_path / "compared"
    process = background("compare", config, "--policies", "random,all,ucb", "--run-dir", folder)
    wait_for(lambda: rounds_in(folder / "all-seed1") >= 2, "the second run", 120, running=process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert f"go on with: pausefl compare --resume {folder}".encode() in (tmp_path / "output").read_bytes()
    assert (folder / "comparison.json").exists()
    assert not (folder / "ucb-seed1").exists()
    first = (folder / "random-seed1/summary.json").read_bytes()
    assert json.loads(first)["rounds"] == 30

    played("compare", "--resume", folder, timeout_s=240)
    assert (folder / "random-seed1/summary.json").read_bytes() == first
    assert [rounds_in(folder / f"{policy}-seed1") for policy in ("all", "ucb")] == [30, 30]
    assert "runs have" not in json.loads((folder / "comparison.json").read_text())["warning"]


YOGI = {"aggregation.rule": "median", "aggregation.optimizer.kind": "fedyogi"}
BARE = {"privacy.enabled": False, "selection.m": 3, **YOGI}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, BARE], ids=["private", "bare"])
def test_a_killed_run_is_resumed_as_it_was(tmp_path: Path, background: Background, keys: dict[str, object]) -> None:
    """Choices equal those of an uninterrupted run. Without noise, models are equal bit by bit, momentum included."""
    config = synthetic(tmp_path, rounds=200, clients=4, more={"selection.policy": "random", **keys})
    process = background("run", config, "--run-dir", tmp_path / "run")
    wait_for(lambda: rounds_in(tmp_path / "run") >= 20, "twenty rounds")
    kill_group(process)
    assert rounds_in(tmp_path / "run") < 200
    played("run", "--resume", tmp_path / "run")
    played("run", config, "--run-dir", tmp_path / "whole")
    chosen = "SELECT round, chosen FROM rounds ORDER BY round"
    assert query(tmp_path / "run", chosen) == query(tmp_path / "whole", chosen)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert (models[0] == models[1]) == bool(keys)
    spent = "SELECT client_id, max(participation) FROM leakage GROUP BY 1"
    ours, theirs = dict(query(tmp_path / "run", spent)), dict(query(tmp_path / "whole", spent))
    # A release that was under way at the kill is charged, and never refunded.
    assert len(theirs) == (0 if keys else 4)
    assert all(theirs[c] <= ours[c] <= theirs[c] + 2 for c in theirs)


@pytest.mark.slow
def test_a_run_killed_while_it_plays_rounds_again_has_not_ended(tmp_path: Path, background: Background) -> None:
    """Once its summary was that of the rounds taken back."""
    folder = tmp_path / "run"
    assert run("run", synthetic(tmp_path, rounds=2, clients=2, m=1, train_s=1.0), "--run-dir", folder).returncode == 0
    process = background("run", "--resume", folder, "--back-to", 1)
    wait_for(lambda: rounds_in(folder) == 1, "the last round to be taken back", running=process)
    kill_group(process)
    assert not (folder / "summary.json").exists()
    assert run("run", "--resume", folder).returncode == 0
    assert query(folder, "SELECT round, attempt FROM rounds ORDER BY round") == [(1, 1), (2, 2)]
    assert summary_of(folder)["rounds"] == 2


VICTIM = {
    "clients.count": 2,
    "clients.groups.original.count": 1,
    "clients.groups.victim.count": 1,
    "selection.policy": "all",
    "metrics.enabled": False,
}
COMING = {"clients.count": 3, "clients.groups.late.count": 1, "clients.groups.late.join_round": 3}


def process_of(client_id: str, run: int) -> psutil.Process | None:
    """The process that has this client's ledger open."""
    for process in psutil.Process(run).children(recursive=True):
        try:
            if any(Path(file.path).name == f"{client_id}.db" for file in process.open_files()):
                return process
        except psutil.Error:
            continue
    return None


@pytest.mark.parametrize(("coming", "code"), [({}, -9), (COMING, -9), ({}, 255)], ids=["alone", "late", "fork server"])
def test_a_killed_client_process_is_back_soon(
    tmp_path: Path, background: Background, coming: dict[str, int], code: int
) -> None:
    """It is back, too, if its fork server was killed, which leaves a process at work that is not heard of."""
    config, run_dir = synthetic(tmp_path, 100_000, m=1, train_s=0.02, more=VICTIM | coming), tmp_path / "run"
    process = background("run", config, "--run-dir", run_dir)
    wait_for(lambda: rounds_in(run_dir) >= 5, "five rounds", running=process)
    victim = process_of("victim-000", process.pid)
    assert victim is not None
    killed_in = rounds_in(run_dir)
    (victim if code == -9 else victim.parents()[0]).kill()

    def is_back() -> bool:
        of_victim = f"kind = 'joined' AND client_id = 'victim-000' AND round > {killed_in}"
        joined = query(run_dir, f"SELECT round FROM events WHERE {of_victim}")
        ((chosen,),) = query(run_dir, "SELECT chosen FROM rounds ORDER BY round DESC LIMIT 1")
        return bool(joined) and "victim-000" in json.loads(str(chosen))

    wait_for(is_back, "the client to take part again", 20.0, running=process)
    process.terminate()
    assert process.wait(30) == 130
    # The terminal shows only some of several messages that come at once; the log has all.
    assert f"pausefl-victim-000 ended (exit code {code})" in (run_dir / "clients.log").read_text()


@pytest.mark.parametrize("json", [True, False])
def test_a_run_ends_in_order_when_its_reader_goes(tmp_path: Path, json: bool) -> None:
    config, run_dir = synthetic(tmp_path, rounds=100_000), tmp_path / "run"
    command: list[str | Path] = [*PAUSEFL, "run", config, "--run-dir", run_dir, *(["--json"] if json else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = next(line for line in process.stdout if (b'"round"' if json else b"round ") in line)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", FAILED)
    assert line.startswith(b"{") == json
    assert (run_dir / "summary.json").exists(), "the server was asked to end, not killed"


def test_output_that_no_process_reads_is_no_traceback() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run([*PAUSEFL, "validate", "--list"], stdout=theirs, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (FAILED, b"")


def test_a_pipe_that_blocks_no_writer_loses_no_output() -> None:
    """As a parent may have made it: a full pipe is an error then, also for a reader that reads on."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(theirs, False)
    with os.fdopen(ours, "rb") as reader, subprocess.Popen([*PAUSEFL, "completion", "bash"], stdout=theirs) as process:
        os.close(theirs)
        wait_for(lambda: fcntl.ioctl(ours, termios.FIONREAD, bytes(4)) == (4096).to_bytes(4, sys.byteorder), "output")
        assert len(reader.read()) > 4096
        assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["validate", "demo"], ["run", "tiny.toml", "--virtual", "--json"]])
def test_output_that_cannot_be_written_is_one_line(words: list[str], tmp_path: Path) -> None:
    Path(synthetic(tmp_path, rounds=2)).rename(tmp_path / "tiny.toml")
    with Path("/dev/full").open("wb") as full:
        command = [*PAUSEFL, *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    assert done.returncode == FAILED
    assert done.stderr == b"pausefl: its output or a connection failed (No space left on device)\n"


@pytest.mark.slow
def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PAUSEFL, "run", synthetic(tmp_path, rounds=2), "--virtual", "--run-dir", tmp_path / "run"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u03b5" in done.stdout
    assert (tmp_path / "run/report.html").exists()


def in_shell(how: str, *command: object) -> list[str]:
    """A command that a shell runs by the script `how`, in which it is `"$@"`."""
    return ["sh", "-c", how, "sh", *map(str, command)]


def test_a_run_that_is_started_without_output_is_played_and_one_interrupt_ends_its_lingering(tmp_path: Path) -> None:
    """Once its processes failed without output. A terminal interrupts every process: the server gets it twice."""
    run_dir, linger = tmp_path / "run", ("--set", "metrics.linger_s=3600")
    words = *PAUSEFL, "run", synthetic(tmp_path, rounds=3), "--run-dir", run_dir, *linger
    with subprocess.Popen(in_shell('exec "$@" <&- >&- 2>&-', *words), start_new_session=True) as process:
        wait_for((run_dir / "summary.json").exists, "the results", running=process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
    assert (summary_of(run_dir)["rounds"], summary_of(run_dir)["stopped_because"]) == (3, "all rounds done")
    assert (run_dir / "report.html").exists()
    assert "Traceback" not in (run_dir / "server.log").read_text()


@pytest.mark.parametrize("is_open", [True, False], ids=["a reader that goes", "closed from the start"])
def test_a_server_and_its_client_go_on_without_readers(tmp_path: Path, is_open: bool) -> None:
    """Once a server ended with a traceback of 90 lines, and left no summary."""
    config, run_dir = synthetic(tmp_path, rounds=100, clients=1, m=1), tmp_path / "run"
    how, port = '"$@"' if is_open else '"$@" >&-', free_port()
    serve = in_shell(how, *PAUSEFL, "server", config, "--run-dir", run_dir, "--set", f"server.port={port}")
    who = "--server", f"127.0.0.1:{port}", "--client-id", "client-000", "--ledger-dir", tmp_path
    join = in_shell(how, *PAUSEFL, "client", config, *who)
    with (tmp_path / "complaints").open("wb") as complaints:
        both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=complaints) for words in (serve, join)]
        outputs = [process.stdout for process in both if process.stdout is not None]
        if is_open:
            assert outputs[0].readline()
        for output in outputs:
            output.close()
        assert [process.wait(60) for process in both] == [0, 0]
    assert summary_of(run_dir)["stopped_because"] == "all rounds done"
    assert "Traceback" not in (tmp_path / "complaints").read_text()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
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
    """Once it was like a kill: no summary and no message."""
    config, run_dir = synthetic(tmp_path, rounds=100_000), tmp_path / "run"
    nohup = 'trap "" HUP; ' if is_ignored else ""
    command = in_shell(f'{nohup}exec "$@"', *PAUSEFL, "run", config, "--run-dir", run_dir)
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        wait_for(lambda: rounds_in(run_dir) >= 5, "five rounds", running=process)
        os.killpg(process.pid, signal.SIGHUP)  # a terminal signals all processes at once
        if is_ignored:
            played = rounds_in(run_dir)
            wait_for(lambda: rounds_in(run_dir) > played + 5, "further rounds", running=process)
            process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 130
    reason = summary_of(run_dir)["stopped_because"]
    assert reason == f"stopped by {'SIGTERM' if is_ignored else 'SIGHUP'}"
