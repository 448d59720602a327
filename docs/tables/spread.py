"""Makes the table of benchmarks/pause.md that shows the sources of the spread between runs."""

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Case = Mapping[str, Any]

_SOURCES = {
    "experiment.split_seed": "the split",
    "experiment.model_seed": "the first model",
    "experiment.latency_seed": "the latencies",
    "experiment.seed": "noise, order of examples, the policy's own draws",
}
_TOGETHER = "all of these"
_FIGURES = {
    "total_latency_s": ("total latency", 1.0, " s"),
    "final_accuracy": ("accuracy of the last model", 100.0, " points"),
    "max_epsilon_spent": ("greatest ε", 1.0, ""),
}
_ACCURACY_WITHIN = 0.02


def spread_sweep(folder: Path) -> dict[str, Any]:
    """The table's data of one sweep, over one kind of seed or all seeds: what varied, and the figures of each run."""
    plan = json.loads((folder / "campaign.json").read_text("utf-8"))
    (varied,) = [key for key, values in plan["arguments"]["grid"].items() if len(values) > 1] or [""]
    with (folder / "sweep.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        "varied": _SOURCES.get(varied, _TOGETHER),
        "policy": rows[0]["policy"],
        "rounds": int(rows[0]["rounds"]),
        **{name: [float(row[name]) for row in rows] for name in _FIGURES},
    }


def spread_table(sweeps: Sequence[Case]) -> str:
    """The table of standard deviations between runs by what varies, with shares of variance, and the seeds needed."""
    titles = [f"{label}: sd, share" for label, _, _ in _FIGURES.values()]
    lines = [f"| what varies | runs | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    alone = [sweep for sweep in sweeps if sweep["varied"] != _TOGETHER]
    for sweep in sweeps:
        cells = (_cell(sweep, name, alone) for name in _FIGURES)
        lines.append(f"| {sweep['varied']} | {len(sweep['total_latency_s'])} | {' | '.join(cells)} |")
    (together,) = (sweep for sweep in sweeps if sweep["varied"] == _TOGETHER)
    seeds = math.ceil((1.96 * statistics.stdev(together["final_accuracy"]) / _ACCURACY_WITHIN) ** 2)
    wish = f"a 95 % interval of ±{100 * _ACCURACY_WITHIN:g} points for the accuracy of the last model"
    return "\n".join([*lines, "", f"By the last row, {wish} takes {max(seeds, 2)} seeds."])


def _cell(sweep: Case, name: str, alone: Sequence[Case]) -> str:
    _, factor, unit = _FIGURES[name]
    deviation = f"{factor * statistics.stdev(sweep[name]):.2g}{unit}"
    if math.isclose(max(sweep[name]), min(sweep[name])):
        deviation = "0"
    if sweep not in alone:
        return deviation
    total = sum(statistics.variance(each[name]) for each in alone)
    return f"{deviation}, {100 * statistics.variance(sweep[name]) / total:.0f} %" if total else deviation
