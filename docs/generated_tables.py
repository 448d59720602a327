"""Writes the tables of measured figures into the documents, from the files under docs/results.

make benchmarks                                     # writes docs/results/benchmarks.jsonl
python -m benchmarks --results docs/results/benchmarks-elsewhere.jsonl    # on another machine
pausefl bench annealing --json > docs/results/annealing.jsonl
make chaos                                          # writes docs/results/chaos.jsonl
pausefl bench overload --json > docs/results/overload.jsonl
pausefl bench all --json > docs/results/speed.json
pausefl bench encodings --json > docs/results/encodings.jsonl
pausefl bench scale_curve --json > docs/results/scale.jsonl
pausefl bench twin --json > docs/results/twin.jsonl
make fuzz                                           # writes docs/results/fuzz.json
make gpu                                            # writes docs/results/gpu.json, on a machine with a GPU
python docs/generated_tables.py                     # every table anew
python docs/generated_tables.py agnews RUN_DIR...   # after runs of the AG-News presets: first their summaries
python docs/generated_tables.py exactness DIR...    # after the searches and runs of pause.md
python docs/generated_tables.py spread DIR...       # after the sweeps of pause.md: first what they found
python docs/generated_tables.py tuning DIR...       # after pausefl tune ... --run-dir DIR: first their fronts
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
    ("annealing", "selection.md", "annealing.jsonl", selection.annealing_table),
    ("agnews", "fed-ts.md", "agnews.jsonl", selection.agnews_table),
    ("benchmarks-session", "peers.md", "benchmarks.jsonl", peers.session_table),
    ("benchmarks-rounds", "peers.md", "benchmarks.jsonl", peers.round_table),
    ("benchmarks-ratios", "peers.md", "benchmarks.jsonl", peers.ratio_table),
    ("benchmarks-processor", "peers.md", "benchmarks.jsonl", peers.cpu_table),
    ("benchmarks-memory", "peers.md", "benchmarks.jsonl", peers.memory_table),
    ("benchmarks-training", "peers.md", "benchmarks.jsonl", peers.training_table),
    ("benchmarks-elsewhere-session", "peers.md", "benchmarks-elsewhere.jsonl", peers.machine_line),
    ("benchmarks-elsewhere-rounds", "peers.md", "benchmarks-elsewhere.jsonl", peers.round_table),
    ("benchmarks-elsewhere-ratios", "peers.md", "benchmarks-elsewhere.jsonl", peers.ratio_table),
    ("benchmarks-elsewhere-training", "peers.md", "benchmarks-elsewhere.jsonl", peers.training_table),
    ("chaos", "reliability.md", "chaos.jsonl", reliability.chaos_table),
    ("reliability", "../README.md", "chaos.jsonl", reliability.reliability_table),
    ("fuzz", "reliability.md", "fuzz.json", reliability.fuzz_table),
    ("overload", "reliability.md", "overload.jsonl", reliability.overload_table),
    ("twin", "virtual-clock.md", "twin.jsonl", speed.twin_table),
    ("tuning", "tuning.md", "tuning.jsonl", tuning.tuning_tables),
    ("spread", "pause.md", "spread.jsonl", spread.spread_table),
    ("exactness: fronts", "pause.md", "exactness.jsonl", exactness.front_table),
    ("exactness: runs", "pause.md", "exactness.jsonl", exactness.runs_table),
    ("encodings", "network.md", "encodings.jsonl", speed.encodings_table),
    ("scale", "speed.md", "scale.jsonl", speed.scale_table),
    ("gpu: training", "speed.md", "gpu.json", speed.gpu_training_table),
    ("gpu: parts", "speed.md", "gpu.json", speed.gpu_parts_table),
    ("speed: origin", "speed.md", "speed.json", speed.speed_origin),
    *(
        (f"speed: {name}", "speed.md", "speed.json", partial(speed.speed_table, name))
        for name in speed.SPEED_BENCHMARKS
    ),
)
"""Name, document, file under docs/results, and what makes the table of it."""


def with_table(text: str, name: str, table: str) -> str:
    """The document with this table between the two comments that name it; ValueError if they are not there."""
    begin, end = f"<!-- generated: {name} -->", "<!-- end of generated table -->"
    changed, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{table}\n{end}", text, count=1, flags=re.DOTALL
    )
    if not count:
        raise ValueError(f"no table {name}")
    return changed


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object a line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main(arguments: Sequence[str]) -> None:
    """Collect summaries if asked to, then write every table."""
    if arguments[:1] == ["agnews"]:
        lines = (json.dumps(selection.agnews_run(Path(run_dir))) for run_dir in arguments[1:])
        (RESULTS / "agnews.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
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
