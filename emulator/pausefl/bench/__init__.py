"""`pausefl bench NAME`: measures this software on this machine.

Quote ratios taken in one run, not absolute times: machines are noisy.

May live here: benchmarks for users, and the runs and images that they need. This project's own instruments are in
`benchmarks/own`, tests of behaviour in `tests/`.
"""

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rich.table import Table

from pausefl.results.summary import finite
from pausefl.terminal_table import FittingTable, plain_console
from pausefl_proto.errors import ConfigError


class Benchmark(NamedTuple):
    """One benchmark."""

    module: str
    """The name of a module with `cases(**options)`, a generator of objects that JSON can hold."""
    measures: str


BENCHMARKS = {
    "rounds": Benchmark("pausefl.bench.runs", "a whole round against a bare gRPC echo of the same bytes"),
    "fidelity": Benchmark("pausefl.bench.fidelity", "measured minus drawn latency"),
    "scale": Benchmark("pausefl.bench.scale", "how many clients one machine holds, and how fast the rounds still are"),
    "steps": Benchmark("pausefl.bench.steps", "how many asynchronous steps a second, and what each costs the server"),
    "selection": Benchmark("pausefl.bench.selection", "how long the exact searches and the annealing take"),
}
"""The benchmarks, by their names on the command line."""


def run_benchmark(
    name: str, options: Mapping[str, int], *, as_json: bool, benchmarks: Mapping[str, Benchmark] = BENCHMARKS
) -> None:
    """Run a benchmark. Prints one JSON object a line per case, or a table. ConfigError for a bad name or option."""
    if name not in benchmarks:
        raise ConfigError(f'bench "{name}": must be one of {", ".join(benchmarks)}')
    module = importlib.import_module(benchmarks[name].module)
    try:
        cases: Iterator[dict[str, Any]] = module.cases(**options)
    except TypeError:
        flags = " or ".join(f"--{option.replace('_', '-')}" for option in options)
        raise ConfigError(f"bench {name}: takes no {flags}") from None
    if as_json:
        for case in cases:
            print(json.dumps({k: finite(v) if isinstance(v, float) else v for k, v in case.items()}), flush=True)
    else:
        rows = []
        for case in cases:  # each may take minutes
            plain_console(stderr=True).print(f"measured: {case['case']}", highlight=False, soft_wrap=True)
            rows.append(case)
        print_table(f"{name}: {benchmarks[name].measures}", rows)


def print_table(title: str, cases: Iterable[Mapping[str, Any]]) -> None:
    """Print cases as a table, a row each."""
    rows = list(cases)
    columns = list(dict.fromkeys(key for case in rows for key in case if key != "name"))
    table = Table(*columns, title=title, title_justify="left")
    for case in rows:
        table.add_row(*(_text(case.get(column)) for column in columns))
    plain_console().print(FittingTable(table))


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
