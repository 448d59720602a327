"""Runs one experiment under several policies and seeds, and compares them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pausefl.experiment.experiment import Experiment, parse_experiment, with_values
from pausefl.experiment.objects import labels_of
from pausefl.experiment.server_records import check_policies
from pausefl.results.report.comparison import Comparison, as_group_table, as_table, compare, write_comparison
from pausefl.studies.campaign import Missing, Plan, Planned, begin, read_plan, unfinished
from pausefl.studies.playing import Player, play_campaign
from pausefl.terminal_table import FittingTable
from pausefl_proto.errors import ConfigError

OF_RUNS = "compare --runs"
"""The `Plan.command` of a comparison of existing runs, which were not played for it."""


def compare_policies(
    experiment: Experiment, policies: Sequence[str], seeds: int, folder: Path, player: Player
) -> Comparison:
    """Run each policy with the same seeds, so with equal data, delays and θ_0, and write the comparison to `folder`.

    Budgets are per run. Raises `CampaignInterrupted` if the user ends a run.
    """
    return _play(Plan("compare", experiment.to_toml(), {"policies": list(policies), "seeds": seeds}), folder, player)


def resume_comparison(folder: Path, player: Player) -> Comparison:
    """Resume an interrupted comparison. Finished runs are not repeated."""
    return _play(read_plan(folder, "compare"), folder, player)


def comparison_in(plan: Plan, folder: Path) -> Comparison:
    """The comparison of the finished runs in a folder. ConfigError if no run is finished."""
    if plan.command == OF_RUNS:
        by_label = {label: [Path(run_dir) for run_dir in dirs] for label, dirs in plan.arguments["runs"].items()}
        return replace(compare(by_label), folder=folder)
    runs = _planned(plan, folder)
    return _of_common_seeds(_compared(runs, folder, unfinished(runs, folder, "compare")), folder)


def compare_runs(run_dirs: Sequence[Path], labels: Sequence[str], folder: Path) -> Comparison:
    """Compare finished runs of any origin, named by `labels`. Runs with the same label are its seeds."""
    if len(labels) != len(run_dirs):
        raise ConfigError(f"--labels: {len(labels)} names for {len(run_dirs)} runs")
    named = list(zip(labels, run_dirs, strict=True))
    by_label = {label: [run_dir for other, run_dir in named if other == label] for label in labels}
    comparison = replace(compare(by_label), folder=folder)
    where = {label: [str(run_dir.absolute()) for run_dir in dirs] for label, dirs in by_label.items()}
    begin(folder, Plan(OF_RUNS, "", {"runs": where}))
    write_comparison(comparison, folder)
    return comparison


def print_comparison(comparison: Comparison, folder: Path, console: Console) -> None:
    """Print the tables, the answers, and the paths of the figure and the page."""
    console.print(FittingTable(as_table(comparison)))
    if groups := as_group_table(comparison):
        console.print(FittingTable(groups))
    for sentence in comparison.answers:
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"figure: {folder / 'comparison.png'}\nreport: {folder / 'comparison.html'}", soft_wrap=True)


def _play(plan: Plan, folder: Path, player: Player) -> Comparison:
    runs = _planned(plan, folder)

    def write(missing: Missing) -> Comparison | None:
        if comparison := _compared(runs, folder, missing):
            write_comparison(comparison, folder)
        return comparison

    return _of_common_seeds(play_campaign(plan, runs, folder, player, write), folder)


def _compared(runs: Sequence[Planned], folder: Path, missing: Missing) -> Comparison | None:
    """The comparison of the policies with results, over the seeds that these have in common. None if there are none."""
    found: dict[str, dict[int, Path]] = {}
    for run in runs:
        if run.name not in missing:
            found.setdefault(run.experiment.selection.policy, {})[run.experiment.experiment.seed] = folder / run.name
    if not (common := set.intersection(*map(set, found.values())) if found else set()):
        return None
    labels = labels_of(found)
    by_policy = {labels[policy]: [of_it[seed] for seed in of_it if seed in common] for policy, of_it in found.items()}
    return replace(compare(by_policy), folder=folder, missing=missing)


def _of_common_seeds(comparison: Comparison | None, folder: Path) -> Comparison:
    if comparison is None:
        raise ConfigError(f"{folder}: has no seed that is finished under each policy that has results")
    return comparison


def _planned(plan: Plan, folder: Path) -> list[Planned]:
    """The runs to play, seed by seed, so that an interrupted comparison has complete seeds."""
    experiment, policies = parse_experiment(plan.source, file=str(folder)), plan.arguments["policies"]
    labels = labels_of(policies)
    runs = []
    for i in range(plan.arguments["seeds"]):
        for policy in policies:
            variant = variant_of(experiment, policy, i)
            runs.append(Planned(f"{labels[policy].replace(':', '.')}-seed{variant.experiment.seed}", variant))
    return runs


def variant_of(experiment: Experiment, policy: str, i: int) -> Experiment:
    """The experiment with another policy and its seed plus `i`. ConfigError if the policy does not fit it."""
    seeded = with_values(experiment, "experiment", seed=experiment.experiment.seed + i)
    variant = with_values(seeded, "selection", policy=policy)
    check_policies(variant)
    return variant
