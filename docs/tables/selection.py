"""Makes the table of annealing in benchmarks/README.md and the tables of newcomers in docs/fed-ts.md."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pausefl.results.statistics import quartiles

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
    """The table of the share of optimal sets and the mean energy gap, with intervals, by way of annealing and size."""
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


def newcomers_table(lines: Sequence[Case]) -> str:
    """The table of how often an average newcomer of each role was chosen, by seed, and of the last accuracies."""
    runs: dict[str, list[Case]] = {}
    for line in sorted(lines, key=lambda line: line["run"]["seed"]):
        runs.setdefault(line["series"], []).append(line["run"])
    seeds = [run["seed"] for run in next(iter(runs.values()))]
    rows = [f"| scenario (seeds {seeds[0]} to {seeds[-1]}) | per relevant newcomer | per irrelevant newcomer | last |"]
    rows.append("|---|---|---|---|")
    for series, of in runs.items():
        cells = [_chosen(of, "relevant"), _chosen(of, "irrelevant")]
        low, middle, high = quartiles([100 * run["last_accuracy"] for run in of])
        rows.append(f"| `{series}` | {' | '.join(cells)} | median {middle:.1f} % ({low:.1f}–{high:.1f}) |")
    return "\n".join(rows)


def _chosen(runs: Sequence[Case], role: str) -> str:
    """The mean number of selections of a newcomer of this role: over all seeds, then for each seed."""
    chosen = [fmean(n["chosen"] for n in run["newcomers"].values() if n["role"] == role) for run in runs]
    return f"**{fmean(chosen):.1f}**: {', '.join(f'{each:.1f}' for each in chosen)}"
