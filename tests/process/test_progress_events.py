"""Progress events: one JSON form, written and read back. A reader that stops reading blocks no process."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl.runtime.processes.outbox import posted, posted_output
from pausefl.runtime.terminal import printed_events
from pausefl_process.events import (
    EVENT_TYPES,
    Done,
    Finished,
    ModelEvaluated,
    Notice,
    ProgressEvent,
    Ready,
    from_line,
    to_json,
    to_line,
)
from rigs.command import PAUSEFL, synthetic
from rigs.waiting import wait_for

# JSON has no infinity and no NaN; the producers write null instead.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
EVENTS = st.one_of(*(st.builds(record) for record in EVENT_TYPES.values()))


@patch.dict("os.environ", PAUSEFL_RUN="a run")
@given(EVENTS)
def test_every_event_comes_back_from_its_line(event: ProgressEvent) -> None:
    line = to_line(event)
    assert "\n" not in line
    assert from_line(line) == event
    assert json.loads(line)["kind"] == event.kind
    assert json.loads(line)["level"] in {"info", "warning", "error"}


def test_the_json_form_is_the_kind_and_the_fields() -> None:
    assert to_json(Ready(8765)) == {"kind": "ready", "port": 8765}
    assert to_json(ModelEvaluated(3, "test", 0.5, None)) == {
        "kind": "evaluation",
        "round": 3,
        "split": "test",
        "accuracy": 0.5,
        "loss": None,
        "metric": "accuracy",
        "subset": False,
    }
    assert from_line('{"kind": "finished", "reason": "all rounds done"}') == Finished("all rounds done")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1], "not a JSON object"),
        ({"kind": "something new"}, "kind = 'something new': must be one of ready, "),
        ({"port": 1}, "kind = None"),
        ({"kind": "ready"}, "ready: .*port"),
        ({"kind": "ready", "port": 1, "colour": "red"}, "ready: .*colour"),
    ],
)
def test_what_is_no_event_is_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_line(json.dumps(value))


def test_a_reader_that_takes_nothing_holds_nobody_up_and_costs_little_memory() -> None:
    may_go_on, passed = threading.Event(), list[ProgressEvent]()

    def take(event: ProgressEvent) -> None:
        assert may_go_on.wait(20)
        passed.append(event)

    with posted(take, end_within_s=0.05) as report:
        for _ in range(100_000):
            report(Notice("x"))
        report(Done())
    assert passed == []
    may_go_on.set()
    wait_for(lambda: passed[-1:] == [Done()], "the last event")
    assert len(passed) < 5000


def test_text_is_written_by_a_thread_in_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with posted_output():
        print("one")
        print("two", end=" ")
        print("and a half, ünd mehr\nthree", end="")
        print("warned", file=sys.stderr)
    assert capfd.readouterr() == ("one\ntwo and a half, ünd mehr\nthree", "warned\n")


def test_output_goes_on_once_the_disk_has_room_again(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = os.write, [True] * 4

    def write_if_there_is_room(file: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, f"no room {full.pop()}")
        return write(file, data)

    monkeypatch.setattr(os, "write", write_if_there_is_room)
    with printed_events("run") as report:
        for _ in range(3):
            report(Ready(1))
        wait_for(lambda: len(full) == 1, "the writes")
        with posted_output():
            print("lost")
            wait_for(lambda: not full, "the write")
            print("kept")
        report(Ready(4))
    kept, ready = capfd.readouterr().out.splitlines()
    assert (kept, json.loads(ready)["port"]) == ("kept", 4)
    (told,) = (message for message in caplog.messages if "progress" in message)
    assert "no room" in told


def test_streams_without_a_descriptor_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = io.StringIO()
    monkeypatch.setattr("sys.stdout", in_memory)
    with posted_output():
        print("one")
    assert in_memory.getvalue() == "one\n"


def test_a_terminal_that_takes_nothing_holds_nobody_up(unread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl.runtime.processes.outbox.READ_WITHIN_S", 0.05)
    with open(unread, "w", closefd=False) as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stderr", stream)
        with posted_output():
            for _ in range(10_000):
                print("x" * 100, file=sys.stderr)


def test_a_reader_that_has_gone_is_told_with_the_next_event_or_at_the_end() -> None:
    def fail(_: ProgressEvent) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError), posted(fail) as report:
        report(Ready(1))
    with pytest.raises(ZeroDivisionError), posted(fail) as report:
        report(Ready(1))
        raise ZeroDivisionError


@pytest.fixture
def unread() -> Iterator[int]:
    """The write end of a full pipe whose reader has stopped reading."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with suppress(BlockingIOError):
        while True:
            os.write(theirs, b" " * 4096)
    os.set_blocking(theirs, True)
    yield theirs
    os.close(theirs)
    os.close(ours)


def ended(command: list[str], run_dir: Path, unread: int, *, stuck_s: float, within_s: float) -> bytes:
    """Start a command whose output is not read, and send SIGTERM once it is stuck. Return its standard error."""
    with subprocess.Popen(command, stdout=unread, stderr=subprocess.PIPE) as process:
        wait_for((run_dir / "run.db").exists, "the log", running=process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(stuck_s)
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=within_s)
        finally:
            process.kill()
    assert b"Traceback" not in said
    assert b"Fatal" not in said
    return said


@pytest.mark.end_to_end
def test_a_server_whose_output_is_not_read_ends_in_order(tmp_path: Path, unread: int) -> None:
    run_dir, config = tmp_path / "run", synthetic(tmp_path, clients=1, m=1)
    settings = ("--set", "clients.connect_timeout_s=60", "--set", "metrics.enabled=false")
    command = [*PAUSEFL, "server", str(config), "--run-dir", str(run_dir), *settings]
    said = ended(command, run_dir, unread, stuck_s=2.0, within_s=25)  # stuck while it reports that it waits for clients
    assert (run_dir / "summary.json").exists(), said


TALKATIVE = """
import sys

from pausefl_server.selection.policies.baselines import Random


class Talkative(Random):
    def select(self, state, context):
        print("choosing for round", context.round, file=sys.stderr)
        return super().select(state, context)
"""


@pytest.mark.slow
def test_what_own_code_prints_on_the_event_loop_stalls_no_round(tmp_path: Path, unread: int) -> None:
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    keys = {"selection.policy": "talkative:Talkative"}
    run_dir, config = tmp_path / "run", synthetic(tmp_path, clients=1, m=1, more=keys)
    command = [*PAUSEFL, "server", str(config), "--run-dir", str(run_dir), "--set", "metrics.enabled=false"]
    with subprocess.Popen([*command, "--set", "server.port=0"], stdout=subprocess.PIPE, stderr=unread) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        client = [*PAUSEFL, "client", str(config), "--server", f"127.0.0.1:{ready['port']}"]
        try:
            join = [*client, "--client-id", "client-000", "--ledger-dir", str(tmp_path / "ledgers")]
            assert subprocess.run(join, timeout=40, check=False).returncode == 0
            server.communicate(timeout=20)
        finally:
            server.kill()
    assert server.returncode == 0


@pytest.mark.slow
def test_a_run_whose_output_is_not_read_plays_on_and_ends_when_asked_to(tmp_path: Path, unread: int) -> None:
    run_dir, config = tmp_path / "run", synthetic(tmp_path, rounds=1_000_000, clients=1, m=1)
    command = [*PAUSEFL, "run", str(config), "--json", "--run-dir", str(run_dir)]
    ended(command, run_dir, unread, stuck_s=3.0, within_s=35)  # at the first event, before any client is started
