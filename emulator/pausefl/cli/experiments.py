"""The subcommands that play whole runs: one, or several side by side."""

import argparse
import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pausefl.cli.option_values import (
    PLACES,
    at_least_1,
    back_to_of,
    check_one_given,
    config_name,
    experiment_of,
    fleet_of,
    listed_names,
    player_of,
    policies_of,
    refuse_beside,
)
from pausefl.experiment.experiment import with_values
from pausefl.outcomes import RunInterrupted, check_outcome, with_resume_command
from pausefl.results.in_words import accuracies, asked, by_whom, costs, counted, noise, timing_error, turn
from pausefl.results.stored_summary import read_summary
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import has_rounds, new_run_dir, resume_command, stored_experiment
from pausefl.runtime.terminal import make_view, to_output
from pausefl.terminal_table import plain_console
from pausefl_process.events import print_event
from pausefl_proto.errors import ConfigError, PauseflError


def run(options: argparse.Namespace) -> None:
    """Play an experiment, or resume a run."""
    check_one_given({"CONFIG": options.config, "--resume RUN_DIR": options.resume})
    if options.resume:
        run_dir = Path(options.resume)
        shown = ("--json", "--log-json", "--quiet", "--verbose")
        refuse_beside(options, "--resume", "--rounds", "--back-to", "--fleet", *shown)
        experiment = stored_experiment(run_dir)
        if options.rounds is not None:
            experiment = with_values(experiment, "experiment", rounds=at_least_1("--rounds", options.rounds))
        if not (run_dir / "run.db").exists():
            raise ConfigError(f"--resume {run_dir}: no round was ever played there")
    elif options.rounds is not None:
        raise ConfigError(f"--rounds {options.rounds}: goes with --resume; a new run takes --set experiment.rounds=N")
    else:
        experiment, run_dir = experiment_of(options), new_run_dir(config_name(options), options.run_dir)
    console, back_to, fleet = plain_console(stderr=options.json), back_to_of(options), fleet_of(options)
    try:
        with nullcontext(print_event) if options.json else make_view(console, experiment.title) as report:
            resume, show = bool(options.resume), partial(to_output, report)
            summary = run_experiment(experiment, run_dir, show, resume=resume, back_to=back_to, fleet=fleet)
    except KeyboardInterrupt:
        raise RunInterrupted(f"interrupted; {_what_is_left(run_dir, experiment.experiment.rounds)}") from None
    except PauseflError as error:
        if not has_rounds(run_dir):
            raise
        raise with_resume_command(error, resume_command(run_dir)) from error
    print_summary(console, summary, run_dir)
    check_outcome(summary["outcome"], summary["stopped_because"], resume_command(run_dir))


def _what_is_left(run_dir: Path, rounds: int) -> str:
    if not (run_dir / "run.db").exists():
        return "no round was played"
    with suppress(ConfigError, OSError):  # there is no summary, or it is outdated
        summary = read_summary(run_dir)
        if summary["outcome"] != "interrupted" and summary["rounds"] == rounds:
            return f"all rounds are played; pausefl report {shlex.quote(str(run_dir))} writes the report"
    return f"go on with: {resume_command(run_dir)}"


def print_summary(console: Console, summary: dict[str, Any], run_dir: Path) -> None:
    """Print the summary of a run, and where its report is."""
    console.print(summary_table(summary))
    report, again = run_dir / "report.html", shlex.join(["pausefl", "report", str(run_dir)])
    console.print(f"report: {report if report.exists() else f'{again} writes it'}", soft_wrap=True)


