"""The subcommands of `pausefl` that learn from recorded logs and from simulations: tune, replay and fit-latency."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from pausefl_proto.errors import ConfigError


def replay(options: argparse.Namespace) -> None:
    """Fold a log through its own policy, or through another."""
    from pausefl.offline.replay_outputs import as_json, in_words, replayed, write_replay

    if options.draws < 1:
        raise ConfigError(f"--draws {options.draws}: must be at least 1")
    found = replayed(Path(options.run_dir), options.policy, options.overrides, options.draws)
    written = write_replay(found, Path(options.out)) if options.out else []
    if options.json:
        print(as_json(found))
    else:
        print("\n".join([*in_words(found.summary), *(f"written: {path}" for path in written)]))


def fit_latency(options: argparse.Namespace) -> None:
    """Print the experiment whose laws are fitted to a fleet's latencies."""
    from pausefl.offline.latency_fit import fit_latency

    fit = fit_latency(Path(options.source))
    if options.figure:
        from pausefl.offline.fit_plot import draw_fit
        from pausefl.report.style import save_png

        save_png(draw_fit(fit), Path(options.figure))
        print(f"figure: {options.figure}", file=sys.stderr)
    print(fit.to_toml(), end="")


def tune(options: argparse.Namespace) -> None:
    """Search for settings, or go on with a search."""
    from pausefl.campaigns.tuning import resume_tuning, tune_experiment
    from pausefl.campaigns.tuning.outputs import front_table
    from pausefl.campaigns.tuning.plan import TuningPlan
    from pausefl.config.experiment import load_experiment
    from pausefl.runtime.run_dir import new_run_dir

    console = Console()
    if (options.config is None) == (options.resume is None):
        raise ConfigError("pausefl tune: needs either CONFIG or --resume DIR")
    if options.resume:
        tuning = resume_tuning(Path(options.resume), console)
    else:
        plan = TuningPlan(
            source=load_experiment(options.config, options.overrides).to_toml(),
            search=options.search,
            by=options.by,
            trials=options.trials,
            seeds=options.seeds,
            fresh_seeds=options.fresh_seeds,
            target_accuracy=options.target_accuracy,
        )
        folder = new_run_dir(f"tune-{Path(options.config).stem}", options.run_dir)
        tuning = tune_experiment(plan, folder, console)
    console.print(front_table(tuning))
    console.print(f"front: {tuning.folder / 'front.csv'}\nfigure: {tuning.folder / 'front.png'}", soft_wrap=True)
