"""Measures a setting: by a simulation, or by a run, which trains the model."""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.server_records import policy_of
from pausefl.outcomes import with_resume_command
from pausefl.results.reading import read_run, time_axis
from pausefl.studies.campaign import Planned
from pausefl.studies.playing import OnExecutor, Player
from pausefl.studies.simulation.curves import SimulationResult
from pausefl.studies.simulation.engine import Setting, is_compiled, simulate, simulate_fast
from pausefl.studies.simulation.outputs import setting_of
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_tune.plan import LATENCY, LATENCY_TO_TARGET, Point, TuningPlan, value_of

Figures = Mapping[str, float]
"""The results of a run: the objectives by name, ROUNDS played and, with a target accuracy, whether it was REACHED."""
ROUNDS, REACHED, CLOCK = "rounds", "target_reached", "experiment.clock"
NOT_REACHED = 2.0
"""The penalty for missing the target accuracy. The latency to it is then this many times the total latency of the run,
or of the published setting if greater (PAR2: Hutter, Hoos, Leyton-Brown and Stützle, JAIR 2009)."""


class SettingRefused(PauseflError):
    """A setting was played but cannot be compared with others, or no setting of a search can."""


class Measure:
    """Plays each setting once under each seed. Runs are kept in `folder`/runs."""

    def __init__(self, plan: TuningPlan, folder: Path, player: Player) -> None:
        self._plan, self._folder, self._player = plan, folder, player
        self._found: dict[str, Figures] = {}

    def __call__(self, point: Point, seed: int) -> Figures:
        """The figures of a setting under a seed. Raises ConfigError if it is no valid experiment. Raises SettingRefused
        if its run failed, or if total latency counts and budgets ended the run before the published setting's."""
        found = self._played(point, seed)
        rounds = self._plan.experiment_at(point, seed).experiment.rounds
        published = {key: value for key, value in point.items() if key == CLOCK}
        if found.get(LATENCY_TO_TARGET.name) == math.inf:
            cutoff_s = max(each["total_latency_s"] for each in (found, self._played(published, seed)))
            return {**found, LATENCY_TO_TARGET.name: NOT_REACHED * cutoff_s}
        is_short = self._plan.target_accuracy is None and found[ROUNDS] < rounds
        if is_short and found[ROUNDS] < (most := self._played(published, seed)[ROUNDS]):
            raise SettingRefused(
                f"ended after {found[ROUNDS]:.0f} of {rounds} rounds, as budgets were spent; the experiment's own"
                f" setting plays {most:.0f}: total latencies do not compare"
            )
        return found

    def _played(self, point: Point, seed: int) -> Figures:
        run = self._planned(point, seed)
        if run.name not in self._found:
            if self._plan.by == "run" or CLOCK in point:
                several = isinstance(self._player, OnExecutor)
                runs = [self._planned(point, each) for each in (self._beside(seed) if several else [seed])]
                try:
                    missing = self._player.play([each for each in runs if each.name not in self._found], self._folder)
                except ConfigError as error:  # of where runs are played, which refuses every setting
                    raise PauseflError(str(error)) from error
                if failed := missing.get(run.name):
                    raise with_resume_command(failed, "", run.name)  # no command to resume: a search goes on by itself
                self._found[run.name] = figures_of_run(self._folder / run.name, self._plan.target_accuracy)
            else:
                self._found[run.name] = simulated(run.experiment)
        return self._found[run.name]

    def _planned(self, point: Point, seed: int) -> Planned:
        # Keys at their published values are left out, so that a setting is played once: noise makes its runs differ.
        # What was searched names its folder, not the whole experiment: another version of pausefl has other keys.
        changes = {key: value for key, value in sorted(point.items()) if value != value_of(self._plan.experiment, key)}
        name = sha256(json.dumps(changes).encode()).hexdigest()[:12]
        return Planned(f"runs/{name}-seed{seed}", self._plan.experiment_at(changes, seed))

    def _beside(self, seed: int) -> Sequence[int]:
        """The seeds under which a setting is played together with this seed."""
        plan = self._plan
        groups = (plan.trial_seeds, plan.unseen_seeds, plan.real_clock_seeds)
        return next((group for group in groups if seed in group), [seed])


def _has_expectations(setting: Setting) -> bool:
    """Whether the delays have expectations. A law that changes with the round has none."""
    try:
        return setting.oracle is not None
    except ConfigError:
        return False


def simulated(experiment: Experiment) -> Figures:
    """The figures of a simulation, which ends with its rounds or when all budgets are spent."""
    policy, rounds, setting = policy_of(experiment), experiment.experiment.rounds, setting_of(experiment)
    if _has_expectations(setting) and is_compiled(policy, setting):
        result = simulate_fast(policy, setting, rounds)
    else:
        result = simulate(policy, setting, rounds, with_regret=False)
    ends = {"total_latency_s": result.total_latency_s, "max_epsilon_spent": result.max_epsilon_spent}
    figures = {name: float(curve[-1]) for name, curve in ends.items()}
    return {**figures, "imbalance": imbalance(result, setting.examples), ROUNDS: float(result.round[-1])}


def imbalance(result: SimulationResult, examples: Mapping[str, int]) -> float:
    """Half of Σ |share of choices − share of examples| over the clients, the total variation distance.

    It stands for accuracy, which a simulation lacks: the less choices follow the data, the worse the model fits all
    data.
    """
    owned = np.array([examples[client_id] for client_id in result.client_ids], np.float64)
    return 0.5 * float(np.abs(result.chosen / result.chosen.sum() - owned / owned.sum()).sum())


def figures_of_run(run_dir: Path, target_accuracy: float | None) -> Figures:
    """The figures of a run. The latency to a target never reached is infinite. SettingRefused for a failed run."""
    run = read_run(run_dir)
    accuracy = run.summary["final_accuracy"]
    if run.summary["outcome"] == "failed" or accuracy is None:
        raise SettingRefused(f"{run_dir}: the run failed ({run.summary['stopped_because']})")
    leakage = run.summary["max_epsilon_spent"] or 0.0  # none without privacy
    axis = time_axis([run.summary])
    figures = {LATENCY.name: float(run.summary[axis]), "max_epsilon_spent": leakage}
    figures |= {"final_accuracy": accuracy, ROUNDS: run.summary["rounds"]}
    if target_accuracy is None:
        return figures
    latency_s, accuracies = run.curve("test", axis)
    reached = np.flatnonzero(accuracies >= target_accuracy)
    to_target_s = float(latency_s[reached[0]]) if reached.size else math.inf
    return {**figures, LATENCY_TO_TARGET.name: to_target_s, REACHED: float(bool(reached.size))}
