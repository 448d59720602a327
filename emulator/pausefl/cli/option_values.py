"""What the options of several subcommands say, checked."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pausefl.config.experiment import Experiment
from pausefl.config.loading import load_experiment
from pausefl.config.toml_source import is_file, naming
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pausefl.campaigns.campaign import Player, Show


def refuse_beside(options: argparse.Namespace, what: str, *allowed: str) -> None:
    """ConfigError for an option beside `what` that is not allowed there, as it would change nothing."""
    if other := next((option for option in options.typed if option not in (what, *allowed)), None):
        goes = ", ".join(allowed)
        raise ConfigError(f"{other}: cannot go with {what}, which takes what is there as it was begun; only {goes} can")


def check_one_given(given: Mapping[str, object]) -> None:
    """ConfigError unless one of these was given: by how each is typed, its value or None."""
    names, typed = list(given), [name for name, value in given.items() if value is not None]
    if not typed:
        raise ConfigError(f"needs {'either' if len(names) == 2 else 'one of'} {', '.join(names[:-1])} or {names[-1]}")
    if len(typed) > 1:
        raise ConfigError(f"{' and '.join(typed)}: cannot go together; give one of them")


def at_least_1(option: str, value: int) -> int:
    """The value of an option; ConfigError below 1."""
    if value < 1:
        raise ConfigError(f"{option} {value}: must be at least 1")
    return value


def back_to_of(options: argparse.Namespace) -> int | None:
    """The round of --back-to, if it was given; ConfigError without --resume."""
    if options.back_to is not None and not options.resume:
        raise ConfigError(f"--back-to {options.back_to}: goes with --resume")
    round_: int | None = options.back_to
    return round_


def listed_names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def policies_of(options: argparse.Namespace) -> list[str]:
    """The names of --policies; ConfigError for none."""
    policies = listed_names(options.policies or "")
    if not policies:
        raise ConfigError("--policies: needs at least one name")
    return policies


def config_name(options: argparse.Namespace) -> str:
    """What results of CONFIG are called after."""
    return Path(options.config).stem


def experiment_of(options: argparse.Namespace) -> Experiment:
    """The experiment of CONFIG and --set, whose policies can be made."""
    from pausefl.config.server_records import check_policies

    experiment = load_experiment(options.config, options.overrides)
    with naming(options.config if is_file(options.config) else ""):
        check_policies(experiment)
    return experiment


def player_of(jobs: int, console: Console) -> "Player":
    """What plays the runs of a campaign, `jobs` at a time."""
    from pausefl.campaigns.campaign import OneByOne
    from pausefl.campaigns.side_by_side import SideBySide

    return OneByOne(shown_on(console)) if jobs == 1 else SideBySide(jobs, partial(console.print, highlight=False))


def shown_on(console: Console) -> "Show":
    """What shows a run on the console, by its title."""
    from pausefl.runtime.terminal import make_view

    return lambda title: make_view(console, title)
