"""Processes as a run forks them: what the fork server has imported before, and what is not shared: noise."""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from pausefl.runtime.forks import forked_client, forked_run
from pausefl.runtime.processes.lifetime import start
from rigs.forked import MODULES, tell_variable
from rigs.places import TESTS

EXPERIMENT = 'clients.count = 3\nselection.m = 1\nworkload.model = "synthetic"'


@pytest.mark.end_to_end
@pytest.mark.parametrize(("forked", "processes"), [(forked_client, 3), (forked_run, 2)], ids=["client", "run"])
def test_a_process_is_forked_with_its_imports_and_noise_of_its_own(
    forked: Callable[..., BaseProcess], processes: int
) -> None:
    """Same client, same key, same process image: only the operating system's entropy tells the draws apart."""
    loaded, noise = zip(*told_by(forked, processes), strict=True)
    assert loaded == (list(MODULES),) * processes
    assert len(set(map(tuple, noise))) == processes


@pytest.mark.end_to_end
def test_a_forked_process_has_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that of the time when the fork server was begun."""
    monkeypatch.delenv("PAUSEFL_DATA", raising=False)
    assert variable_of_a_client() is None
    monkeypatch.setenv("PAUSEFL_DATA", "elsewhere")
    assert variable_of_a_client() == "elsewhere"


def told_by(forked: Callable[..., BaseProcess], processes: int) -> list[Any]:
    """What processes that need torch tell, forked by a server of their own."""
    command = [sys.executable, "-m", "rigs.forked", forked.__name__, str(processes), EXPERIMENT]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    told: list[Any] = json.loads(done.stdout)
    return told


def variable_of_a_client() -> str | None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = forked_client("told", tell_variable, theirs, "PAUSEFL_DATA", needs_torch=False)
    start(process)
    found: str | None = ours.recv()
    process.join()
    return found


FROZEN = """
class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")

kept = Cycle()
import pausefl.runtime.client.torch_trainers
"""


def test_what_was_frozen_for_forks_is_collected_at_the_end() -> None:
    """Or libraries that count their objects, such as triton, print what they find left."""
    done = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, check=True)
    assert done.stdout == "collected\n"
