"""Runs published figures by name: every series over the same seeds, summarised and drawn like the paper's."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pausefl.campaigns.campaign import (
    Plan,
    Planned,
    Player,
    check_all_played,
    check_own_budgets,
    is_finished,
    plan_of,
    write_plan,
)
from pausefl.campaigns.reproduction.figure import draw_reproduction
from pausefl.config.experiment import Experiment, load_experiment, parse_experiment
from pausefl.config.server_records import check_policies, selected_policy
from pausefl.published import Reproduction
from pausefl.report.style import save_pdf, save_png
from pausefl.results.reading import RunData, has_diverged, read_run, read_summary
from pausefl.results.reproduction import ClusterTerm, summarise_series
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError

SUMMARY = "reproduction.json"
_COMMAND = "reproduce"
_DRAWS = 500
_START_S = 8.0
"""About what a run takes to start and to end."""
ReproductionScale = Literal["full", "quick"]


@dataclass(frozen=True)
class Request:
    """A reproduction as it was asked for."""

    reproduction: Reproduction
    series: tuple[str, ...]
    """Those that are run."""
    seeds: int
    scale: ReproductionScale
    overrides: tuple[str, ...]
    """As `--set` takes them, for every run."""
    folder: Path

    @property
    def command(self) -> str:
        """The command that asks for it."""
        words = ["pausefl", _COMMAND, self.reproduction.name, "--seeds", str(self.seeds), "--scale", self.scale]
        words += ["--series", ",".join(self.series)]
        return shlex.join([*words, *(word for override in self.overrides for word in ("--set", override))])

    @property
    def go_on(self) -> str:
        """The command that goes on with it."""
        return f"{self.command} --resume --out {shlex.quote(str(self.folder))}"

    def experiment(self, series: str) -> Experiment:
        """What one series plays, with its first seed; ConfigError."""
        preset, own = self.reproduction.series[series]
        small = self.reproduction.quick.set if self.scale == "quick" else {}
        experiment = load_experiment(preset, {**self.reproduction.overrides, **own, **small})
        if self.overrides:
            experiment = parse_experiment(experiment.to_toml(), self.overrides)
        check_policies(experiment)
        return experiment


def reproduce(request: Request, player: Player, *, resume: bool) -> dict[str, Any]:
    """Play every run that is missing, then write reproduction.json and the figure; returns what the former holds.

    ConfigError where the folder holds another reproduction, or this one and `resume` is off.
    """
    experiments = {series: request.experiment(series) for series in request.series}
    _check_folder(request, experiments, resume=resume)
    _check_newcomers(request.reproduction, experiments)
    runs = planned(request, experiments)
    check_own_budgets([run for _, run in runs])
    player.check([run for _, run in runs])
    write_plan(request.folder, _plan(request, experiments))
    directories = player.play([run for _, run in runs], request.folder, request.go_on)
    # That a model diverges is a figure of the attack, and no failure.
    check_all_played([d for d in directories if not has_diverged(read_summary(d))], request.go_on)
    found: dict[str, list[RunData]] = {series: [] for series in experiments}
    for (series, _), run_dir in zip(runs, directories, strict=True):
        found[series].append(read_run(run_dir))
    return _write(request, found)


def planned(request: Request, experiments: dict[str, Experiment]) -> list[tuple[str, Planned]]:
    """Each run with its series, seed by seed: the runs of a seed share its split, its first model and its latencies."""
    runs = []
    for i in range(request.seeds):
        for series, experiment in experiments.items():
            seed = experiment.experiment.seed + i
            table = experiment.experiment.model_copy(update={"seed": seed})
            runs.append((series, Planned(f"{series}-seed{seed}", experiment.model_copy(update={"experiment": table}))))
    return runs


def n_finished(request: Request) -> tuple[int, int]:
    """How many of the runs are finished, and how many there are."""
    runs = planned(request, {series: request.experiment(series) for series in request.series})
    return sum(is_finished(request.folder / run.name) for _, run in runs), len(runs)


def estimated_s(request: Request) -> float:
    """About how long all runs take here: rounds times expected latency and training; real runs differ."""
    cores = os.cpu_count() or 1
    seconds = 0.0
    for series in request.series:
        experiment = request.experiment(series)
        chosen = _most_chosen(experiment)
        training_s = (chosen + _most_newcomers(experiment)) * request.reproduction.training_s / cores
        seconds += _START_S + experiment.experiment.rounds * (_expected_wait_s(experiment, chosen) + training_s)
    return request.seeds * seconds


def left_out(request: Request) -> list[str]:
    """What these runs leave out of the full ones, a phrase each."""
    whole = Request(
        request.reproduction, tuple(request.reproduction.series), request.reproduction.seeds, "full", (), request.folder
    )
    phrases = [f"{whole.seeds - request.seeds} of {whole.seeds} seeds"] if request.seeds < whole.seeds else []
    if without := [series for series in whole.series if series not in request.series]:
        phrases.append(f"the series {', '.join(without)}")
    own, full = (each.experiment(request.series[0]) for each in (request, whole))
    if own.experiment.rounds < full.experiment.rounds:
        rounds = full.experiment.rounds
        phrases.append(f"{rounds - own.experiment.rounds} of {rounds} rounds")
    examples, of_examples = own.workload.examples, full.workload.examples
    if examples is not None and of_examples is not None and examples < of_examples:
        phrases.append(f"{of_examples - examples:,} of {of_examples:,} examples")
    if own.latency.time_scale < full.latency.time_scale and own.experiment.clock == "real":
        times = full.latency.time_scale / own.latency.time_scale
        phrases.append(f"real time: delays are {times:g} times shorter, so the machine's own delays weigh as much more")
    return phrases


def _most_newcomers(experiment: Experiment) -> int:
    """How many Fed-TS may choose on top: those that join later, and are as they should be."""
    if experiment.selection.policy != "fed-ts":
        return 0
    return sum(g.count for g in experiment.clients.groups.values() if g.join_round > 1 and g.role == "relevant")


def _expected_wait_s(experiment: Experiment, chosen: int) -> float:
    """The mean over random sets of the longest delay, in real seconds."""
    if experiment.experiment.clock == "virtual":
        return 0.0
    rng = np.random.default_rng(1)
    delays_s = np.array([law.sample(rng, _DRAWS) for law in experiment.delays().values()])
    order = rng.permuted(np.tile(np.arange(len(delays_s)), (_DRAWS, 1)), axis=1)[:, :chosen].T
    return experiment.latency.time_scale * float(np.take_along_axis(delays_s, order, axis=0).max(axis=0).mean())


def _plan(request: Request, experiments: dict[str, Experiment]) -> Plan:
    begun = plan_of(request.folder)
    kept = begun.arguments["settings"] if begun is not None and begun.command == _COMMAND else {}
    settings = {**kept, **{series: experiment.to_toml() for series, experiment in experiments.items()}}
    asked = {"name": request.reproduction.name, "scale": request.scale, "seeds": request.seeds, "settings": settings}
    asked["series"] = ",".join(request.series)
    return Plan(_COMMAND, "", asked)


def _check_folder(request: Request, experiments: dict[str, Experiment], *, resume: bool) -> None:
    """ConfigError unless the folder is free, or holds this reproduction and may go on."""
    folder, plan = request.folder, plan_of(request.folder)
    if plan is None:
        if resume:
            raise ConfigError(f"--out {folder}: holds no reproduction to go on with; leave out --resume")
        return
    if plan.command != _COMMAND:
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


def _write(request: Request, runs: dict[str, list[RunData]]) -> dict[str, Any]:
    reproduction, first = request.reproduction, next(iter(runs.values()))[0]
    experiments = [request.experiment(series) for series in request.series]
    private = next((of_series[0] for of_series in runs.values() if of_series[0].privacy), first)
    start: dict[str, str] = next(iter(first.summary.get("starts", [])), {})
    summary = {
        "name": reproduction.name,
        "title": reproduction.title,
        "figures": reproduction.figures,
        "drawing": reproduction.drawing,
        "leakage_over": reproduction.leakage_over,
        "command": request.command,
        "scale": request.scale,
        "left_out": left_out(request),
        "settings": _settings(experiments),
        "started": start.get("started", ""),
        "software": " ".join(start.get(name, "") for name in ("version", "commit")).strip(),
        "hardware": hardware(),
        "privacy_unit": private.summary["privacy_unit"],
        "epsilon_budget": private.summary["epsilon_budget"] if private.privacy else None,
        "published": {name: values.model_dump(mode="json") for name, values in reproduction.published.items()},
        **summarise_series(runs, _cluster_term(experiments)),
    }
    write_durably(request.folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    figure = draw_reproduction(summary)
    save_png(figure, request.folder / f"{reproduction.name}.png")
    save_pdf(figure, request.folder / f"{reproduction.name}.pdf")
    return summary


def _settings(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """What a reader asks first of the runs; all values in words where the series differ."""
    tables = [
        {
            "rounds": experiment.experiment.rounds,
            "clients": experiment.clients.count,
            "m": _most_chosen(experiment),
            "dataset": experiment.workload.dataset,
            "model": experiment.workload.model,
            "time_scale": experiment.latency.time_scale,
            "clock": experiment.experiment.clock,
        }
        for experiment in experiments
    ]
    values = {key: list(dict.fromkeys(table[key] for table in tables)) for key in tables[0]}
    return {key: found[0] if len(found) == 1 else " or ".join(map(str, found)) for key, found in values.items()}


def _most_chosen(experiment: Experiment) -> int:
    """How many clients a round has: `selection.m`, or all; Fed-TS's newcomers come on top."""
    return experiment.clients.count if experiment.selection.policy == "all" else experiment.selection.m


def _cluster_term(experiments: Sequence[Experiment]) -> ClusterTerm | None:
    """That of the first policy that is played under R2; None where none is."""
    policies = (selected_policy(experiment.selection) for experiment in experiments)
    under_r2: Any = next((policy for policy in policies if getattr(policy, "reward", "R1") == "R2"), None)
    return None if under_r2 is None else ClusterTerm(under_r2.clusters, under_r2.delta_tau_s)


def hardware() -> str:
    """This machine's processor and how many cores it has, in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")
    return f"{os.cpu_count()} cores, {model}"
