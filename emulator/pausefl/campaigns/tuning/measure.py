"""Measures a setting: by a simulation, or by a run with real processes."""

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from pausefl.campaigns.campaign import OneByOne, Planned, Show
from pausefl.campaigns.tuning.plan import LATENCY, TuningPlan
from pausefl.campaigns.tuning.space import Point, changes_of, experiment_at
from pausefl.config.experiment import Experiment
from pausefl.config.server_records import selected_policy
from pausefl.results.reading import read_run
from pausefl.simulation.curves import SimulationResult
from pausefl.simulation.engine import is_compiled, simulate, simulate_pause
from pausefl.simulation.outputs import setting_of
from pausefl_proto.errors import PauseflError


class SettingRefused(PauseflError):
    """A setting, or every one, was played and cannot be compared with others."""


Figures = Mapping[str, float]
"""What a run came to, by the objectives' names."""
Measure = Callable[[Point, int], Figures]
"""Plays a setting under a seed. ConfigError for a setting that is no experiment, SettingRefused for a run that failed
and for one whose budgets ended it before they end the published setting. Other errors are not the setting's."""

ROUNDS = "rounds"
"""The figure that says how many rounds were played, fewer than asked for where budgets were spent."""
REACHED = "target_reached"
"""The figure that is 1 for a run that reaches the target accuracy, and 0 for one that does not."""
NOT_REACHED = 2.0
"""A run that never reaches the target accuracy counts with so many times a common cutoff, the published setting's
total latency under that seed, or its own where that is greater (PAR2, as Hutter, Hoos, Leyton-Brown and Stützle, JAIR
2009, score runs that do not end)."""


def measure_of(plan: TuningPlan, folder: Path, show: Show) -> Measure:
    """How the plan's trials are measured."""

    def by_simulation(point: Point, seed: int) -> Figures:
        return simulated(experiment_at(plan.source, point, seed))

    return measure_by_run(plan, folder, show) if plan.by == "run" else _held_to_published_end(plan, by_simulation)


def measure_by_run(plan: TuningPlan, folder: Path, show: Show) -> Measure:
    """Measures by runs, which lie in `folder`/runs; finished ones are not played again."""

    def played(point: Point, seed: int) -> Path:
        # One setting is played once, however it was found: runs of the same one differ by their noise.
        experiment = experiment_at(plan.source, changes_of(plan.experiment, point), seed)
        name = sha256(experiment.to_toml().encode()).hexdigest()[:12]
        planned = Planned(f"runs/{name}-seed{seed}", experiment)
        (run_dir,) = OneByOne(show).play([planned], folder, go_on="")  # a search goes on by itself
        return run_dir

    def by_run(point: Point, seed: int) -> Figures:
        found = figures_of_run(played(point, seed), plan.target_accuracy)
        if found.get("latency_to_target_s") != math.inf:
            return found
        # A cutoff of the run's own would let short rounds that teach nothing win.
        cutoff_s = figures_of_run(played(_published(point), seed), None)["total_latency_s"]
        return {**found, "latency_to_target_s": NOT_REACHED * max(cutoff_s, found["total_latency_s"])}

    return _held_to_published_end(plan, by_run)


def _held_to_published_end(plan: TuningPlan, measure: Measure) -> Measure:
    """Refuses settings that spend their budgets sooner than the published one: fewer rounds take less time in all.

    Where latency is that to a target, an early end shortens nothing.
    """

    ends: dict[tuple[str, int], float] = {}  # how many rounds the published setting plays, by clock and seed

    def published_rounds(point: Point, seed: int) -> float:
        published = _published(point)
        key = str(published), seed
        if key not in ends:
            ends[key] = measure(published, seed)[ROUNDS]
        return ends[key]

    def held(point: Point, seed: int) -> Figures:
        found = measure(point, seed)
        if LATENCY not in plan.objectives:
            return found
        rounds = experiment_at(plan.source, point, seed).experiment.rounds
        if found[ROUNDS] < rounds and found[ROUNDS] < (published := published_rounds(point, seed)):
            raise SettingRefused(
                f"ended after {found[ROUNDS]:.0f} of {rounds} rounds, as budgets were spent; the experiment's own"
                f" setting plays {published:.0f}: total latencies do not compare"
            )
        return found

    return held


def _published(point: Point) -> Point:
    """The published setting, on the clock of this point."""
    return {key: value for key, value in point.items() if key == "experiment.clock"}


def simulated(experiment: Experiment) -> Figures:
    """Total latency, greatest leakage, imbalance and rounds of a simulation until all rounds or budgets are over."""
    policy, rounds = selected_policy(experiment.selection), experiment.experiment.rounds
    setting = setting_of(experiment)
    if setting.has_expectations and is_compiled(policy, setting):
        result = simulate_pause(policy, setting, rounds)
    else:
        result = simulate(policy, setting, rounds, with_regret=False)
    return {
        "total_latency_s": float(result.total_latency_s[-1]),
        "max_epsilon_spent": float(result.max_epsilon_spent[-1]),
        "imbalance": imbalance(result, setting.examples),
        ROUNDS: float(result.round[-1]),
    }


def imbalance(result: SimulationResult, examples: Mapping[str, int]) -> float:
    """Half of Σ |share of choices − share of examples| over the clients: 0 where data are used as they are spread.

    The total variation distance, from 0 to 1. It stands for accuracy, which a simulation does not have: the less the
    choices follow the data, the less the model is of all of them.
    """
    owned = np.array([examples[client_id] for client_id in result.client_ids], np.float64)
    return 0.5 * float(np.abs(result.chosen / result.chosen.sum() - owned / owned.sum()).sum())


def figures_of_run(run_dir: Path, target_accuracy: float | None) -> Figures:
    """Total latency, leakage, final accuracy and rounds; with a target, the latency to it and whether it was reached.

    The latency is infinite for a run that never reaches the target.
    """
    run = read_run(run_dir)
    accuracy, total_s = run.summary["final_accuracy"], run.summary["total_latency_s"]
    if run.summary["outcome"] == "failed" or accuracy is None:
        raise SettingRefused(f"{run_dir}: the run failed ({run.summary['stopped_because']})")
    found = {
        "total_latency_s": total_s,
        "max_epsilon_spent": run.summary["max_epsilon_spent"] or 0.0,  # none without privacy
        "final_accuracy": accuracy,
        ROUNDS: run.summary["rounds"],
    }
    if target_accuracy is not None:
        latency_s, accuracies = run.curve("test")
        reached = np.flatnonzero(accuracies >= target_accuracy)
        found["latency_to_target_s"] = float(latency_s[reached[0]]) if reached.size else math.inf
        found[REACHED] = float(bool(reached.size))
    return found
