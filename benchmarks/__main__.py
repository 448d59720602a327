"""`make benchmarks`: play every cell and write docs/results/benchmarks.jsonl, from which benchmarks/peers.md is made.

python -m benchmarks                              play all cells, in some 20 minutes; each play is stored at once
python -m benchmarks --go-on                      go on after an interruption: stored plays are not repeated
python -m benchmarks --cell "10 clients, 1 MB"    play one cell again with all its systems; keep the others
python -m benchmarks --simulators                 compare the virtual clock with pfl-research, in its own file
python -m benchmarks --asynchronous               compare asynchronous steps with APPFL's, in their own file
"""

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.environments import BUILD, RESULTS, SYSTEMS, python_of
from benchmarks.measuring import PlayError, play
from benchmarks.plan import CELLS, Turn, cells_of, turns
from benchmarks.results import Results
from benchmarks.systems.task import Task
from benchmarks.trained_data import write_data
from pausefl_proto.errors import ConfigError


def main() -> int:
    """Run the command. Returns 0 if all cells were played, 2 for bad input or a system that fails."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as with Ctrl-C: no process is left behind
    cells = options.cell or cells_of(options.part)
    part, *others = sorted({CELLS[name].part for name in cells})
    file = options.results or RESULTS / f"{part}.jsonl"
    try:
        if others:
            raise ConfigError(f"--cell: cells of {part} and {others[0]} lie in files of their own; play them apart")
        results = Results.opened(file, anew=[] if options.go_on else cells)
        due = [turn for turn in turns(cells, options.repetitions) if not results.has(turn)]
        for preset in {CELLS[name].preset for name in cells} - {""}:
            write_data(BUILD / preset, preset=preset)
        for name in {turn.system for turn in due}:
            python_of(SYSTEMS[name])
        for number, turn in enumerate(due, 1):
            print(f"{number} of {len(due)}: {turn.cell.name}, {SYSTEMS[turn.system].shown}: ", end="", flush=True)
            found = play(SYSTEMS[turn.system], _task(turn), turn.window)
            results.add(turn, found)
            others = f"; other processes took {100 * found['others']:.0f} % of the machine" * (found["others"] > 0.05)
            print(f"{1000 * found['round_s']:.2f} ms a round{others}", flush=True)
    except (ConfigError, PlayError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


def _task(turn: Turn) -> Task:
    cell = turn.cell
    data = str(BUILD / cell.preset) if cell.preset else ""
    return Task(
        cell.clients,
        cell.per_round,
        cell.model_bytes,
        cell.rated_round,
        data,
        cell.has_noise,
        buffer=cell.buffer,
        seed=turn.repetition,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="of each cell (default: 3)")
    parser.add_argument("--cell", action="append", choices=CELLS, help="play this one anew; repeatable")
    parser.add_argument("--go-on", action="store_true", help="keep what the results hold")
    parser.set_defaults(part="benchmarks")
    for part in ("simulators", "asynchronous"):
        told = f"their cells, in docs/results/{part}.jsonl"
        parser.add_argument(f"--{part}", dest="part", action="store_const", const=part, help=told)
    parser.add_argument("--results", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
