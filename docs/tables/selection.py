"""The tables of docs/selection.md and docs/fed-ts.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Case = Mapping[str, Any]

_WAYS = (
    ("v2", "spread", "random"),
    ("v2", "printed", "random"),
    ("v1", "spread", "random"),
    ("v1", "printed", "random"),
    ("swap", "spread", "random"),
    ("swap", "printed", "random"),
    ("v2", "spread", "exact"),
)
_COLUMNS = ((30, 5, "R1"), (30, 5, "R2"), (300, 15, "R1"), (300, 15, "R2"))
_DEFAULTS = (10.0, 3000)


def annealing_table(cases: Sequence[Case]) -> str:
    """Share of optimal sets and mean energy gap, each with its interval, by way of annealing and by size."""
    runs = {case["runs"] for case in cases}
    columns = " | ".join(f"{reward} {clients} / {m}" for clients, m, reward in _COLUMNS)
    lines = [f"| neighbourhood, C, start ({runs.pop()} runs) | {columns} |"]
    lines.append("|---" * (1 + len(_COLUMNS)) + "|")
    published = [case for case in cases if (case["kappa"], case["steps"]) != _DEFAULTS]
    defaults = [case for case in cases if (case["kappa"], case["steps"]) == _DEFAULTS]
    for group, effort in ((published, ""), (defaults, ", κ = 10, 3,000 steps")):
        for way in _WAYS:
            found = {_column(c): c for c in group if _way(c) == way}
            if found:
                cells = (_gap_cell(found[column]) if column in found else "" for column in _COLUMNS)
                lines.append(f"| {way[0]}, {way[1]}, {way[2]}{effort} | " + " | ".join(cells) + " |")
    (widest,) = (c for c in published if _way(c) == ("swap", "spread", "random") and _column(c) == (30, 5, "R2"))
    least, greatest = (100 * f(widest["optimal_share_by_run"]) for f in (min, max))
    lines.append(f"\nSingle runs of plain swaps (spread) under R2 at 30 / 5: from {least:.0f} to {greatest:.0f} %.")
    return "\n".join(lines)


def _column(case: Case) -> tuple[int, int, str]:
    return case["clients"], case["m"], case["reward"]


def _way(case: Case) -> tuple[str, str, str]:
    return case["neighbourhood"], case["temperature"], case["start_set"]


def _gap_cell(case: Case) -> str:
    share, (low, high) = 100 * case["optimal_share"], (100 * x for x in case["optimal_share_ci95"])
    gap, low_gap, high_gap = (max(x, 0.0) for x in (case["gap_mean"], *case["gap_mean_ci95"]))  # rounding: -1e-16
    return f"{share:.1f} % [{low:.1f}, {high:.1f}], {gap:.3f} [{low_gap:.3f}, {high_gap:.3f}]"


def agnews_table(runs: Sequence[Case]) -> str:
    """Selections after the join of each newcomer, and accuracies, run by run."""
    lines = [
        "| preset | seed | chosen per relevant newcomer | per irrelevant newcomer | best | last |",
        "|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda run: (run["preset"], run["seed"])):
        relevant, irrelevant = (f"{run[name]:.1f}" for name in ("per_relevant", "per_irrelevant"))
        accuracies = f"{100 * run['best_accuracy']:.1f} % | {100 * run['final_accuracy']:.1f} %"
        lines.append(f"| `{run['preset']}` | {run['seed']} | {relevant} | {irrelevant} | {accuracies} |")
    return "\n".join(lines)


def agnews_run(run_dir: Path) -> dict[str, Any]:
    """What the table needs of a run of an AG-News preset, from its summary.json."""
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    newcomers = {n: g for n, g in summary["selections_by_group"].items() if g["join_round"] == 10}
    (kind,) = {name for name in newcomers if name != "relevant"}
    preset = {"poisoned": "fedts_poison_agnews", "flipped": "fedts_flip_agnews", "skewed": "fedts_skew_agnews"}[kind]
    per_client = {n: g["selections_after_join"] / g["clients"] for n, g in newcomers.items()}
    kept = {key: summary[key] for key in ("seed", "rounds", "best_accuracy", "final_accuracy", "data")}
    return {"preset": preset, **kept, "per_relevant": per_client["relevant"], "per_irrelevant": per_client[kind]}
