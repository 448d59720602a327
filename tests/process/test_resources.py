"""Memory, garbage collection and cores of a process."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pausefl.runtime.processes.resources import collect_seldom
from pausefl.runtime.server.process import sparing_clients
from pausefl_process.events import Notice, ProgressEvent, RoundCommitted
from pausefl_process.machine import available_cores

ROUNDS = """
import resource, sys
import numpy as np
from pausefl.runtime.processes.resources import keep_freed_memory

def play():
    updates = [np.empty(2_500_000, np.float32) for _ in range(10)]
    for update in updates:
        update.fill(1.0)

if sys.argv[1]:
    keep_freed_memory(int(sys.argv[1]))
play()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
play()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_a_round_of_great_updates_finds_the_memory_of_the_last_one() -> None:
    def pages_in(most_bytes: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", ROUNDS, most_bytes], capture_output=True, text=True, timeout=150, check=True
        )
        return int(done.stdout)

    assert pages_in(str(1 << 30)) < 40 < pages_in("")  # pages of 2 MiB, where the kernel has such


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(700, *thresholds[1:])  # Python's own, whatever servers earlier tests have run in this process
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def committed(connected: int) -> RoundCommitted:
    numbers: dict[str, Any] = dict.fromkeys(
        ("round", "rounds", "round_latency_s", "total_latency_s", "max_epsilon_spent", "rejected"), 1
    )
    unknown: dict[str, Any] = dict.fromkeys(("epsilon_budget", "privacy_unit", "budgets_end_after_round"))
    return RoundCommitted(
        chosen=(), connected=connected, wall_clock_s=1.0, selection_s=0.0, suspect=(), suspect_rounds=0,
        **numbers, **unknown,
    )  # fmt: skip


def test_a_process_of_many_objects_looks_for_garbage_seldom() -> None:
    before, *others = gc.get_threshold()
    collect_seldom()
    assert gc.get_threshold() == (10_000, *others)
    assert before < 10_000


def test_clients_are_spared_once_a_round_was_played_and_again_when_more_are_there() -> None:
    reported: list[ProgressEvent] = []
    report = sparing_clients(reported.append)
    spared = []
    for event in (Notice("no round yet"), committed(3), committed(3), committed(2), committed(4)):
        lasting: Any = [[] for _ in range(1000)]  # what a client brings
        report(event)
        spared.append(gc.get_freeze_count())
        del lasting
    assert spared[0] == 0
    assert spared[1] > 1000
    assert spared[1] >= spared[2] >= spared[3]
    assert spared[4] > spared[3]
    assert len(reported) == 5


GIVEN = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "bounds", "cores"),
    [
        ("0::/job/step", {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}, 1),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "6400000 100000"}, GIVEN),
        ("4:memory:/m\n1:cpu,cpuacct:/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000"}, 1),
        ("1:cpu:/job", {"cpu/job/cpu.cfs_quota_us": "-1"}, GIVEN),
        ("", {}, GIVEN),
    ],
)
def test_a_quota_bounds_cores_as_affinity_does(groups: str, bounds: dict[str, str], cores: int, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in bounds.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        file.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert available_cores(tmp_path, tmp_path / "tree") == cores
