"""A sweep over two keys. It prints a row for each run, and writes one table of all runs and a picture.

Run it: python examples/sweep/sweep.py [ROUNDS]
"""

import sys

import pausefl

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
experiment = pausefl.load(
    "demo", {"experiment.rounds": rounds, "clients.count": 6, "selection.m": 2, "latency.time_scale": 0.05}
)
grid = {"selection.pause.alpha": [1.0, 100.0], "selection.pause.gamma": [0.0, 5.0]}
done = pausefl.sweep(experiment, grid, seeds=1)
for row in done.rows:
    print(row)
print(f"the table: {done.folder / 'sweep.csv'}, the picture: {done.folder / 'sweep.png'}")
