"""The subcommand that simulates: it needs no network."""

import argparse

from rich.text import Text

from pausefl.cli.option_values import at_least_1, config_name, experiment_of, policies_of
from pausefl.runtime.run_dir import new_run_dir
from pausefl.terminal_table import plain_console


def simulate(options: argparse.Namespace) -> None:
    """Simulate choices and latencies, without a network or training."""
    from pausefl.studies import simulations

    for name, given in (("--rounds", options.rounds), ("--jobs", options.jobs)):
        if given is not None:
            at_least_1(name, given)
    folder = new_run_dir(f"simulate-{config_name(options)}", options.run_dir)
    console, experiment, seeds = plain_console(), experiment_of(options), at_least_1("--seeds", options.seeds)
    rounds = options.rounds or experiment.experiment.rounds
    policies = [] if options.policies is None else policies_of(options)
    title = f"simulating {rounds:,} rounds of {', '.join(policies or [experiment.selection.policy])}"
    with console.status(Text(title)) as status:
        of_all = experiment, policies, seeds, rounds, folder, options.jobs
        summary = simulations.run_simulations(*of_all, lambda text: status.update(Text(f"{title}: {text}")))
    for line in (*simulations.in_words(summary), *summary.get("answers", ())):
        console.print(line, highlight=False, soft_wrap=True)
    figure = "simulations.png" if "policies" in summary else "simulation.png"
    console.print(f"figure: {folder / figure}", soft_wrap=True)
