"""Compare the rounds of two checkouts that play at once, on the same cores: other work on the machine slows both alike.

python -m benchmarks.duel BEFORE AFTER [--bytes 4000] [--rounds 1200] [--times 4]

Prints the ratio of the rounds' durations, AFTER divided by BEFORE. Both fleets compete for the processor. So this
compares processor time, to about 1 %. It does not show the waits that a round has on an otherwise idle machine.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

_PARTS = ("client", "server", "proto", "emulator", "process")
# Only the rounds between these two shares of a play count: both fleets play then.
_FIRST, _LAST = 0.25, 0.8


def main(arguments: Sequence[str] | None = None) -> None:
    """Play both checkouts `--times` times, and print the durations and their ratios."""
    parser = argparse.ArgumentParser(prog="benchmarks.duel", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("before", type=Path, help="a folder with a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("--bytes", type=int, default=4000, metavar="N", help="of the model (default: 4000)")
    parser.add_argument("--rounds", type=int, default=1200, metavar="N", help="of each play (default: 1200)")
    parser.add_argument("--times", type=int, default=4, metavar="N", help="plays of both (default: 4)")
    options = parser.parse_args(arguments)
    for tree in (options.before, options.after):
        if not (tree / "emulator/pausefl").is_dir():
            parser.error(f"{tree}: no checkout of pausefl")
    ratios = []
    for number in range(options.times):
        trees = [options.before, options.after]
        order = [0, 1] if number % 2 == 0 else [1, 0]  # the first one has the machine to itself for a moment
        plays = {i: _begin(trees[i], options.rounds, options.bytes) for i in order}
        before_s, after_s = _rounds_s(plays[0], plays[1])
        ratios.append(after_s / before_s)
        print(f"{before_s * 1e3:.2f} ms, {after_s * 1e3:.2f} ms: {ratios[-1]:.3f}", flush=True)
    print(said_of(ratios))


def said_of(ratios: Sequence[float]) -> str:
    """A sentence with the geometric mean of the ratios, and with its standard error if there are several."""
    logs = np.log(ratios)
    error = f" ± {logs.std(ddof=1) / np.sqrt(len(logs)):.3f}" if len(logs) > 1 else ""
    return f"{np.exp(logs.mean()):.3f}{error} times as long after as before"


def _begin(tree: Path, rounds: int, size: int) -> "subprocess.Popen[str]":
    path = os.pathsep.join(str((tree / part).resolve()) for part in _PARTS)
    script = Path(__file__).with_name("duel_play.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(rounds), str(size)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def _rounds_s(*plays: "subprocess.Popen[str]") -> list[float]:
    """The mean round duration of each fleet. If one fleet fails, the other is ended."""
    with ThreadPoolExecutor(len(plays)) as pool:
        durations = [pool.submit(_round_s, play) for play in plays]
        try:
            wait(durations, return_when=FIRST_EXCEPTION)
        finally:
            for play in plays:
                play.terminate()
    return [duration.result() for duration in durations]


def _round_s(play: "subprocess.Popen[str]") -> float:
    """The mean duration of the rounds in the middle of a play, while the other fleet played too."""
    output, _ = play.communicate()
    durations = [float(word) for word in output.split()]
    if play.returncode or not durations:
        sys.exit("a play failed, see above")
    return float(np.mean(durations[int(_FIRST * len(durations)) : int(_LAST * len(durations))]))


if __name__ == "__main__":
    main()
