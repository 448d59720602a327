"""The commands `pausefl replay` and `pausefl fit-latency`."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pausefl.cli.arguments import add_reading, folder
from pausefl.cli.option_values import at_least_1
from pausefl.results.figures import Figures
from pausefl_offline import library
from pausefl_offline.replay_outputs import as_json, in_words, replayed, write_replay
from pausefl_process.files import write_durably


def replay_arguments(sub: ArgumentParser) -> None:
    """Add the arguments of `pausefl replay`."""
    sub.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, also of a run that goes on")
    sub.add_argument("--policy", metavar="NAME", help="estimate what this policy would have chosen and waited")
    text = "estimate for another parameter, e.g. selection.pause.alpha=10; keys of selection alone; repeatable"
    sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=text)
    draws = "how often an estimate draws what the log does not have (default 100)"
    sub.add_argument("--draws", type=int, default=100, metavar="N", help=draws)
    sub.add_argument("--json", action="store_true", help="print one JSON object")
    sub.add_argument("--out", type=folder, metavar="DIR", help="write replay.json, replay.csv and replay.png there")


def replay(options: Namespace) -> None:
    """Replay the log of a run through its own policy, or through another. ConfigError for invalid options."""
    draws = at_least_1("--draws", options.draws)
    found = replayed(Path(options.run_dir), options.policy, options.overrides, draws)
    written = write_replay(found, Path(options.out)) if options.out else []
    if options.json:
        print(as_json(found))
    else:
        print("\n".join([*in_words(found.summary), *(f"written: {path}" for path in written)]))


def fit_latency_arguments(sub: ArgumentParser) -> None:
    """Add the arguments of `pausefl fit-latency`."""
    source = "a run directory, or a file with a row per exchange: by default CSV with the columns client, time, seconds"
    sub.add_argument("source", metavar="FILE|RUN_DIR", help=source)
    add_reading(sub)
    sub.add_argument("--figure", metavar="PATH", help="draw the laws against the data there, as PNG")


def fit_latency(options: Namespace) -> None:
    """Print an experiment whose delay laws are fitted to a fleet's latencies, and draw them if asked."""
    names = ("format", "column", "unit", "client_column", "time_column", "filter", "lost", "timeout_s")
    fit = library.fit_latency(options.source, **{name: getattr(options, name) for name in names})
    if options.figure:
        from pausefl.results.report.style import rendered
        from pausefl_offline.plots import draw_fit

        if figure := Figures().compute(options.figure, lambda: draw_fit(fit)):
            write_durably(Path(options.figure), rendered(figure, "png"))
            print(f"figure: {options.figure}", file=sys.stderr)
    print(fit.to_toml(), end="")
