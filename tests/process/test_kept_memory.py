"""Buffers of a round are not paged in again in the next one."""

import subprocess
import sys

import pytest

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
