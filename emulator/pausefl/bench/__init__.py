"""`pausefl bench NAME`: what this machine does with this software.

Quote ratios taken in one run, not absolute times: machines are noisy.

May live here: benchmarks, one a module, and the runs and images they share. Tests of behaviour live in `tests/`.
"""

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from pausefl.terminal_table import FittingTable, plain_console
from pausefl_proto.errors import ConfigError


class Benchmark(NamedTuple):
    """One benchmark."""

    module: str
    """In this package, with `cases(**options)`, a generator of JSON-able objects."""
    measures: str


BENCHMARKS = {
    "rounds": Benchmark("rounds", "a whole round against a bare gRPC echo of the same bytes"),
    "scraping": Benchmark(
        "scraping", "rounds under scraping and with the live page open, against rounds without either"
    ),
    "fidelity": Benchmark("latency.fidelity", "measured minus drawn latency"),
    "twin": Benchmark("latency.twin", "the real clock against the virtual one, exchange by exchange"),
    "scale": Benchmark("scale", "how many clients one machine holds, and how fast the rounds still are"),
    "scale_curve": Benchmark("scale.curve", "what a round costs among 100 to 30,000 clients, of whom 50 are chosen"),
    "overload": Benchmark("overload", "how late the server's event loop is while a crowd joins, or floods it"),
    "access_points": Benchmark("latency.access_points", "rounds of clients that share buckets: R1, R2, random"),
    "shaping": Benchmark("latency.shaping", "the token bucket against the kernel's tbf (needs root)"),
    "startup": Benchmark(
        "startup", "how long clients take to connect, the memory each has to itself, and short runs whole"
    ),
    "selection": Benchmark(
        "selection", "how long the exact searches and the annealing take, and whole runs beside the archived ones"
    ),
    "annealing": Benchmark(
        "selection.annealing",
        "how near annealing comes to the optimum, over runs with a seed and client ids of their own",
    ),
    "censoring": Benchmark(
        "latency.censoring", "estimates of latency and regret where rounds have deadlines and links heavy tails"
    ),
    "training": Benchmark(
        "training",
        "a client's training against the leanest loop of plain torch, and clients together against one by one",
    ),
    "encodings": Benchmark("latency.encodings", "updates in fewer bytes over a narrow way up: latency and accuracy"),
    "privacy": Benchmark("privacy", "what a release costs: clip, noise and the durable ledger entry"),
}
"""The benchmarks, by their names on the command line."""

NAMES = (*BENCHMARKS, "all", "diff")
"""What `pausefl bench` takes: a benchmark, the whole set of them, or the comparison of two measurements of it."""


def run_benchmark(name: str, options: Mapping[str, int], *, as_json: bool) -> None:
    """Print one JSON object a line per case, or a table; ConfigError for an unknown name or option."""
    if name not in BENCHMARKS:
        raise ConfigError(f'bench "{name}": must be one of {", ".join(NAMES)}')
    module = importlib.import_module(f"pausefl.bench.{BENCHMARKS[name].module}")
    try:
        cases: Iterator[dict[str, Any]] = module.cases(**options)
    except TypeError:
        flags = " or ".join(f"--{option.replace('_', '-')}" for option in options)
        raise ConfigError(f"bench {name}: takes no {flags}") from None
    if as_json:
        for case in cases:
            print(json.dumps(_finite(case)), flush=True)
    else:
        plain_console().print(FittingTable(_table(name, list(cases))))


def run_all(*, as_json: bool) -> None:
    """Measure the whole set in its short form; print one JSON object, or a table of figures."""
    from pausefl.bench.whole import measured

    found = measured(plain_console(stderr=True).print)
    if as_json:
        print(json.dumps(found))
        return
    figures = [{**figure, "median": float(np.median(figure.pop("values")))} for figure in found["figures"]]
    plain_console().print(FittingTable(_rows("the whole set", figures)))


def compare(paths: Sequence[str], *, as_json: bool) -> None:
    """Print which figures of two files of `bench all --json` differ beyond noise; ConfigError for other files."""
    from pausefl.bench.whole.changes import changes, in_words, read_measurement

    if len(paths) != 2:
        raise ConfigError(f"bench diff: needs two files that `pausefl bench all --json` wrote, not {len(paths)}")
    before, after = (read_measurement(Path(path)) for path in paths)
    found = changes(before, after)
    if as_json:
        lines = iter([json.dumps(asdict(change) | {"verdict": change.verdict}) for change in found])
    else:
        lines = in_words(before, after, found)
    for line in lines:
        print(line)


def _finite(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case as JSON has it, which knows no infinity: null in its place."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in case.items()}


def _table(name: str, cases: list[dict[str, Any]]) -> Table:
    return _rows(f"{name}: {BENCHMARKS[name].measures}", cases)


def _rows(title: str, cases: list[dict[str, Any]]) -> Table:
    columns = list(dict.fromkeys(key for case in cases for key in case if key != "name"))
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for case in cases:
        table.add_row(*(_text(case.get(column)) for column in columns))
    return table


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
