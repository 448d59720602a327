"""One fleet of `benchmarks.duel`: plays rounds without training with the code on PYTHONPATH; prints their durations."""

import sys
from itertools import pairwise

from pausefl.bench.runs import play

_CLIENTS = 10

if __name__ == "__main__":
    rounds, size_bytes = sys.argv[1:]
    everyone = [f"clients.count={_CLIENTS}", f"selection.m={_CLIENTS}", "selection.policy=all"]
    records = play([*everyone, f"experiment.rounds={rounds}", f"workload.model_bytes={size_bytes}"])
    print(*(after.wall_clock_s - before.wall_clock_s for before, after in pairwise(records)))
