"""Runs one experiment under several policies and seeds, one run after the other, and compares them."""

from pathlib import Path

from rich.console import Console

from pausefl.config.experiment import Experiment
from pausefl.config.server_records import check_policies
from pausefl.report.comparison import as_group_table, as_table, compare, write_comparison
from pausefl.runtime.run import run_experiment
from pausefl.runtime.terminal import make_view
from pausefl_proto.errors import ConfigError


def compare_policies(experiment: Experiment, policies: list[str], seeds: int, folder: Path, console: Console) -> None:
    """Each policy gets the same seeds, so the same data, delays and θ_0. Privacy budgets are per run."""
    if seeds > 1 and experiment.privacy.enabled and experiment.privacy.ledger_dir:
        raise ConfigError(f"--seeds {seeds}: goes without privacy.ledger_dir, whose ledgers are of one seed's data")
    variants = {policy: [_variant(experiment, policy, i) for i in range(seeds)] for policy in policies}
    run_dirs: dict[str, list[Path]] = {policy: [] for policy in policies}
    total = len(policies) * seeds
    # Seed by seed, so that an interrupted comparison has whole seeds to show.
    for i in range(seeds):
        for policy in policies:
            variant = variants[policy][i]
            run_dir = folder / f"{policy.replace(':', '.')}-seed{variant.experiment.seed}"
            done = sum(map(len, run_dirs.values()))
            with make_view(console, f"{policy}, seed {variant.experiment.seed} ({done + 1} of {total})") as view:
                run_experiment(variant, run_dir, view)
            run_dirs[policy].append(run_dir)
    comparison = compare(run_dirs)
    page = write_comparison(comparison, folder)
    console.print(as_table(comparison))
    if groups := as_group_table(comparison):
        console.print(groups)
    console.print(f"figure: {folder / 'comparison.png'}\nreport: {page}", soft_wrap=True)


def _variant(experiment: Experiment, policy: str, i: int) -> Experiment:
    """The same experiment with another policy and the i-th seed; ConfigError when the policy does not fit it."""
    variant = experiment.model_copy(
        update={
            "selection": experiment.selection.model_copy(update={"policy": policy}),
            "experiment": experiment.experiment.model_copy(update={"seed": experiment.experiment.seed + i}),
        }
    )
    check_policies(variant)
    return variant
