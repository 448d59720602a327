"""A reader of a process's events that takes none: the process goes on, and ends when it is asked to."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from pausefl_process.events import Done, Notice, ProgressEvent, Ready
from pausefl_process.outbox import posted
from rigs.command import PAUSEFL, synthetic
from rigs.waiting import wait_for


def test_events_are_passed_on_in_order_by_a_thread() -> None:
    passed: list[ProgressEvent] = []
    events = [Ready(1), Notice("x"), Done()]
    with posted(passed.append) as report:
        for event in events:
            report(event)
    assert passed == events


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


def test_a_reader_that_has_gone_is_told_with_the_next_event_or_at_the_end() -> None:
    def fail(_: ProgressEvent) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError), posted(fail) as report:
        report(Ready(1))
    with pytest.raises(ZeroDivisionError), posted(fail) as report:
        report(Ready(1))
        raise ZeroDivisionError


@pytest.mark.end_to_end
def test_a_server_whose_output_is_not_read_serves_on_and_ends_in_order(tmp_path: Path) -> None:
    config = synthetic(tmp_path, rounds=1_000_000, clients=1, m=1)
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    while True:  # as a reader leaves it that stopped long ago
        try:
            os.write(theirs, b" " * 4096)
        except BlockingIOError:
            break
    os.set_blocking(theirs, True)
    settings = ("--set", "clients.connect_timeout_s=60", "--set", "metrics.enabled=false")
    command = [*PAUSEFL, "server", str(config), "--run-dir", str(tmp_path / "run"), *settings]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as server:
        os.close(theirs)
        wait_for((tmp_path / "run" / "run.db").exists, "the log", running=server)
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(2.0)  # it has begun to wait for clients, and says so
        server.send_signal(signal.SIGTERM)
        try:
            _, said = server.communicate(timeout=25)
        finally:
            server.kill()
            os.close(ours)
    assert server.returncode in (0, 130), said
    assert b"Traceback" not in said
    assert b"Fatal" not in said
