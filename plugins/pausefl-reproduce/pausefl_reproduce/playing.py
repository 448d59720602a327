"""Plays the runs of a published figure: every series with the same seeds."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from pausefl.experiment.experiment import Experiment, parse_experiment, with_values
from pausefl.results.reading import read_run
from pausefl.results.stored_summary import read_summary
from pausefl.studies.campaign import (
    Plan,
    Planned,
    check_all_played,
    check_some_played,
    is_finished,
    plan_of,
    told_how_to_go_on,
    write_plan,
)
from pausefl.studies.playing import Player, checked
from pausefl_process.machine import machine_in_words
from pausefl_proto.errors import ConfigError
from pausefl_reproduce.played import PlayedSeed, has_diverged
from pausefl_reproduce.published import Reproduction
from pausefl_reproduce.request import COMMAND, Request
from pausefl_reproduce.summary import kept_of, write_summary


def reproduce(request: Request, player: Player, *, resume: bool) -> dict[str, Any]:
    """Play every missing run, then write reproduction.json and the figure; returns the content of reproduction.json.

    The error of an interruption names the command that resumes. ConfigError if the folder holds another reproduction,
    or holds this one and `resume` is False.
    """
    experiments = {series: request.experiment(series) for series in request.series}
    _check_folder(request, experiments, resume=resume)
    _check_newcomers(request.reproduction, experiments)
    runs = planned(request, experiments)
    refused = checked([run for _, run in runs], request.folder, player)
    write_plan(request.folder, _plan(request, experiments))
    go_on = request.go_on(player.options)
    with told_how_to_go_on(request.folder, go_on):
        left = [run for _, run in runs if run.name not in refused]
        missing = {**refused, **player.play(left, request.folder)}
        found: dict[str, list[PlayedSeed]] = {series: [] for series in experiments}
        played = {run.name: request.folder / run.name for _, run in runs if run.name not in missing}
        for series, run in runs:
            if run.name in played:
                found[series].append(kept_of(request, read_run(played[run.name]), machine_in_words()))
        common = set.intersection(*({one.seed for one in of_series} for of_series in found.values()))
        found = {series: [one for one in of_series if one.seed in common] for series, of_series in found.items()}
        summary = write_summary(replace(request, seeds=len(common)), found) if common else {}
        # A diverged model is a result, such as of an attack, and not a failure of the run.
        sound = [run_dir for run_dir in played.values() if not has_diverged(read_summary(run_dir))]
        check_some_played(len(runs), missing, go_on)
        check_all_played(sound, missing, go_on, player.say)
        return summary


def planned(request: Request, experiments: dict[str, Experiment]) -> list[tuple[str, Planned]]:
    """The runs with their series, seed by seed. Runs of one seed have the same split, first model and latencies."""
    runs = []
    for i in range(request.seeds):
        for series, experiment in experiments.items():
            seed = experiment.experiment.seed + i
            runs.append((series, Planned(f"{series}-seed{seed}", with_values(experiment, "experiment", seed=seed))))
    return runs


def n_finished(request: Request) -> tuple[int, int]:
    """How many of the runs are finished, and how many runs there are in all."""
    runs = planned(request, {series: request.experiment(series) for series in request.series})
    n = 0
    for _, run in runs:
        with suppress(ConfigError):  # a damaged run, which `checked` names
            n += is_finished(request.folder / run.name)
    return n, len(runs)


def _plan(request: Request, experiments: dict[str, Experiment]) -> Plan:
    begun = plan_of(request.folder)
    kept = begun.arguments["settings"] if begun is not None and begun.command == COMMAND else {}
    settings = {**kept, **{series: experiment.to_toml() for series, experiment in experiments.items()}}
    asked = {"name": request.reproduction.name, "scale": request.scale, "seeds": request.seeds, "settings": settings}
    asked["series"], asked["overrides"] = ",".join(request.series), list(request.overrides)
    asked["each_seed"] = request.each_seed
    return Plan(COMMAND, "", asked)


def _check_folder(request: Request, experiments: dict[str, Experiment], *, resume: bool) -> None:
    """Raise ConfigError unless the folder is free, or holds this reproduction and `resume` is True."""
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
    """Whether both TOML texts are the same experiment. Keys that the older text lacks get their defaults."""
    try:
        return parse_experiment(begun).to_toml() == asked
    except ConfigError:
        return False


def _check_newcomers(reproduction: Reproduction, experiments: dict[str, Experiment]) -> None:
    """Raise ConfigError if the figure shows newcomers, but none joins within the rounds of some series."""
    if reproduction.drawing not in {"selections", "newcomers"}:
        return
    for series, experiment in experiments.items():
        rounds, joins = experiment.experiment.rounds, [g.join_round for g in experiment.clients.groups.values()]
        if not any(1 < join <= rounds for join in joins):
            raise ConfigError(
                f"{reproduction.name}: draws newcomers, but none joins {series} within experiment.rounds = {rounds}"
            )
