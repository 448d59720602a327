"""The command `pausefl tune`: it searches, or goes on with a search, and prints the front."""

import shlex
import sys
from argparse import Namespace
from pathlib import Path

from pausefl.cli.option_values import check_one_given, config_name, player_of, refuse_beside
from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.run_dir import new_run_dir
from pausefl.terminal_table import FittingTable, plain_console
from pausefl_tune import resume_tuning, tune_experiment
from pausefl_tune.outputs import tables
from pausefl_tune.plan import TuningPlan


def tune(options: Namespace) -> None:
    """Search for settings, or resume a search. ConfigError for invalid options."""
    console = plain_console()
    player = player_of(options, console)
    check_one_given({"CONFIG": options.config, "--resume DIR": options.resume})
    if options.resume:
        refuse_beside(options, "--resume", "--real-seeds", "--jobs", "--on", "--on-option")
        tuning = resume_tuning(Path(options.resume), console, options.real_seeds, player)
    else:
        plan = TuningPlan(
            source=load_experiment(options.config, options.overrides).to_toml(),
            search=options.search,
            by=options.by,
            trials=options.trials,
            seeds=options.seeds,
            fresh_seeds=options.fresh_seeds,
            target_accuracy=options.target_accuracy,
            real_seeds=options.real_seeds,
            command=shlex.join(["pausefl", *sys.argv[1:]]),
        )
        folder = new_run_dir(f"tune-{config_name(options)}", options.run_dir)
        tuning = tune_experiment(plan, folder, console, player)
    for table in tables(tuning):
        console.print(FittingTable(table))
    console.print(f"front: {tuning.folder / 'front.csv'}\nfigure: {tuning.folder / 'front.png'}", soft_wrap=True)
