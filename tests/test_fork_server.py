"""Processes are started though the fork server is killed at that very instant."""

import multiprocessing
import os
import signal
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pausefl.config.experiment import parse_experiment
from pausefl.runtime.fleet import SILENT, Fleet
from pausefl_process.lifetime import start
from pausefl_proto.errors import PauseflError


def tell_masked(told: "Connection[Any, Any]") -> None:
    """Tell which signals wait for this process to take them."""
    told.send(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


class KilledWhenAsked:
    """Stops the fork server before each of the first requests, and kills it when it has them."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._ask = forkserver.connect_to_new_process

    def __call__(self, fds: list[int]) -> tuple[int, int]:
        if self.left == 0:
            return self._ask(fds)
        self.left -= 1
        forkserver.ensure_running()
        pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGSTOP)
        ends = self._ask(fds)
        os.kill(pid, signal.SIGKILL)
        return ends


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_is_started_leaves_interrupts_to_who_started_it(method: str) -> None:
    """From the first instant: it may import for seconds before it can set a handler."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=tell_masked, args=(theirs,))
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # which has inherited what held for this one
    start(process)
    assert ours.recv() == {signal.SIGINT}
    process.join()
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


@pytest.mark.parametrize("refusal", [BlockingIOError(11, "no process more"), BrokenPipeError(32, "it has ended")])
def test_a_run_whose_server_cannot_be_started_ends_with_the_reason(
    refusal: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise refusal

    monkeypatch.setattr("pausefl.runtime.fleet.start", refuse)
    experiment = parse_experiment("[workload]\nmodel = 'synthetic'\n[privacy]\nenabled = false\n")
    with pytest.raises(type(refusal), match=refusal.strerror):
        Fleet(experiment, tmp_path).run(SILENT)
