"""The subcommands that need no network: simulations, searches, and what is made of logs."""

import argparse
import shlex
import sys
from pathlib import Path

from rich.text import Text

from pausefl.cli.option_values import (
    at_least_1,
    check_one_given,
    config_name,
    experiment_of,
    policies_of,
    refuse_beside,
)
from pausefl.terminal_table import FittingTable, plain_console


def simulate(options: argparse.Namespace) -> None:
    """Simulate choices and latencies, without a network or training."""
    from pausefl.campaigns import simulations
    from pausefl.runtime.run_dir import new_run_dir
    from pausefl.simulation import outputs

    at_least_1("--rounds", options.rounds)
    folder = new_run_dir(f"simulate-{config_name(options)}", options.run_dir)
    simulations.refuse_results_in(folder)
    console, experiment, seeds = plain_console(), experiment_of(options), at_least_1("--seeds", options.seeds)
    policies = [experiment.selection.policy] if options.policies is None else policies_of(options)
    with console.status(Text(f"simulating {options.rounds:,} rounds of {', '.join(policies)}")):
        if options.policies is None and seeds == 1:
            lines = outputs.in_words(outputs.run_simulation(experiment, options.rounds, folder))
            figure = folder / "simulation.png"
        else:
            summary = simulations.run_simulations(experiment, policies, seeds, options.rounds, folder)
            lines, figure = simulations.in_words(summary), folder / "simulations.png"
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"figure: {figure}", soft_wrap=True)


def tune(options: argparse.Namespace) -> None:
    """Search for settings, or go on with a search."""
    from pausefl.campaigns.tuning import resume_tuning, tune_experiment
    from pausefl.campaigns.tuning.outputs import confirmation_table, front_table
    from pausefl.campaigns.tuning.plan import TuningPlan
    from pausefl.config.loading import load_experiment
    from pausefl.runtime.run_dir import new_run_dir

    console = plain_console()
    check_one_given({"CONFIG": options.config, "--resume DIR": options.resume})
    if options.resume:
        refuse_beside(options, "--resume", "--real-seeds")
        tuning = resume_tuning(Path(options.resume), console, options.real_seeds)
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
        tuning = tune_experiment(plan, folder, console)
    console.print(FittingTable(front_table(tuning)))
    if tuning.confirmed:
        console.print(FittingTable(confirmation_table(tuning)))
    console.print(f"front: {tuning.folder / 'front.csv'}\nfigure: {tuning.folder / 'front.png'}", soft_wrap=True)


def replay(options: argparse.Namespace) -> None:
    """Fold a log through its own policy, or through another."""
    from pausefl.offline.replay_outputs import as_json, in_words, replayed, write_replay

    draws = at_least_1("--draws", options.draws)
    found = replayed(Path(options.run_dir), options.policy, options.overrides, draws)
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
