"""Writes the tables of measured figures into the documents, from the files under docs/results.

make benchmarks                                     # writes docs/results/benchmarks.jsonl
pausefl bench annealing --json > docs/results/annealing.jsonl
make chaos                                          # writes docs/results/chaos.jsonl
pausefl bench overload --json > docs/results/overload.jsonl
pausefl bench all --json > docs/results/speed.json
pausefl bench encodings --json > docs/results/encodings.jsonl
pausefl bench twin --json > docs/results/twin.jsonl
make fuzz                                           # writes docs/results/fuzz.json
python docs/generated_tables.py                     # every table anew
python docs/generated_tables.py agnews RUN_DIR...   # after runs of the AG-News presets: first their summaries
python docs/generated_tables.py tuning DIR...       # after pausefl tune ... --run-dir DIR: first their fronts
"""

import json
import re
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import tables as peers

HERE = Path(__file__).parent
RESULTS = HERE / "results"
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


def chaos_table(plays: Sequence[Case]) -> str:
    """How often each fault struck, and how often each invariant was found to hold."""
    faults, held = _totals(plays, "faults"), _totals(plays, "held")
    rounds, seconds = (sum(play[name] for play in plays) for name in ("rounds", "seconds"))
    runs = Counter(play["scenario"] for play in plays)
    played = ", ".join(f"{name} {count}" for name, count in runs.items())
    violated = [play["violated"] for play in plays if "violated" in play]
    total = f"{sum(faults.values()):,} faults in {len(plays)} runs ({played}) of {rounds:,} rounds together"
    lines = [
        f"{total}, in {seconds / 60:.0f} minutes. Runs in which something did not hold: {len(violated)}.",
        "",
        "| fault | struck |",
        "|---|---|",
        *(f"| {kind} | {count:,} |" for kind, count in sorted(faults.items())),
        "",
        "| what held | looked at |",
        "|---|---|",
        *(f"| {what} | {count:,} |" for what, count in sorted(held.items())),
    ]
    skipped = {kind: reason for play in plays for kind, reason in play.get("skipped", {}).items()}
    return "\n".join([*lines, *(f"\nNot tested here: {kind} ({reason})." for kind, reason in skipped.items())])


_FAULTS = {
    "processes killed or stopped": ("kill ", "stop "),
    "bytes lost, doubled, reordered, flipped, or cut off": ("drop", "duplicate", "reorder", "flip", "reset", "close"),
    "lines slow, mute in one direction, or refused": ("latency", "1 kB/s", "half-open", "refuse"),
    "clocks set, disks filled": ("clock", "full disk"),
}


def reliability_table(plays: Sequence[Case]) -> str:
    """What struck whole runs, by kind, and what was lost."""
    faults, lost = _totals(plays, "faults"), sum("violated" in play for play in plays)
    kinds = {
        kind: sum(count for fault, count in faults.items() if fault.startswith(starts))
        for kind, starts in _FAULTS.items()
    }
    if sum(kinds.values()) != sum(faults.values()):
        raise ValueError(f"faults of no kind among {sorted(faults)}")
    rounds = sum(play["rounds"] for play in plays)
    lines = ["| what struck | how often |", "|---|---|", *(f"| {kind} | {count:,} |" for kind, count in kinds.items())]
    runs = f"{len(plays)} runs, {rounds:,} rounds"
    return "\n".join([*lines, f"| runs that lost a round, an ε or a process ({runs}) | {lost} |"])


def _totals(plays: Sequence[Case], name: str) -> Counter[str]:
    return sum((Counter(play[name]) for play in plays), Counter())


def fuzz_table(runs: Sequence[Case]) -> str:
    """How many malformed messages each layer was sent, and what the two ends held meanwhile."""
    server, client = (runs[0][half] for half in ("server", "client"))
    lines = ["| malformed messages | to | count |", "|---|---|---|"]
    for half, found in (("the server", server), ("a process of clients", client)):
        lines += [f"| {layer} | {half} | {sum(ways.values()):,} |" for layer, ways in found["sent"].items()]
    memory = "{:.0f} MB at most, {:.2f} times what it was before"
    peaks = [(f["peak_rss_bytes"] / 1e6, f["peak_rss_bytes"] / f["base_rss_bytes"]) for f in (server, client)]
    pace = f"{server['rounds_per_s_fuzz']:.2f} a second, {100 * server['pace']:.0f} % of those in quiet turns"
    jobs = f"{client['sound_jobs_answered']:,} of {client['sound_jobs']:,}"
    lines += [
        "",
        "| what was looked at | found |",
        "|---|---|",
        f"| rounds | {pace} |",
        f"| load of the {server['cores']} cores, others' work among it | {server['load']} |",
        f"| the server's memory | {memory.format(*peaks[0])} |",
        f"| run.db and the server's output | {server['disk_bytes'] / 1e6:.1f} MB for {server['rounds']:,} rounds |",
        f"| hellos and updates that the server rejected | {server['rejected']:,} |",
        f"| the clients' memory | {memory.format(*peaks[1])} |",
        f"| sound jobs in between that the clients answered | {jobs} |",
        f"| releases, each in its client's ledger at its price | {client['releases']:,} |",
        f"| tracebacks, server and clients | {server['tracebacks'] + client['tracebacks']} |",
    ]
    return "\n".join(lines)


