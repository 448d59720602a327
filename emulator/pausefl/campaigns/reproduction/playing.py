"""Runs published figures by name: every series over the same seeds."""

from collections.abc import Sequence
from typing import Any

from pausefl.campaigns.campaign import (
    Plan,
    Planned,
    Player,
    check_all_played,
    check_own_budgets,
    is_finished,
    plan_of,
    told_how_to_go_on,
    write_plan,
)
from pausefl.campaigns.reproduction.request import COMMAND, Request
from pausefl.campaigns.reproduction.summary import write_summary
from pausefl.config.experiment import Experiment, with_seed
from pausefl.config.loading import parse_experiment
from pausefl.published import Reproduction
from pausefl.results.reading import RunData, has_diverged, read_run
from pausefl.results.stored_summary import read_summary
from pausefl_proto.errors import ConfigError


def reproduce(request: Request, player: Player, *, resume: bool, options: Sequence[str] = ()) -> dict[str, Any]:
    """Play every run that is missing, then write reproduction.json and the figure; returns what the former holds.

    An interruption names the command that goes on, with `options` after those of the player. ConfigError where the
    folder holds another reproduction, or this one and `resume` is off.
    """
    experiments = {series: request.experiment(series) for series in request.series}
    _check_folder(request, experiments, resume=resume)
    _check_newcomers(request.reproduction, experiments)
    runs = planned(request, experiments)
    check_own_budgets([run for _, run in runs])
    player.check([run for _, run in runs])
    write_plan(request.folder, _plan(request, experiments))
    go_on = request.go_on([*player.options, *options])
    with told_how_to_go_on(request.folder, go_on):
        directories = player.play([run for _, run in runs], request.folder, go_on)
        # That a model diverges is a figure of the attack, and no failure.
        check_all_played([d for d in directories if not has_diverged(read_summary(d))], go_on)
        found: dict[str, list[RunData]] = {series: [] for series in experiments}
        for (series, _), run_dir in zip(runs, directories, strict=True):
            found[series].append(read_run(run_dir))
        return write_summary(request, found)


def planned(request: Request, experiments: dict[str, Experiment]) -> list[tuple[str, Planned]]:
    """Each run with its series, seed by seed: the runs of a seed share its split, its first model and its latencies."""
    runs = []
    for i in range(request.seeds):
        for series, experiment in experiments.items():
            seed = experiment.experiment.seed + i
            runs.append((series, Planned(f"{series}-seed{seed}", with_seed(experiment, seed))))
    return runs


def n_finished(request: Request) -> tuple[int, int]:
    """How many of the runs are finished, and how many there are."""
    runs = planned(request, {series: request.experiment(series) for series in request.series})
    return sum(is_finished(request.folder / run.name) for _, run in runs), len(runs)


def _plan(request: Request, experiments: dict[str, Experiment]) -> Plan:
    begun = plan_of(request.folder)
    kept = begun.arguments["settings"] if begun is not None and begun.command == COMMAND else {}
    settings = {**kept, **{series: experiment.to_toml() for series, experiment in experiments.items()}}
    asked = {"name": request.reproduction.name, "scale": request.scale, "seeds": request.seeds, "settings": settings}
    asked["series"], asked["overrides"] = ",".join(request.series), list(request.overrides)
    return Plan(COMMAND, "", asked)


def _check_folder(request: Request, experiments: dict[str, Experiment], *, resume: bool) -> None:
    """ConfigError unless the folder is free, or holds this reproduction and may go on."""
    folder, plan = request.folder, plan_of(request.folder)
    if plan is None:
        if resume:
            raise ConfigError(f"--out {folder}: holds no reproduction to go on with; leave out --resume")
        return
    if plan.command != COMMAND:
        raise ConfigError(f"--out {folder}: was begun by pausefl {plan.command}; choose another folder")
    begun, asked = plan.arguments, _plan(request, experiments).arguments
    for what in ("name", "scale"):
        if begun[what] != asked[what]:
            raise ConfigError(
                f"--out {folder}: holds a reproduction of another {what}, {begun[what]}, not {asked[what]};"
                " choose another folder"
            )
    if not all(_is_same(begun["settings"].get(series, text), text) for series, text in asked["settings"].items()):
        raise ConfigError(f"--out {folder}: holds a reproduction with other settings; choose another folder")
    if not resume:
        done, of = n_finished(request)
        raise ConfigError(f"--out {folder}: holds this reproduction, {done} of {of} runs finished; go on with --resume")


def _is_same(begun: str, asked: str) -> bool:
    """Whether an experiment that was begun is the one asked for; keys that it lacks are newer, with their defaults."""
    try:
        return parse_experiment(begun).to_toml() == asked
    except ConfigError:
        return False


def _check_newcomers(reproduction: Reproduction, experiments: dict[str, Experiment]) -> None:
    """ConfigError where newcomers are drawn, and none joins in time."""
    if reproduction.drawing not in {"selections", "newcomers"}:
        return
    for series, experiment in experiments.items():
        rounds, joins = experiment.experiment.rounds, [g.join_round for g in experiment.clients.groups.values()]
        if not any(1 < join <= rounds for join in joins):
            raise ConfigError(
                f"{reproduction.name}: draws newcomers, but none joins {series} within experiment.rounds = {rounds}"
            )
