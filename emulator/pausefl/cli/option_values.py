"""Checked values of options that several subcommands have."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pausefl.experiment.experiment import Experiment, load_experiment
from pausefl.experiment.toml_source import is_file, naming
from pausefl.runtime.standing_fleet import StandingFleet
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pausefl.studies.playing import Player

PLACES = ("--jobs", "--on", "--on-option", "--fleet")
"""The options that say where runs are played."""


def refuse_beside(options: argparse.Namespace, what: str, *allowed: str) -> None:
    """ConfigError for an option that was typed together with `what` and is not `allowed`: it would change nothing."""
    if other := next((option for option in options.typed if option not in (what, *allowed)), None):
        goes = ", ".join(allowed)
        raise ConfigError(f"{other}: cannot go with {what}, which takes what is there as it was begun; only {goes} can")


def check_one_given(given: Mapping[str, object]) -> None:
    """ConfigError unless exactly one option was given. `given` maps each option, as typed, to its value or None."""
    names, typed = list(given), [name for name, value in given.items() if value is not None]
    if not typed:
        raise ConfigError(f"needs {'either' if len(names) == 2 else 'one of'} {', '.join(names[:-1])} or {names[-1]}")
    if len(typed) > 1:
        raise ConfigError(f"{' and '.join(typed)}: cannot go together; give one of them")


def at_least_1(option: str, value: int) -> int:
    """The value of an option. ConfigError if it is below 1."""
    if value < 1:
        raise ConfigError(f"{option} {value}: must be at least 1")
    return value


def back_to_of(options: argparse.Namespace) -> int | None:
    """The round of --back-to, if it was given. ConfigError without --resume."""
    if options.back_to is not None and not options.resume:
        raise ConfigError(f"--back-to {options.back_to}: goes with --resume")
    return None if options.back_to is None else int(options.back_to)


def listed_names(text: str) -> list[str]:
    """The names in a list separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def policies_of(options: argparse.Namespace) -> list[str]:
    """The names of --policies. ConfigError if there are none."""
    if not (policies := listed_names(options.policies or "")):
        raise ConfigError("--policies: needs at least one name")
    return policies


def config_name(options: argparse.Namespace) -> str:
    """The file name of CONFIG without its ending, by which its results are named."""
    return Path(options.config).stem


def experiment_of(options: argparse.Namespace) -> Experiment:
    """The experiment of CONFIG and --set. ConfigError, too, if its policies cannot be made."""
    from pausefl.experiment.server_records import check_policies

    experiment = load_experiment(options.config, options.overrides)
    with naming(options.config if is_file(options.config) else ""):
        check_policies(experiment)
    return experiment


def fleet_of(options: argparse.Namespace) -> StandingFleet | None:
    """The standing fleet of --fleet; None: this process starts the clients."""
    address = getattr(options, "fleet", None)  # not every subcommand has this option
    return StandingFleet(address) if address is not None else None


def player_of(options: argparse.Namespace, console: Console) -> "Player":
    """The player of a campaign's runs: one after another here or on a fleet, or as --jobs and --on say."""
    from pausefl.runtime.terminal import make_view
    from pausefl.studies.executors import player_on
    from pausefl.studies.playing import OneByOne

    say, show = partial(console.print, highlight=False, soft_wrap=True), partial(make_view, console)
    if (fleet := fleet_of(options)) is not None:
        if other := next((each for each in PLACES if each in options.typed and each != "--fleet"), None):
            raise ConfigError(f"{other}: goes without --fleet, whose clients play one run at a time")
        return OneByOne(show, say, fleet)
    return player_on(options.on, options.on_options, options.jobs, show, say)
