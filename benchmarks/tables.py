"""The tables of benchmarks/peers.md, from docs/results/benchmarks.jsonl; docs/generated_tables.py writes them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.environments import SYSTEMS
from benchmarks.plan import CELLS, TRAINING, cells_of

Line = Mapping[str, Any]

TARGETS = {"10 clients, 4 kB": (2.5, 4.0), "10 clients, 1 MB": (3.0, 3.0), "10 clients, 10 MB": (4.2, 5.0)}
"""By cell, two targets for Flower 1.17's round time divided by pausefl's: the one to beat, and the one aimed at."""


def session_table(lines: Sequence[Line]) -> str:
    """A line about the machine, and a table of the systems with their versions and numbers of plays."""
    if not lines:
        return "Not measured yet."
    head, plays = lines[0], lines[1:]
    text = [machine_line(lines), "", "| system | versions | plays |", "|---|---|---|"]
    for system, versions in head["versions"].items():
        used = ", ".join(f"{name} {version}" for name, version in versions.items())
        own = f"pausefl {head['pausefl']}, {used}" if system == "pausefl" else used
        text.append(f"| {SYSTEMS[system].shown} | {own} | {sum(line['system'] == system for line in plays)} |")
    return "\n".join(text)


def machine_line(lines: Sequence[Line]) -> str:
    """A line that states the machine, the number of repetitions, and how busy other processes were."""
    machine, plays = lines[0]["machine"], [line for line in lines[1:] if "others" in line]
    last = {line["cell"]: line["repetition"] for line in sorted(plays, key=lambda line: line["repetition"])}
    repetitions = " to ".join(map(str, sorted({min(last.values()), max(last.values())})))
    others = max(line["others"] for line in plays)
    where = f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}"
    return f"{where}; {repetitions} repetitions. Other processes took {100 * others:.0f} % of the machine at most."


def round_table(lines: Sequence[Line]) -> str:
    """The table of the median round time, by cell and system."""
    return _grid(lines, lambda found: _ms(_median(found, "round_s")))


def ratio_table(lines: Sequence[Line]) -> str:
    """The table of round times divided by pausefl's in the same repetition: median and range, by cell and system."""
    systems = [name for name in _systems(lines) if name != "pausefl"]
    rows = [["round", *(SYSTEMS[name].shown for name in systems), "Flower 1.17: to beat", "aimed at"]]
    for cell in _cells(lines):
        own = _by_repetition(lines, cell, "pausefl")
        cells = [_ratio(own, _by_repetition(lines, cell, name)) for name in systems]
        rows.append([cell, *cells, *(f"{target:.1f}" for target in TARGETS.get(cell, ()))])
    return _table(rows)


def cpu_table(lines: Sequence[Line]) -> str:
    """The table of the processor time of a round, summed over all processes, by cell and system."""
    return _grid(lines, lambda found: _ms(_median(found, "cpu_s")))


def memory_table(lines: Sequence[Line]) -> str:
    """The table of memory in MB: the sum of peak resident sets, and the PSS, where shared pages are divided."""
    return _grid(lines, lambda f: f"{_median(f, 'peak_rss_bytes') / 1e6:,.0f} / {_median(f, 'pss_bytes') / 1e6:,.0f}")


def training_table(lines: Sequence[Line]) -> str:
    """The table of the whole training: time, processor time, memory and accuracy, by system."""
    head = ["system", "300 rounds", "times pausefl's", "with start", "processor time", "memory (MB)", "accuracy"]
    rows, own = [head], _by_repetition(lines, TRAINING, "pausefl")
    for system in _systems(lines):
        played = _by_repetition(lines, TRAINING, system)
        if found := list(played.values()):
            rounds = found[0]["rounds"]
            times = (_median(found, "round_s") * rounds, _median(found, "whole_s"), _median(found, "cpu_s") * rounds)
            whole_s, started_s, cpu_s = (f"{seconds:.1f} s" for seconds in times)
            memory = f"{_median(found, 'peak_rss_bytes') / 1e6:,.0f} / {_median(found, 'pss_bytes') / 1e6:,.0f}"
            ratio = "1" if system == "pausefl" else _ratio(own, played)
            accuracy = _accuracy(list(_by_repetition(lines, TRAINING, system, "accuracy").values()))
            rows.append([SYSTEMS[system].shown, whole_s, ratio, started_s, cpu_s, memory, accuracy])
    return _table(rows) if len(rows) > 1 else "Not measured yet."


