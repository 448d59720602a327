"""Writes the tables of measured figures into the documents, from the files under docs/results.

make benchmarks                                     # writes docs/results/benchmarks.jsonl
python -m benchmarks --results docs/results/benchmarks-elsewhere.jsonl    # on another machine
python -m benchmarks --simulators                   # writes docs/results/simulators.jsonl
python -m benchmarks --asynchronous                 # writes docs/results/asynchronous.jsonl
python -m benchmarks.own annealing --json > docs/results/annealing.jsonl
make chaos                                          # writes docs/results/chaos.jsonl
python -m benchmarks.own overload --json > docs/results/overload.jsonl
python -m benchmarks.own all --json > docs/results/speed.json
python -m benchmarks.own encodings --json > docs/results/encodings.jsonl
python -m benchmarks.own scale_curve --json > docs/results/scale.jsonl
python -m benchmarks.own twin --json > docs/results/twin.jsonl
make fuzz                                           # writes docs/results/fuzz.json
python tests/stops                                  # writes docs/results/stops.jsonl
make gpu                                            # writes docs/results/gpu.json, on a machine with a GPU
python docs/generated_tables.py                     # writes every table
python docs/generated_tables.py exactness DIR...    # after the searches and runs of benchmarks/pause.md
python docs/generated_tables.py spread DIR...       # after the sweeps of benchmarks/pause.md: stores them first
python docs/generated_tables.py tuning DIR...       # after pausefl tune ... --run-dir DIR: stores them first
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import tables as peers
from docs.tables import exactness, reliability, selection, speed, spread, tuning

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Case = Mapping[str, Any]

TABLES: tuple[tuple[str, str, str, Callable[[Sequence[Case]], str]], ...] = (
    ("annealing", "../benchmarks/README.md", "annealing.jsonl", selection.annealing_table),
    ("newcomers: Fashion-MNIST", "fed-ts.md", "reproduce/fedts-fig6.runs.jsonl", selection.newcomers_table),
    ("newcomers: AG-News", "fed-ts.md", "reproduce/fedts-fig7.runs.jsonl", selection.newcomers_table),
    ("benchmarks-session", "../benchmarks/peers.md", "benchmarks.jsonl", peers.session_table),
    ("benchmarks-rounds", "../benchmarks/peers.md", "benchmarks.jsonl", peers.round_table),
    ("benchmarks-ratios", "../benchmarks/peers.md", "benchmarks.jsonl", peers.ratio_table),
    ("benchmarks-processor", "../benchmarks/peers.md", "benchmarks.jsonl", peers.cpu_table),
    ("benchmarks-memory", "../benchmarks/peers.md", "benchmarks.jsonl", peers.memory_table),
    ("benchmarks-training", "../benchmarks/peers.md", "benchmarks.jsonl", peers.training_table),
    ("simulators-session", "../benchmarks/peers.md", "simulators.jsonl", peers.session_table),
    ("simulators", "../benchmarks/peers.md", "simulators.jsonl", peers.simulators_table),
    ("benchmarks-elsewhere-session", "../benchmarks/peers.md", "benchmarks-elsewhere.jsonl", peers.machine_line),
    ("benchmarks-elsewhere-rounds", "../benchmarks/peers.md", "benchmarks-elsewhere.jsonl", peers.round_table),
    ("benchmarks-elsewhere-ratios", "../benchmarks/peers.md", "benchmarks-elsewhere.jsonl", peers.ratio_table),
    ("benchmarks-elsewhere-training", "../benchmarks/peers.md", "benchmarks-elsewhere.jsonl", peers.training_table),
    ("asynchronous-session", "../benchmarks/peers.md", "asynchronous.jsonl", peers.session_table),
    ("asynchronous", "../benchmarks/peers.md", "asynchronous.jsonl", peers.steps_table),
    ("chaos", "../benchmarks/reliability.md", "chaos.jsonl", reliability.chaos_table),
    ("reliability", "../README.md", "chaos.jsonl", reliability.reliability_table),
    ("fuzz", "../benchmarks/reliability.md", "fuzz.json", reliability.fuzz_table),
    ("stops", "../benchmarks/reliability.md", "stops.jsonl", reliability.stops_table),
    ("overload", "../benchmarks/reliability.md", "overload.jsonl", reliability.overload_table),
    ("twin", "../benchmarks/README.md", "twin.jsonl", speed.twin_table),
    ("twin: steps", "../benchmarks/README.md", "twin.jsonl", speed.twin_steps_table),
    ("tuning", "tuning.md", "tuning.jsonl", tuning.tuning_tables),
    ("spread", "../benchmarks/pause.md", "spread.jsonl", spread.spread_table),
    ("exactness: fronts", "../benchmarks/pause.md", "exactness.jsonl", exactness.front_table),
    ("exactness: runs", "../benchmarks/pause.md", "exactness.jsonl", exactness.runs_table),
    ("encodings", "network.md", "encodings.jsonl", speed.encodings_table),
    ("steps", "../benchmarks/README.md", "steps.jsonl", speed.steps_table),
    ("scale", "speed.md", "scale.jsonl", speed.scale_table),
    ("gpu: training", "speed.md", "gpu.json", speed.gpu_training_table),
    ("gpu: parts", "../benchmarks/README.md", "gpu.json", speed.gpu_parts_table),
    ("speed: origin", "speed.md", "speed.json", speed.speed_origin),
    *(
        (f"speed: {name}", document, "speed.json", partial(speed.speed_table, name))
        for document, names in speed.SPEED_BENCHMARKS.items()
        for name in names
    ),
)
"""Each table: its name, its document, its file under docs/results, and the function that makes it from the file."""


def with_table(text: str, name: str, table: str) -> str:
    """The document's text with this table between the two comments that mark it. ValueError if they are missing."""
    begin, end = f"<!-- generated: {name} -->", "<!-- end of generated table -->"
    changed, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{table}\n{end}", text, count=1, flags=re.DOTALL
    )
    if not count:
        raise ValueError(f"no table {name}")
    return changed


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file that has one JSON object per line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main(arguments: Sequence[str]) -> None:
    """Store the summaries of the given folders, if any, under docs/results. Then write every table."""
    if arguments[:1] == ["exactness"]:
        cases = exactness.exactness_cases([Path(folder) for folder in arguments[1:]])
        text = "".join(f"{json.dumps(case, ensure_ascii=False)}\n" for case in cases)
        (RESULTS / "exactness.jsonl").write_text(text, "utf-8")
    if arguments[:1] == ["spread"]:
        found = [spread.spread_sweep(Path(folder)) for folder in arguments[1:]]
        (RESULTS / "spread.jsonl").write_text("".join(f"{json.dumps(sweep)}\n" for sweep in found), "utf-8")
    if arguments[:1] == ["tuning"]:
        searches = [tuning.tuning_search(Path(run_dir)) for run_dir in arguments[1:]]
        text = "".join(f"{json.dumps(search, ensure_ascii=False)}\n" for search in searches)
        (RESULTS / "tuning.jsonl").write_text(text, "utf-8")
        for run_dir in map(Path, arguments[1:]):
            shutil.copyfile(run_dir / "front.png", HERE / f"tuning-{run_dir.name}.png")
    for name, document, results, table in TABLES:
        path = HERE / document
        path.write_text(with_table(path.read_text("utf-8"), name, table(read_lines(RESULTS / results))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
