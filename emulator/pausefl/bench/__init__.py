"""`pausefl bench NAME`: what this machine does with this software.

Quote ratios taken in one run, not absolute times: machines are noisy.

May live here: what a user asks of a machine, and the runs and images it takes. This project's own instruments are
`benchmarks/own`, tests of behaviour `tests/`.
"""

import importlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rich.table import Table

from pausefl.terminal_table import FittingTable, plain_console
from pausefl_proto.errors import ConfigError


class Benchmark(NamedTuple):
    """One benchmark."""

    module: str
    """It has `cases(**options)`, a generator of JSON-able objects."""
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
    """Print one JSON object a line per case, or a table; ConfigError for an unknown name or option."""
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
            print(json.dumps(_finite(case)), flush=True)
    else:
        print_table(f"{name}: {benchmarks[name].measures}", cases)


def print_table(title: str, cases: Iterable[Mapping[str, Any]]) -> None:
    """Print cases as a table, a row each."""
    rows = list(cases)
    columns = list(dict.fromkeys(key for case in rows for key in case if key != "name"))
    table = Table(*columns, title=title, title_justify="left")
    for case in rows:
        table.add_row(*(_text(case.get(column)) for column in columns))
    plain_console().print(FittingTable(table))


def _finite(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case as JSON has it, which knows no infinity: null in its place."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in case.items()}


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
