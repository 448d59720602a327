"""`pausefl bench NAME`: what this machine does with this software.

Quote ratios taken in one run, not absolute times: machines are noisy.

May live here: benchmarks, one a module, and the runs and images they share. Tests of behaviour live in `tests/`.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pausefl.results.fitting import FittingTable
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
    "overload": Benchmark("overload", "how late the server's event loop is while a crowd joins, or floods it"),
    "access_points": Benchmark("latency.access_points", "rounds of clients that share buckets: R1, R2, random"),
    "shaping": Benchmark("latency.shaping", "the token bucket against the kernel's tbf (needs root)"),
    "startup": Benchmark("startup", "how long clients take to connect, and the memory each has to itself"),
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
    "training": Benchmark("training", "a client's training in a round against the leanest loop of plain torch"),
    "privacy": Benchmark("privacy", "what a release costs: clip, noise and the durable ledger entry"),
}
"""By the name the command line knows."""


def run_benchmark(name: str, options: Mapping[str, int], *, as_json: bool) -> None:
    """Print one JSON object a line per case, or a table; ConfigError for an unknown name or option."""
    if name not in BENCHMARKS:
        raise ConfigError(f'bench "{name}": must be one of {", ".join(BENCHMARKS)}')
    module = importlib.import_module(f"pausefl.bench.{BENCHMARKS[name].module}")
    try:
        cases: Iterator[dict[str, Any]] = module.cases(**options)
    except TypeError:
        flags = " or ".join(f"--{option.replace('_', '-')}" for option in options)
        raise ConfigError(f"bench {name}: takes no {flags}") from None
    if as_json:
        for case in cases:
            print(json.dumps(case), flush=True)
    else:
        Console().print(FittingTable(_table(name, list(cases))))


def _table(name: str, cases: list[dict[str, Any]]) -> Table:
    columns = list(dict.fromkeys(key for case in cases for key in case if key != "name"))
    table = Table(title=f"{name}: {BENCHMARKS[name].measures}", title_justify="left")
    for column in columns:
        table.add_column(column)
    for case in cases:
        table.add_row(*(_text(case.get(column)) for column in columns))
    return table


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
