"""Makes the tables of benchmarks/reliability.md, and the README's table of the faults in whole runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Case = Mapping[str, Any]


def chaos_table(plays: Sequence[Case]) -> str:
    """The tables of how often each fault struck, and how often each invariant was checked and held."""
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
    """The table of faults in whole runs, by kind, and of runs that lost something. ValueError for an unknown fault."""
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


def stops_table(lines: Sequence[Case]) -> str:
    """The table of stops and sleeps, by process and kind: the measurements that they touched, and those not marked."""
    struck, totals = ([line for line in lines if (name in line)] for name in ("who", "observations"))
    kinds = dict.fromkeys((line["who"], line["how"]) for line in sorted(struck, key=lambda line: line["how"]))
    rows = ["| of | what | times | seconds | measurements touched | not marked |", "|---|---|---|---|---|---|"]
    for who, how in kinds:
        of_kind = [line for line in struck if (line["who"], line["how"]) == (who, how)]
        seconds = [line["seconds"] for line in of_kind]
        touched, missed = sum(line["touched"] for line in of_kind), sum(len(line["missed"]) for line in of_kind)
        rows.append(f"| {who} | {how} | {len(of_kind)} | {min(seconds)} to {max(seconds)} | {touched} | {missed} |")
    when = Counter(line["when"] for line in struck)
    wrong = sum(len(total["wrongly marked"]) for total in totals)
    untouched, loads = (sum(total[name] for total in totals) for name in ("untouched", "marked for load alone"))
    began = ", ".join(f"{moment} {count}" for moment, count in sorted(when.items()))
    misses, rejected = (sum(total[name] for total in totals) for name in ("misses", "rejected"))
    others = (
        f"They began: {began}. Of {untouched:,} measurements that none touched, {wrong} are marked for one. {loads} are"
        f" marked for load alone. {misses} jobs were missed, {rejected} answers rejected."
    )
    return "\n".join([*rows, "", others])


def _totals(plays: Sequence[Case], name: str) -> Counter[str]:
    return sum((Counter(play[name]) for play in plays), Counter())


def fuzz_table(runs: Sequence[Case]) -> str:
    """The tables of malformed messages sent to each layer, and of the state of server and clients meanwhile."""
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
    """The table of the server's event-loop lag and the pace of rounds, by load."""
    lines = ["| load | loop lag, p50 / p99 / worst | rounds a second | run.db and log |", "|---|---|---|---|"]
    for case in cases:
        lags = " / ".join(f"{case[f'lag_p{q}_ms']:.1f}" for q in (50, 99, 100))
        lines.append(f"| {case['case']} | {lags} ms | {case['rounds_per_s']:.2f} | {case['disk_bytes'] / 1e6:.1f} MB |")
    return "\n".join(lines)
