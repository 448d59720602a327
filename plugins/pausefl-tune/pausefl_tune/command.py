"""The command `pausefl tune`: it searches, or goes on with a search, and prints the front."""

import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pausefl.cli.arguments import add_config, add_jobs, add_run_dir, add_set, add_virtual, folder
from pausefl.cli.option_values import check_one_given, config_name, player_of, refuse_beside
from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.run_dir import new_run_dir
from pausefl.terminal_table import FittingTable, plain_console
from pausefl_tune import resume_tuning, tune_experiment
from pausefl_tune.outputs import tables
from pausefl_tune.plan import TuningPlan


def tune_arguments(sub: ArgumentParser) -> None:
    """Add the arguments of `pausefl tune`."""
    add_config(sub, nargs="?")
    add_set(sub)
    add_virtual(sub)
    search = "a key and where to search it: A..B, log:A..B or values A,B,C; repeatable (default: the policy's weights)"
    sub.add_argument("--search", action="append", default=[], metavar="KEY=SPACE", help=search)
    by = "what a trial plays: simulations, or runs with training (default simulate)"
    sub.add_argument("--by", choices=["simulate", "run"], default="simulate", help=by)
    sub.add_argument("--trials", type=int, default=50, metavar="N", help="how many settings to try (default 50)")
    seeds = "simulations or runs per setting, from the seed on (default 3)"
    sub.add_argument("--seeds", type=int, default=3, metavar="N", help=seeds)
    fresh = "seeds that no trial has seen, by which the front is compared with the published setting (default 10)"
    sub.add_argument("--fresh-seeds", type=int, default=10, metavar="N", help=fresh)
    target = "with --by run: the latency is the one until test accuracy A, in (0, 1), is reached"
    sub.add_argument("--target-accuracy", type=float, metavar="A", help=target)
    real = "seeds on which the recommended and the published setting are run on the real clock, too (default 0)"
    sub.add_argument("--real-seeds", type=int, default=0, metavar="N", help=real)
    add_run_dir(sub, "runs/tune-<name>-<time>")
    sub.add_argument("--resume", type=folder, metavar="DIR", help="go on with an interrupted search")
    add_jobs(sub)


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
