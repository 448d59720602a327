"""Client processes as a run forks them: what the fork server has imported before, and noise that is not shared."""

import multiprocessing
import subprocess
import sys

import pytest

from pausefl.runtime.client.forks import client_context
from rigs.forked import MODULES, tell_modules_and_noise

EXPERIMENT = 'clients.count = 3\nselection.m = 1\nworkload.model = "synthetic"'


@pytest.mark.end_to_end
def test_a_client_is_forked_with_what_it_needs_imported_and_draws_noise_of_its_own() -> None:
    """Same client, same key, same process image: only the operating system's entropy tells the draws apart."""
    context = client_context(needs_torch=True)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    processes = [context.Process(target=tell_modules_and_noise, args=(theirs, EXPERIMENT)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    theirs.close()
    told = [ours.recv() for _ in processes]
    assert [loaded for loaded, _ in told] == [set(MODULES)] * 3
    assert len({tuple(noise) for _, noise in told}) == 3


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
