"""The commands `pausefl replay` and `pausefl fit-latency`."""

import sys
from argparse import Namespace
from pathlib import Path

from pausefl.cli.option_values import at_least_1
from pausefl.results.figures import Figures
from pausefl_offline import library
from pausefl_offline.replay_outputs import as_json, in_words, replayed, write_replay
from pausefl_process.files import write_durably


def replay(options: Namespace) -> None:
    """Replay the log of a run through its own policy, or through another. ConfigError for invalid options."""
    draws = at_least_1("--draws", options.draws)
    found = replayed(Path(options.run_dir), options.policy, options.overrides, draws)
    written = write_replay(found, Path(options.out)) if options.out else []
    if options.json:
        print(as_json(found))
    else:
        print("\n".join([*in_words(found.summary), *(f"written: {path}" for path in written)]))


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
