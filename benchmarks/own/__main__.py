"""Play one instrument or the whole set (`all`), or compare two measurements of the set (`diff`).

python -m benchmarks.own all --json > FILE         the set in a short form
python -m benchmarks.own diff BEFORE AFTER         which figures of two such files changed beyond noise
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.own import INSTRUMENTS
from benchmarks.own.changes import changes, in_words, read_measurement
from benchmarks.own.whole import measured
from pausefl.bench import print_table, run_benchmark
from pausefl.terminal_table import plain_console
from pausefl_proto.errors import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0 if all was measured, 2 for bad input, with a one-line message."""
    parser = _parser()
    options = parser.parse_args(arguments)
    sizes = {"clients": options.clients, "payload_bytes": options.payload_bytes}
    given = {name: size for name, size in sizes.items() if size is not None}
    try:
        if len(options.files) != (2 if options.name == "diff" else 0):
            raise ConfigError("diff takes two files of all --json, the others none")
        if given and options.name in {"all", "diff"}:
            raise ConfigError(f"{options.name} takes neither --clients nor --payload-bytes")
        if options.name == "diff":
            _compare(*options.files, as_json=options.json)
        elif options.name == "all":
            _measure(as_json=options.json)
        else:
            run_benchmark(options.name, given, as_json=options.json, benchmarks=INSTRUMENTS)
    except ConfigError as error:
        print(f"benchmarks.own: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(*, as_json: bool) -> None:
    """Measure the whole set in its short form, and print it: one JSON object, or a table of medians."""
    found = measured(plain_console(stderr=True).print)
    if as_json:
        print(json.dumps(found))
    else:
        figures = ({**figure, "median": float(np.median(figure.pop("values")))} for figure in found["figures"])
        print_table("the whole set", figures)


def _compare(before: Path, after: Path, *, as_json: bool) -> None:
    """Print which figures of two files of `all --json` differ beyond noise."""
    measurements = read_measurement(before), read_measurement(after)
    found = changes(*measurements)
    if as_json:
        for change in found:
            print(json.dumps(asdict(change) | {"verdict": change.verdict}))
    else:
        print(*in_words(*measurements, found), sep="\n")


def _parser() -> argparse.ArgumentParser:
    listed = "".join(f"\n{name:14} {each.measures}" for name, each in INSTRUMENTS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks.own", description=f"{__doc__}{listed}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", choices=[*INSTRUMENTS, "all", "diff"])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="with diff: before and after")
    parser.add_argument("--json", action="store_true", help="one JSON object a line per case")
    parser.add_argument("--clients", type=int, metavar="N", help="how many clients, where there are any")
    parser.add_argument("--payload-bytes", type=int, metavar="B", help="size of a model, where one is sent")
    return parser


if __name__ == "__main__":
    sys.exit(main())
