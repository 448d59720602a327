"""Logs are lines for people, or JSON objects with the round and the client that they are about."""

import json
import logging
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pausefl.runtime.failure_log import FailureLog
from pausefl.runtime.processes.logs import VARIABLE, ask_for, set_up_log
from rigs.command import PAUSEFL, played, run, synthetic
from rigs.waiting import wait_for


@pytest.fixture
def root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The root logger is afterwards what it was."""
    monkeypatch.setenv(VARIABLE, "")
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def logged(capsys: pytest.CaptureFixture[str]) -> str:
    """What one line about a round of a client, and one with a traceback, look like."""
    set_up_log()
    log = logging.getLogger("pausefl.test")
    log.info("joined", extra={"round": 3, "client_id": "client-007"})
    try:
        raise LookupError("no weights")
    except LookupError:
        log.exception("failed")
    return capsys.readouterr().err


@pytest.mark.usefixtures("root_logger")
def test_a_stream_that_was_gone_before_its_end_is_no_error_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_log()
    for name in ("ExecuteBatchError", "KeyError"):
        logging.getLogger("grpc._cython.cygrpc").error("%s raised in core by servicer method [/Join]", name)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("ERROR KeyError raised in core by servicer method [/Join]")


@pytest.mark.usefixtures("root_logger")
def test_a_json_line_names_the_round_and_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    ask_for(json=True)
    joined, failed = map(json.loads, logged(capsys).splitlines())
    assert joined.pop("time").endswith("+00:00")
    wanted = {"level": "info", "kind": "log", "logger": "pausefl.test", "message": "joined", "round": 3}
    assert joined == wanted | {"client": "client-007"}
    assert failed["exception"].splitlines()[-1] == "LookupError: no weights"


@pytest.mark.usefixtures("root_logger")
def test_a_line_for_people_has_its_time_first_and_quiet_leaves_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged(capsys).splitlines()[0].endswith(" INFO joined")
    ask_for(quiet=True)
    assert "joined" not in logged(capsys)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.end_to_end
def test_every_line_of_a_run_s_logs_is_json_if_asked_for(tmp_path: Path) -> None:
    played("run", synthetic(tmp_path), "--run-dir", tmp_path / "run", "--log-json", "--verbose")
    of_rounds = [line for line in json_lines(tmp_path / "run/server.log") if line["kind"] == "round"]
    assert of_rounds
    assert all(line["round"] == line["event"]["round"] for line in of_rounds)
    exchanges = [line for line in json_lines(tmp_path / "run/clients.log") if "round" in line]
    assert all(line["run"] == "run" for line in [*of_rounds, *exchanges])
    assert len(exchanges) == 20  # two clients in each of ten rounds
    assert all(line["message"].startswith(f"{line['client']}: round {line['round']}: ok") for line in exchanges)


@pytest.mark.end_to_end
@pytest.mark.parametrize("wish", [(), ("--verbose",)])
def test_on_the_virtual_clock_exchanges_are_logged_if_asked_for(tmp_path: Path, wish: tuple[str, ...]) -> None:
    """One process plays all clients, and its log would be mostly theirs."""
    played("run", synthetic(tmp_path), "--virtual", "--run-dir", tmp_path / "run", *wish)
    exchanges = [line for line in (tmp_path / "run/server.log").read_text().splitlines() if ": ok after" in line]
    assert len(exchanges) == (20 if wish else 0)  # two clients in each of ten rounds


@pytest.mark.end_to_end
def test_a_client_logs_one_line_a_round(tmp_path: Path, background: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    config, output = synthetic(tmp_path, clients=1, m=1), tmp_path / "output"
    process = background("server", config, "--run-dir", tmp_path / "run", "--set", "metrics.enabled=false")
    wait_for(lambda: b'"ready"' in output.read_bytes(), "the server", running=process)
    port = next(e["port"] for e in json_lines(output) if e["kind"] == "ready")
    who = ("--server", f"127.0.0.1:{port}", "--client-id", "client-000", "--ledger-dir", tmp_path / "ledgers")
    client = run("client", config, *who)
    assert process.wait(30) == 0
    *rounds, _ = client.stderr.splitlines()  # and why it left
    assert len(rounds) == 10
    assert all(f"client-000: round {t}: ok" in line for t, line in enumerate(rounds, 1))


@pytest.mark.parametrize("as_json", [False, True])
def test_why_a_private_client_failed_is_found_in_its_log(tmp_path: Path, as_json: bool) -> None:
    text = 'client-003: round 7 failed: ValueError: "x" is no number'
    line = json.dumps({"level": "warning", "message": text}) if as_json else f"2026-01-01 00:00:00,000 WARNING {text}"
    log = FailureLog(tmp_path / "clients.log")
    (tmp_path / "clients.log").write_text(f"{line}\nTraceback\n{line}\n")
    assert list(log.news()) == ['client client-003 failed at round 7: ValueError: "x" is no number']


def test_failures_are_found_in_a_log_that_was_rotated(tmp_path: Path) -> None:
    path = tmp_path / "clients.log"
    path.write_text("a line of an earlier start\n" * 100)
    log = FailureLog(path)
    with path.open("a") as file:
        file.write("a: round 1 failed: before\n")
    assert list(log.news()) == ["client a failed at round 1: before"]
    with path.open("a") as file:
        file.write("a: round 2 failed: at the end\n")
    path.replace(tmp_path / "clients.log.1")
    assert list(log.news()) == []  # the new one is not there yet
    path.write_text("a: round 3 failed: after\n")
    assert list(log.news()) == ["client a failed at round 2: at the end", "client a failed at round 3: after"]
    path.write_text("a: round 4 failed: x\n")  # cut, whatever did it
    assert list(log.news()) == ["client a failed at round 4: x"]


@pytest.mark.end_to_end
@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_on_a_terminal_speaks_to_people_unless_asked_for_json(tmp_path: Path, as_json: bool) -> None:
    settings = ("--set", "metrics.enabled=false", "--set", "clients.connect_timeout_s=0.5")
    command = [*PAUSEFL, "server", str(synthetic(tmp_path)), "--run-dir", str(tmp_path / "run"), *settings]
    ours, theirs = pty.openpty()
    with subprocess.Popen([*command, *(["--log-json"] if as_json else [])], stdout=theirs) as server:
        server.wait(60)
        said = os.read(ours, 1 << 16).decode()
    for end in (ours, theirs):
        os.close(end)
    first = said.splitlines()[0]
    assert (json.loads(first)["kind"] == "ready") if as_json else ("listening at port" in said and "{" not in said)