def compare(options: argparse.Namespace) -> None:
    """Play an experiment under several policies, or compare finished runs."""
    from pausefl.results.report.comparison.figure import all_runs
    from pausefl.studies.campaign import check_all_played, resume_campaign_command
    from pausefl.studies.compare import compare_policies, compare_runs, print_comparison, resume_comparison

    console = plain_console()
    player = player_of(options, console)
    check_one_given({"CONFIG": options.config, "--runs": options.runs, "--resume DIR": options.resume})
    if options.resume:
        refuse_beside(options, "--resume", *PLACES)
        folder = Path(options.resume)
        comparison = resume_comparison(folder, player)
    elif options.runs:
        refuse_beside(options, "--runs", "--labels", "--run-dir")
        run_dirs = [Path(run_dir) for run_dir in options.runs]
        labels = listed_names(options.labels) if options.labels else [run_dir.absolute().name for run_dir in run_dirs]
        folder = new_run_dir("compare-runs", options.run_dir)
        comparison = compare_runs(run_dirs, labels, folder)
    else:
        if options.labels is not None:
            raise ConfigError(f"--labels {options.labels}: goes with --runs")
        policies, seeds = policies_of(options), at_least_1("--seeds", options.seeds)
        folder = new_run_dir(f"compare-{config_name(options)}", options.run_dir)
        comparison = compare_policies(experiment_of(options), policies, seeds, folder, player)
    print_comparison(comparison, folder, console)
    if not options.runs:  # otherwise the runs were played before
        run_dirs = [run.path for run in all_runs(comparison.runs)]
        go_on = resume_campaign_command("compare", folder, player.options)
        check_all_played(run_dirs, comparison.missing, go_on, player.say)


def sweep(options: argparse.Namespace) -> None:
    """Play an experiment on a grid of settings."""
    from pausefl.experiment.toml_source import resolved_source
    from pausefl.results.report.sweep import caveats
    from pausefl.studies.campaign import check_all_played, resume_campaign_command
    from pausefl.studies.sweep import parse_grid, resume_sweep, run_sweep

    console = plain_console()
    player = player_of(options, console)
    check_one_given({"CONFIG": options.config, "--resume DIR": options.resume})
    if options.resume:
        refuse_beside(options, "--resume", *PLACES)
        sweep = resume_sweep(Path(options.resume), player)
    else:
        grid, folder = parse_grid(options.grid), new_run_dir(f"sweep-{config_name(options)}", options.run_dir)
        sweep = run_sweep(resolved_source(options.config), grid, at_least_1("--seeds", options.seeds), folder, player)
    console.print(f"table: {sweep.folder / 'sweep.csv'}", soft_wrap=True)
    if (picture := sweep.folder / "sweep.png").exists():
        console.print(f"figure: {picture}", soft_wrap=True)
    if warning := caveats(sweep.rows):
        console.print(warning, highlight=False, soft_wrap=True)
    go_on = resume_campaign_command("sweep", sweep.folder, player.options)
    check_all_played(sweep.run_dirs, sweep.missing, go_on, player.say)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a run, from the keys of summary.json. Its texts are plain, without markup."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    for row in _rows(summary):
        table.add_row(*row)
    return table


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was played, its accuracy and costs, its privacy, what failed, and how far measurements can be trusted."""
    rounds = f"{summary['rounds']} with {counted(summary['clients'], 'client')}, {asked(summary)}"
    yield "policy", f"{summary['policy']} (seed {summary['seed']})"
    yield f"{turn(summary)}s", f"{rounds}; {summary['stopped_because']}"
    if summary["data"] is not None:
        yield "data", summary["data"]
    for name, value, note in (*accuracies(summary), *costs(summary)):
        yield name, f"{value} ({note})" if note else value
    if summary["max_epsilon_spent"] is None:
        yield "privacy", "none: updates leave without noise"
    elif told := noise(summary):
        yield "noise", told
    if summary["max_epsilon_spent"] is not None and not summary["private"]:
        yield "NOT PRIVATE", "the noise was drawn from the seed: anyone who knows it can subtract it"
    for failure in summary["failures"]:
        yield "failed", f"{counted(failure['jobs'], 'job')}: {failure['reason']}"
    if told := timing_error(summary):
        yield "timing error", told
    for reason in (summary["suspect_because"] or {}).values():
        rounds, whose = counted(reason["rounds"], "round"), by_whom(reason["clients"])
        yield "suspect", f"{rounds}: {reason['advice']}{whose}"
    for name, why in summary["missing_figures"].items():
        yield "missing", f"{name}: {why}"
