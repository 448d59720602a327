"""Makes the tables that compare exact PAUSE with SA-PAUSE: fronts of simulations, and runs with training."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = Mapping[str, Any]

_FIGURES = (
    ("total_latency_s", 1.0, "{:.0f} s"),
    ("max_epsilon_spent", 1.0, "{:.1f}"),
    ("final_accuracy", 100.0, "{:.1f} %"),
)


def exactness_cases(folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yields the tables' data: the fronts of `pausefl tune` folders, and the runs of other campaigns by series."""
    for folder in folders:
        if (folder / "tuning.json").exists():
            found = json.loads((folder / "tuning.json").read_text("utf-8"))
            yield {"front": found["keys"][0].split(".")[1], "objectives": found["objectives"], "points": found["front"]}
        else:
            runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for path in sorted(folder.glob("*/summary.json")):
                summary = json.loads(path.read_text("utf-8"))
                series = path.parent.name.rpartition("-seed")[0] or folder.name
                runs[series].append({name: summary[name] for name, _, _ in _FIGURES})
            yield from ({"series": series, "runs": found} for series, found in runs.items())


def front_table(cases: Sequence[Case]) -> str:
    """A table of both fronts' sizes and dominated settings, and a table of settings along each front by latency."""
    fronts = {case["front"]: case["points"] for case in cases if "front" in case}
    names = [objective["name"] for objective in next(case["objectives"] for case in cases if "front" in case)]
    lines = ["| policy | settings on the front | dominated by a setting of the other front |", "|---|---|---|"]
    for policy, points in fronts.items():
        (others,) = (found for other, found in fronts.items() if other != policy)
        n_dominated = sum(any(_dominates(other, point, names) for other in others) for point in points[:-1])
        lines.append(f"| `{policy}` | {len(points) - 1} | {n_dominated} |")
    lines += ["", "| policy | α | γ | ζ | total latency | greatest ε | imbalance |", "|---|---|---|---|---|---|---|"]
    for policy, points in fronts.items():
        lines += [_front_row(policy, point) for point in _spread_out(points)]
    return "\n".join(lines)


def runs_table(cases: Sequence[Case]) -> str:
    """The table of whole runs with training: the mean over seeds, the least and the greatest, by series."""
    lines = ["| series | seeds | total latency | greatest ε | accuracy of the last model |", "|---|---|---|---|---|"]
    for case in cases:
        if "series" in case:
            cells = (_cell([factor * run[name] for run in case["runs"]], form) for name, factor, form in _FIGURES)
            lines.append(f"| {case['series']} | {len(case['runs'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _dominates(one: Case, other: Case, names: Sequence[str]) -> bool:
    pairs = [(one["figures"][name], other["figures"][name]) for name in names]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _spread_out(points: Sequence[Case]) -> list[Case]:
    """The published setting, then settings of the front in order of latency, at even steps, with both ends."""
    front = sorted(points[:-1], key=lambda point: float(point["figures"]["total_latency_s"]))
    step = max(1, len(front) // 5)
    return [points[-1], *front[:-1:step], front[-1]]


def _front_row(policy: str, point: Case) -> str:
    values = [f"{value:.3g}" for value in point["point"].values()] or ["published", "", ""]
    figures = point["figures"]
    shown = f"{figures['total_latency_s']:.0f} s | {figures['max_epsilon_spent']:.1f} | {figures['imbalance']:.3f}"
    return f"| `{policy}` | {' | '.join(values)} | {shown} |"


def _cell(values: Sequence[float], form: str) -> str:
    return f"{form.format(statistics.fmean(values))} ({form.format(min(values))} to {form.format(max(values))})"
