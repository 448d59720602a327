"""Runs one experiment under several policies and seeds, and compares them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pausefl.campaigns.campaign import (
    Plan,
    Planned,
    Player,
    begin,
    check_named_once,
    finished_run_dirs,
    read_plan,
    resume_campaign_command,
    told_how_to_go_on,
)
from pausefl.config.experiment import Experiment, with_seed
from pausefl.config.loading import parse_experiment
from pausefl.config.server_records import check_policies
from pausefl.report.comparison import Comparison, as_group_table, as_table, compare, write_comparison
from pausefl.terminal_table import FittingTable
from pausefl_proto.errors import ConfigError

OF_RUNS = "compare --runs"
"""The command of a comparison of runs that it did not play."""


def compare_policies(
    experiment: Experiment, policies: Sequence[str], seeds: int, folder: Path, player: Player
) -> Comparison:
    """Run each policy with the same seeds, so the same data, delays and θ_0, and write the comparison to `folder`.

    Budgets are per run. `CampaignInterrupted` when the user ends a run.
    """
    runs = _planned(experiment, policies, seeds)
    player.check(runs)
    begin(folder, Plan("compare", experiment.to_toml(), {"policies": list(policies), "seeds": seeds}))
    return _play(runs, folder, player)


def resume_comparison(folder: Path, player: Player) -> Comparison:
    """Go on with an interrupted comparison; runs that have finished are not repeated."""
    return _play(_planned_in(read_plan(folder, "compare"), folder), folder, player)


def redraw_comparison(plan: Plan, folder: Path) -> list[Path]:
    """Write a finished comparison's page and figures again; returns its run directories."""
    if plan.command == OF_RUNS:
        by_label = {label: [Path(run_dir) for run_dir in dirs] for label, dirs in plan.arguments["runs"].items()}
    else:
        runs = _planned_in(plan, folder)
        by_label = _by_policy(runs, finished_run_dirs(runs, folder, resume_campaign_command("compare", folder)))
    write_comparison(compare(by_label), folder)
    return [run_dir for dirs in by_label.values() for run_dir in dirs]


def compare_runs(run_dirs: Sequence[Path], labels: Sequence[str], folder: Path) -> Comparison:
    """Compare finished runs of any origin under the names given; runs of one name are its seeds."""
    if len(labels) != len(run_dirs):
        raise ConfigError(f"--labels: {len(labels)} names for {len(run_dirs)} runs")
    by_label: dict[str, list[Path]] = {label: [] for label in labels}
    for label, run_dir in zip(labels, run_dirs, strict=True):
        by_label[label].append(run_dir)
    comparison = replace(compare(by_label), folder=folder)
    where = {label: [str(run_dir.absolute()) for run_dir in dirs] for label, dirs in by_label.items()}
    begin(folder, Plan(OF_RUNS, "", {"runs": where}))
    write_comparison(comparison, folder)
    return comparison


def print_comparison(comparison: Comparison, folder: Path, console: Console) -> None:
    """Print the tables, and where figure and page lie."""
    console.print(FittingTable(as_table(comparison)))
    if groups := as_group_table(comparison):
        console.print(FittingTable(groups))
    console.print(f"figure: {folder / 'comparison.png'}\nreport: {folder / 'comparison.html'}", soft_wrap=True)


def _play(runs: Sequence[Planned], folder: Path, player: Player) -> Comparison:
    go_on = resume_campaign_command("compare", folder, player.options)
    with told_how_to_go_on(folder, go_on):
        directories = player.play(runs, folder, go_on)
        comparison = replace(compare(_by_policy(runs, directories)), folder=folder)
        write_comparison(comparison, folder)
    return comparison


def _by_policy(runs: Sequence[Planned], directories: Sequence[Path]) -> dict[str, list[Path]]:
    by_policy: dict[str, list[Path]] = {}
    for run, run_dir in zip(runs, directories, strict=True):
        by_policy.setdefault(run.experiment.selection.policy, []).append(run_dir)
    return by_policy


def _planned_in(plan: Plan, folder: Path) -> list[Planned]:
    experiment = parse_experiment(plan.source, file=str(folder))
    return _planned(experiment, plan.arguments["policies"], plan.arguments["seeds"])


def _planned(experiment: Experiment, policies: Sequence[str], seeds: int) -> list[Planned]:
    """The runs of each policy, seed by seed, so that an interrupted comparison has whole seeds to show."""
    if seeds > 1 and experiment.privacy.enabled and experiment.privacy.ledger_dir:
        raise ConfigError(f"--seeds {seeds}: goes without privacy.ledger_dir, whose ledgers are of one seed's data")
    runs = []
    for i in range(seeds):
        for policy in policies:
            variant = variant_of(experiment, policy, i)
            name = f"{policy.replace(':', '.')}-seed{variant.experiment.seed}"
            runs.append(Planned(name, variant))
    check_named_once(runs)
    return runs


def variant_of(experiment: Experiment, policy: str, i: int) -> Experiment:
    """The same experiment with another policy and the i-th seed; ConfigError when the policy does not fit it."""
    selection = experiment.selection.model_copy(update={"policy": policy})
    seeded = with_seed(experiment, experiment.experiment.seed + i)
    variant = seeded.model_copy(update={"selection": selection})
    check_policies(variant)
    return variant