def overload_table(cases: Sequence[Case]) -> str:
    """How late the server's event loop was, and how rounds went on, by load."""
    lines = ["| load | loop lag, p50 / p99 / worst | rounds a second | run.db and log |", "|---|---|---|---|"]
    for case in cases:
        lags = " / ".join(f"{case[f'lag_p{q}_ms']:.1f}" for q in (50, 99, 100))
        lines.append(f"| {case['case']} | {lags} ms | {case['rounds_per_s']:.2f} | {case['disk_bytes'] / 1e6:.1f} MB |")
    return "\n".join(lines)


def twin_table(cases: Sequence[Case]) -> str:
    """How far the real clock is from the virtual one, by experiment."""
    lines = [
        "| experiment | same sets | exchanges | residual: p50 / p99 / worst | wire | queue | training | noise | link |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        residuals = " / ".join(f"{case[f'residual_p{q}_ms']:.1f}" for q in (50, 99, 100))
        parts = " | ".join(f"{case[f'{part}_ms']:+.2f} ms" for part in ("wire", "queue", "train", "privatise", "link"))
        sets = f"{case['same_sets']} of {case['rounds']}"
        lines.append(f"| {case['case']} | {sets} | {case['exchanges']} | {residuals} ms | {parts} |")
    return "\n".join(lines)


def tuning_tables(searches: Sequence[Case]) -> str:
    """For each search its front on fresh seeds, and what the real clock says of the recommended setting."""
    return "\n\n".join(_tuning_table(search) for search in searches)


def tuning_search(run_dir: Path) -> dict[str, Any]:
    """What the tables need of a search: its summary and the command that repeats it."""
    summary = json.loads((run_dir / "tuning.json").read_text("utf-8"))
    front = [{**point, "point": _short_keys(point["point"])} for point in summary["front"]]
    best = [_best(front, objective)["name"] for objective in summary["objectives"]]
    shown = [point for point in front if point["name"] in {*best, "recommended", "published"}]
    size = {"trials": len(summary["trials"]), "front_size": len(front) - 1}
    return {**summary, **size, "front": shown, "name": run_dir.name}


def _best(front: Sequence[Case], objective: Case) -> Case:
    sign = 1 if objective["greatest"] is None else -1
    return min(front, key=lambda point: sign * point["figures"][objective["name"]])


def _tuning_table(search: Case) -> str:
    keys, objectives = [key.rpartition(".")[2] for key in search["keys"]], search["objectives"]
    columns = ["setting", *keys, *(objective["label"] for objective in objectives)]
    fresh, trials = (search[f"{kind}_seeds"] for kind in ("fresh", "trial"))
    found = f"{search['trials']} settings on seeds {trials[0]} to {trials[-1]}, {search['front_size']} on the front"
    how = "simulated" if search["by"] == "simulate" else f"played on the {search['clock']} clock"
    shown = f"Below, {how} under fresh seeds {fresh[0]} to {fresh[-1]}: the recommended one, the best in each objective"
    lines = [
        f"### `{search['name']}`",
        "",
        f"`{search['command']}`",
        "",
        f"{found}. {shown}, and the published one.",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
        *(_tuning_row(point, keys, objectives) for point in search["front"]),
    ]
    if search["confirmed"]:
        real = search["real_seeds"]
        heads = ["setting", *(objective["label"] for objective in objectives)]
        lines += ["", f"On the real clock, fresh seeds {real[0]} to {real[-1]}:", ""]
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        lines += [_tuning_row(point, [], objectives) for point in search["confirmed"]]
    return "\n".join([*lines, "", f"![The front of {search['name']}](tuning-{search['name']}.png)"])


def _tuning_row(point: Case, keys: Sequence[str], objectives: Sequence[Case]) -> str:
    values = (f"{point['point'][key]:.3g}" if key in point["point"] else "" for key in keys)
    return f"| {point['name']} | " + " | ".join([*values, *(_tuned(point, each["name"]) for each in objectives)]) + " |"


def _tuned(point: Case, name: str) -> str:
    change, figure = point["changes"].get(name), f"{point['figures'][name]:.3g}"
    if change is None:
        return figure
    interval = "" if change["low"] is None else f" [{100 * change['low']:+.0f}, {100 * change['high']:+.0f}]"
    return f"{figure} ({100 * change['mean']:+.0f} %{interval})"


def _short_keys(point: Case) -> dict[str, Any]:
    return {key.rpartition(".")[2]: value for key, value in point.items()}


SPEED_BENCHMARKS = (
    *("machine", "rounds", "training", "fidelity", "twin", "startup", "scale", "overload"),
    *("scraping", "selection", "privacy"),
)
"""Those of the whole set, in the order of speed.md."""


def encodings_table(cases: Sequence[Case]) -> str:
    """Bytes of an update, latency of a round and accuracy, by how updates travel."""
    lines = ["| `wire.dtype` | bytes of an update | latency of a round | accuracy at the end |", "|---|---|---|---|"]
    for case in cases:
        latency = _with_interval(case["round_latency_s"], case["round_latency_s_ci95"], "{:.3f}")
        ends = [100 * end for end in case["final_accuracy_ci95"]]
        accuracy = _with_interval(100 * case["final_accuracy"], ends, "{:.1f}")
        lines.append(f"| `{case['case']}` | {case['update_bytes']:,} | {latency} s | {accuracy} % |")
    return "\n".join(lines)


def _with_interval(mean: float, ends: Sequence[float], form: str) -> str:
    low, high = map(form.format, ends)
    return f"{form.format(mean)} [{low}, {high}]"


def speed_origin(runs: Sequence[Case]) -> str:
    """Where, when and with what the figures of speed.md were measured."""
    (run,) = runs
    machine, versions = run["machine"], run["versions"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    software = f"pausefl {run['version']} (commit {run['commit']}), Python {run['python']}"
    load = f"{run['load_before'][0]:.1f} before, {run['load_after'][0]:.1f} after"
    return (
        f"Measured {run['started'][:10]} with {software},\n"
        f"{packages}, on {machine['cores']} cores ({machine['processor']}), {memory},\n{machine['system']}: "
        f"{run['repetitions']} repetitions in {run['took_s'] / 60:.0f} minutes. The machine's load was {load}."
    )


def speed_table(benchmark: str, runs: Sequence[Case]) -> str:
    """The figures of one benchmark of the whole set: their median over the repetitions, least and greatest."""
    figures = [figure for run in runs for figure in run["figures"] if figure["benchmark"] == benchmark]
    names = list(dict.fromkeys(figure["figure"] for figure in figures))
    lines = ["| case | " + " | ".join(f"`{name}`" for name in names) + " |", "|---" * (1 + len(names)) + "|"]
    for case in dict.fromkeys(figure["case"] for figure in figures):
        found = {figure["figure"]: figure["values"] for figure in figures if figure["case"] == case}
        cells = (_spread(name, found[name]) if name in found else "" for name in names)
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


_UNITS = (("_per_s", 1.0, "/s"), ("_s", 1e3, " ms"), ("_ms", 1.0, " ms"), ("_bytes", 1e-6, " MB"), ("", 1.0, ""))


def _spread(name: str, values: Sequence[float]) -> str:
    factor, unit = next((factor, unit) for ending, factor, unit in _UNITS if name.endswith(ending))
    if unit == " ms" and factor * max(values) >= 1000:
        factor, unit = factor / 1000, " s"
    middle, low, high = (f"{factor * f(values):.3g}" for f in (statistics.median, min, max))
    return f"{middle}{unit} ({low}–{high})"


TABLES: tuple[tuple[str, str, str, Callable[[Sequence[Case]], str]], ...] = (
    ("annealing", "selection.md", "annealing.jsonl", annealing_table),
    ("agnews", "fed-ts.md", "agnews.jsonl", agnews_table),
    ("benchmarks-session", "benchmarks.md", "benchmarks.jsonl", peers.session_table),
    ("benchmarks-rounds", "benchmarks.md", "benchmarks.jsonl", peers.round_table),
    ("benchmarks-ratios", "benchmarks.md", "benchmarks.jsonl", peers.ratio_table),
    ("benchmarks-processor", "benchmarks.md", "benchmarks.jsonl", peers.cpu_table),
    ("benchmarks-memory", "benchmarks.md", "benchmarks.jsonl", peers.memory_table),
    ("benchmarks-training", "benchmarks.md", "benchmarks.jsonl", peers.training_table),
    ("chaos", "reliability.md", "chaos.jsonl", chaos_table),
    ("reliability", "../README.md", "chaos.jsonl", reliability_table),
    ("fuzz", "reliability.md", "fuzz.json", fuzz_table),
    ("overload", "reliability.md", "overload.jsonl", overload_table),
    ("twin", "virtual-clock.md", "twin.jsonl", twin_table),
    ("tuning", "tuning.md", "tuning.jsonl", tuning_tables),
    ("encodings", "network.md", "encodings.jsonl", encodings_table),
    ("speed: origin", "speed.md", "speed.json", speed_origin),
    *((f"speed: {name}", "speed.md", "speed.json", partial(speed_table, name)) for name in SPEED_BENCHMARKS),
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
        lines = (json.dumps(agnews_run(Path(run_dir))) for run_dir in arguments[1:])
        (RESULTS / "agnews.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    if arguments[:1] == ["tuning"]:
        searches = [tuning_search(Path(run_dir)) for run_dir in arguments[1:]]
        text = "".join(f"{json.dumps(search, ensure_ascii=False)}\n" for search in searches)
        (RESULTS / "tuning.jsonl").write_text(text, "utf-8")
        for run_dir in map(Path, arguments[1:]):
            shutil.copyfile(run_dir / "front.png", HERE / f"tuning-{run_dir.name}.png")
    for name, document, results, table in TABLES:
        path = HERE / document
        path.write_text(with_table(path.read_text("utf-8"), name, table(read_lines(RESULTS / results))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
