"""Makes the tables of timings in docs/speed.md, benchmarks/README.md and docs/network.md."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Case = Mapping[str, Any]

SPEED_BENCHMARKS = {
    "speed.md": ("rounds", "training", "fidelity", "startup"),
    "../benchmarks/README.md": ("machine", "twin", "overload", "scraping", "selection", "privacy"),
}
"""The benchmarks of the whole set, by the document that has their tables."""


def twin_table(cases: Sequence[Case]) -> str:
    """The table of differences between the real clock and the virtual one, by experiment."""
    columns = [
        "experiment",
        "same sets",
        "changed choices",
        "exchanges",
        "residual: p50 / p99 / worst",
        "error: p50 / p99",
        "wire",
        "queue",
        "training",
        "noise",
        "link",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for case in (each for each in cases if "exchanges" in each):
        residuals = " / ".join(f"{case[f'residual_p{q}_ms']:.1f}" for q in (50, 99, 100))
        parts = " | ".join(f"{case[f'{part}_ms']:+.2f} ms" for part in ("wire", "queue", "train", "privatise", "link"))
        errors = " / ".join(f"{case[f'error_p{q}_ms']:.1f}" for q in (50, 99))
        sets = f"{case['same_sets']} of {case['rounds']}"
        gap = f", by {case['changed_gap_max']:.4f} at most" if case["changed_choices"] else ""
        lines.append(
            f"| {case['case']} | {sets} | {case['changed_choices']}{gap} | {case['exchanges']} | {residuals} ms"
            f" | {errors} ms | {parts} |"
        )
    return "\n".join(lines)


def twin_steps_table(cases: Sequence[Case]) -> str:
    """The table of the elapsed time and staleness of asynchronous steps under both clocks."""
    lines = ["| steps | elapsed: real / virtual | ratio | staleness: real / virtual |", "|---|---|---|---|"]
    for case in (each for each in cases if "steps" in each):
        elapsed, staleness = (
            " / ".join(f"{case[f'{clock}_{name}']:.2f}" for clock in ("real", "virtual"))
            for name in ("elapsed_s", "staleness")
        )
        lines.append(f"| {case['steps']}, {case['case']} | {elapsed} s | {case['elapsed_ratio']:.3f} | {staleness} |")
    return "\n".join(lines)


def scale_table(cases: Sequence[Case]) -> str:
    """The table of connecting time, rounds, and the server's processor time and memory, by number of clients."""
    titles = (
        "clients",
        "connected",
        "rounds a second",
        "round, p50 / p99",
        "server's processor time a round",
        "its memory",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for case in cases:
        spread = " / ".join(f"{1e3 * case[f'{name}_s']:.0f}" for name in ("median", "p99"))
        cpu_ms, memory = 1e3 * case["server_cpu_per_round_s"], f"{case['server_rss_bytes'] / 1e6:.0f} MB"
        speed = f"{case['connect_s']:.1f} s | {case['rounds_per_s']:.1f} | {spread} ms | {cpu_ms:.1f} ms"
        lines.append(f"| {case['case']} | {speed} | {memory} |")
    return "\n".join(lines)


def steps_table(cases: Sequence[Case]) -> str:
    """The table of asynchronous steps a second, and of the server's processor time per step."""
    lines = ["| case | steps a second | step, p50 / p99 | server's processor time a step |", "|---|---|---|---|"]
    for case in cases:
        spread = " / ".join(f"{1e3 * case[f'{name}_s']:.1f}" for name in ("median", "p99"))
        cpu_ms = 1e3 * case["server_cpu_per_step_s"]
        lines.append(f"| {case['case']} | {case['steps_per_s']:.0f} | {spread} ms | {cpu_ms:.1f} ms |")
    return "\n".join(lines)


def encodings_table(cases: Sequence[Case]) -> str:
    """The table of the bytes of an update, the latency of a round and the accuracy, by encoding."""
    titles = ("`wire.dtype`", "`wire.top_share`", "bytes of an update", "latency of a round", "accuracy at the end")
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---|---|"]
    for case in cases:
        latency = _with_interval(case["round_latency_s"], case["round_latency_s_ci95"], "{:.3f}")
        ends = [100 * end for end in case["final_accuracy_ci95"]]
        accuracy = _with_interval(100 * case["final_accuracy"], ends, "{:.1f}")
        lines.append(
            f"| `{case['case']}` | {case['top_share']:g} | {case['update_bytes']:,} | {latency} s | {accuracy} % |"
        )
    return "\n".join(lines)


def _with_interval(mean: float, ends: Sequence[float], form: str) -> str:
    low, high = map(form.format, ends)
    return f"{form.format(mean)} [{low}, {high}]"


def gpu_training_table(measured: Sequence[Case]) -> str:
    """The table of a round's training time on one processor core and, in four ways, on a GPU, with their ratios."""
    (found,) = measured
    values = [part["values"] for part in found["parts"] if part["values"]]
    shares = {case["preset"]: case["busy_share"] for case in values if "busy_share" in case}
    ways = "alone_s", "together_s", "captured_s", "replayed_s"
    titles = (
        "clients and steps of a round",
        "processor, one core",
        "one by one",
        "together",
        "one by one, graphs",
        "together, graphs",
        "than two cores",
        "than one by one",
        "device busy",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for case in (case for case in values if "on_processor" in case):
        on_core_s, best_s = case["on_processor"]["alone_s"], case["replayed_s"]
        times = " | ".join(_ms(seconds) for seconds in (on_core_s, *(case[way] for way in ways)))
        faster = " | ".join(f"{ratio:.3g} times" for ratio in (on_core_s / 2 / best_s, case["alone_s"] / best_s))
        what = case["case"].rpartition(",")[0].replace(" together", "")
        lines.append(f"| {what} | {times} | {faster} | {shares[case['preset']]:.0%} |")
    return "\n".join(lines)


def gpu_parts_table(measured: Sequence[Case]) -> str:
    """The table of the other parts of `make gpu`: their results and durations."""
    (found,) = measured
    lines = [f"| part, on {found['device']} with torch {found['torch']} | took | found |", "|---|---|---|"]
    for part in found["parts"]:
        values = part["values"] or {}
        if "rounds" in values:
            grown = ", ".join(f"{kind} {values[f'{kind}_growth_bytes']:,}" for kind in ("allocated", "pinned"))
            said = f"bytes more after {values['rounds']:,} rounds: {grown}"
        elif values:
            continue
        else:
            said = "ok" if part["exit_status"] == 0 else f"exit status {part['exit_status']}"
        lines.append(f"| {part['name']} | {part['took_s']:.0f} s | {said} |")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def speed_origin(runs: Sequence[Case]) -> str:
    """A paragraph on where, when and with which versions the figures of speed.md were measured."""
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
    """The table of one benchmark of the whole set: each figure's median over the repetitions, least and greatest."""
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