def simulators_table(lines: Sequence[Line]) -> str:
    """The table of simulations, by case and system. Times are also divided by the virtual clock's, per repetition."""
    head = [
        "case",
        "system",
        "a round",
        "times ours",
        "whole command",
        "times ours",
        "processor time a round",
        "memory",
    ]
    rows = [[*head, "accuracy"]]
    for cell in cells_of("simulators"):
        own = _by_repetition(lines, cell, "virtual")
        for system in ("virtual", "pfl"):
            played = _by_repetition(lines, cell, system)
            if not (found := list(played.values())):
                continue
            whole_s, memory_mb = _median(found, "whole_s"), _median(found, "peak_rss_bytes") / 1e6
            rows.append(
                [
                    cell.removeprefix("simulated "),
                    SYSTEMS[system].shown,
                    _ms(_median(found, "round_s")),
                    _ratio(own, played),
                    f"{whole_s:.1f} s",
                    _ratio(own, played, "whole_s"),
                    _ms(_median(found, "cpu_s")),
                    f"{memory_mb:,.0f} MB",
                    _accuracy(found),
                ]
            )
    return _table(rows)


def steps_table(lines: Sequence[Line]) -> str:
    """The table of asynchronous steps a second, with quartiles. Times are also divided by pausefl's, per repetition."""
    rows = [["steps", "system", "a second", "times pausefl's time", "processor time a step", "memory (MB)"]]
    for cell in _cells(lines):
        own = _by_repetition(lines, cell, "pausefl")
        for system in _systems(lines):
            played = _by_repetition(lines, cell, system)
            if not (found := list(played.values())):
                continue
            memory = f"{_median(found, 'peak_rss_bytes') / 1e6:,.0f} / {_median(found, 'pss_bytes') / 1e6:,.0f}"
            ratio = "1" if system == "pausefl" else _ratio(own, played)
            speed, cpu = _quartiles([1 / line["round_s"] for line in found]), _ms(_median(found, "cpu_s"))
            rows.append([cell, SYSTEMS[system].shown, speed, ratio, cpu, memory])
    return _table(rows)


def _quartiles(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _short(values[0])
    low, middle, high = map(_short, quantiles(values, n=4, method="inclusive"))
    return f"{middle} ({low}–{high})"


def _grid(lines: Sequence[Line], shown: Callable[[list[Line]], str]) -> str:
    systems = _systems(lines)
    rows = [["round", *(SYSTEMS[name].shown for name in systems)]]
    for cell in _cells(lines):
        found = (list(_by_repetition(lines, cell, name).values()) for name in systems)
        rows.append([cell, *(shown(plays) if plays else "" for plays in found)])
    return _table(rows)


def _systems(lines: Sequence[Line]) -> list[str]:
    return [name for name in SYSTEMS if any(line["system"] == name for line in lines[1:])]


def _cells(lines: Sequence[Line]) -> Iterator[str]:
    """The names of the cells that were played, except the training."""
    played = {line["cell"] for line in lines[1:]}
    return (cell for cell in CELLS if cell in played and cell != TRAINING)


def _by_repetition(lines: Sequence[Line], cell: str, system: str, measured: str = "round_s") -> dict[int, Line]:
    """The plays that have the figure `measured`, by repetition. Some have only an accuracy, others only times."""
    of = (line for line in lines[1:] if (line["cell"], line["system"]) == (cell, system))
    return {line["repetition"]: line for line in of if measured in line}


def _median(found: Sequence[Line], name: str) -> float:
    return float(median(line[name] for line in found))


def _accuracy(found: Sequence[Line]) -> str:
    values = [100 * line["accuracy"] for line in found]
    spread = f" ({min(values):.1f}–{max(values):.1f}, {len(values)} plays)" if len(values) > 1 else ""
    return f"{median(values):.1f} %{spread}"


def _ratio(own: Mapping[int, Line], other: Mapping[int, Line], measured: str = "round_s") -> str:
    """The median ratio of a figure, other by own, and its range, over the repetitions that both played."""
    ratios = [other[k][measured] / own[k][measured] for k in sorted(own.keys() & other.keys())]
    if not ratios:
        return ""
    spread = f" ({_short(min(ratios))}–{_short(max(ratios))})" if len(ratios) > 1 else ""
    return _short(median(ratios)) + spread


def _ms(seconds: float) -> str:
    return f"{_short(1000 * seconds)} ms"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    width = len(rows[0])
    padded = [[*row, *[""] * (width - len(row))] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return "\n".join([lines[0], "|---" * width + "|", *lines[1:]])
