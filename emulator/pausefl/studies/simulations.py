"""Simulates an experiment under several policies and seeds, and draws them side by side."""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.objects import labels_of
from pausefl.experiment.server_records import selected_policy
from pausefl.results.in_words import number
from pausefl.results.reading import EPSILON_LABELS, TIME_LABELS, time_axis
from pausefl.results.report.style import write_picture
from pausefl.results.statistics import Spread, saving_in_words, shares_saved
from pausefl.results.tables import write_records
from pausefl.runtime.forks import spawned
from pausefl.runtime.processes.lifetime import in_children
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, refuse_run_in
from pausefl.studies.compare import variant_of
from pausefl.studies.simulation import outputs
from pausefl.studies.simulation.figures import SimulatedCurves, draw_simulations
from pausefl.studies.simulation.outputs import run_simulation, weights_in_words
from pausefl.studies.time_left import time_left
from pausefl_process.files import write_durably
from pausefl_process.machine import available_cores
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.newcomers import NewcomerPolicy

_WORTH_CHILDREN = 400_000
"""From how many rounds in all on processes that play them are worth their start, some seconds each."""
_SUMMED = {
    "total_latency_s": "{time} (s)",
    "max_epsilon_spent": "greatest {epsilon}",
    "regret": "regret",
    "genie_regret": "regret in the genie's objective",
}
"""The labels of the figures that are summarised over seeds, by key. {time} and {epsilon} stand for the
names of the time that passed and of ε's unit."""


def run_simulations(
    experiment: Experiment,
    policies: Sequence[str],
    seeds: int,
    rounds: int,
    folder: Path,
    jobs: int | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Simulate each policy with the same seeds, so with equal latencies; write simulations.json, .csv and .png.

    Each simulation has its own folder. `jobs` are played at a time; None: one per core, but one below 400,000 rounds
    in all, and in a process that may not start others.
    `say` is told how many are played. Returns the content of simulations.json. Without policies and with one seed, it
    is a single simulation of the experiment's policy, see `run_simulation`. ConfigError if the folder holds other
    results, or if some policies are simulated by drifts and others by latencies.
    """
    refuse_run_in(folder)
    if any((folder / name).exists() for name in ("simulation.json", "simulations.json", CAMPAIGN_PLAN)):
        raise ConfigError(f"{folder}: holds other results; choose another folder")  # its files would be replaced
    if not policies and seeds == 1:
        return run_simulation(variant_of(experiment, experiment.selection.policy, 0), rounds, folder)
    labels = labels_of(policies or [experiment.selection.policy]).items()
    listed = [(label, variant_of(experiment, policy, i)) for policy, label in labels for i in range(seeds)]
    _check_alike(listed)
    if jobs is None:
        may_start = len(listed) * rounds >= _WORTH_CHILDREN and not multiprocessing.current_process().daemon
        jobs = available_cores() if may_start else 1
    simulated, began_s = partial(_simulated, rounds, folder.absolute()), time.monotonic()
    make = partial(spawned, "pausefl-simulation")
    played = (simulated(each) for each in listed) if jobs == 1 else in_children(make, jobs, simulated, listed)
    summaries: dict[str, list[dict[str, Any]]] = {}
    curves: dict[str, list[SimulatedCurves]] = {}
    with closing(played):
        for n_played, (of_it, curves_of_it) in enumerate(played, start=1):
            summaries.setdefault(of_it["policy"], []).append(of_it)
            curves.setdefault(of_it["policy"], []).append(curves_of_it)
            left = len(listed) - n_played
            still = time_left(time.monotonic() - began_s, n_played, left, min(jobs, left) if jobs > 1 else 0)
            say(f"{n_played} of {len(listed)}{still}")
    unit = experiment.privacy.unit if experiment.privacy.enabled else None
    warning = _warning(summaries) or _no_choice(experiment)
    baseline = "random" if "random" in summaries else next(iter(summaries))
    summary = {
        "rounds": rounds,
        "mode": experiment.server.mode,
        "privacy_unit": unit,
        "policies": {policy: _spreads(found) for policy, found in summaries.items()},
        "genies": {policy: first["genie"] for policy, (first, *_) in summaries.items() if first.get("genie")},
        "warning": warning,
        "answers": [] if warning else list(_answers(summaries, baseline)),
    }
    write_durably(folder / "simulations.json", json.dumps(summary, indent=2) + "\n")
    _write_table(folder / "simulations.csv", [each for found in summaries.values() for each in found])
    write_picture(folder / "simulations", lambda: draw_simulations(curves, summary, _notes(summary)))
    return summary


def _simulated(rounds: int, folder: Path, of: tuple[str, Experiment]) -> tuple[dict[str, Any], SimulatedCurves]:
    """Simulate one policy under one seed, in a folder of its own; returns its summary and its curves."""
    policy, variant = of
    own = folder / f"{policy.replace(':', '.')}-seed{variant.experiment.seed}"
    summary = run_simulation(variant, rounds, own, is_drawn=False)
    table = np.genfromtxt(own / "simulation.csv", delimiter=",", names=True, ndmin=1)
    return {**summary, "policy": policy}, {name: table[name] for name in table.dtype.names or ()}


def in_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Lines of text: the results of each policy, then notes on them, such as why they cannot be compared."""
    if "policies" not in summary:
        yield from outputs.in_words(summary)
        return
    policies, epsilon = summary["policies"], EPSILON_LABELS.get(summary["privacy_unit"], "ε")
    time = TIME_LABELS[time_axis([summary])]
    labels = {name: text.format(epsilon=epsilon, time=time) for name, text in _SUMMED.items()}
    for policy, found in policies.items():
        told = (f"{labels[name]} {_spread_in_words(spread)}" for name, spread in found.items())
        yield f"{policy}: {', '.join(told)}"
    if any(spread["least"] != spread["greatest"] for found in policies.values() for spread in found.values()):
        yield "a mean over the seeds each; in brackets the least and the greatest of them"
    if any("genie_regret" in found for found in policies.values()):
        yield "regret: the reward lost against a genie that knows every mean latency; below 0, the policy did better"
    yield from _notes(summary)


def _answers(summaries: Mapping[str, Sequence[Mapping[str, Any]]], baseline: str) -> Iterator[str]:
    """A sentence per policy on the time it saves over the baseline, then one on what a simulation cannot show."""
    if len(summaries) < 2 or "total_latency_s" not in summaries[baseline][0]:
        return
    totals_s = {policy: [each["total_latency_s"] for each in found] for policy, found in summaries.items()}
    for policy in (each for each in summaries if each != baseline):
        if saved := Spread.of(shares_saved(totals_s[policy], totals_s[baseline])):
            yield saving_in_words(policy, baseline, saved)
    yield "this is of drawn latencies alone: no network, training or accuracy was measured (pausefl compare does)"


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """Lines that say why the policies' figures cannot be compared; empty if they can.

    If regrets are of different objectives, they show the weights of each policy's genie.
    """
    warnings = [summary["warning"]] if summary["warning"] else []
    genies = {policy: genie for policy, genie in summary["genies"].items() if "regret" in summary["policies"][policy]}
    # ζ is left out: it weighs exploration, and a genie does not explore.
    objectives = [{name: value for name, value in genie.items() if name != "zeta"} for genie in genies.values()]
    if all(objective == objectives[0] for objective in objectives):
        return warnings
    words = {policy: weights_in_words(genie) for policy, genie in genies.items()}
    alike = {weights: ", ".join(policy for policy in words if words[policy] == weights) for weights in words.values()}
    against = (f"{policies}: against a genie with {weights}" for weights, policies in alike.items())
    return [*warnings, "regrets are of different objectives, and do not compare:", *against]


def _warning(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A warning that simulations have different numbers of rounds, as budgets ended some early. Empty otherwise."""
    played = {policy: [summary["rounds"] for summary in found] for policy, found in summaries.items()}
    if len({rounds for of_policy in played.values() for rounds in of_policy}) == 1:
        return ""
    ranges = (f"{policy} {' to '.join(map(str, sorted({min(n), max(n)})))}" for policy, n in played.items())
    return f"simulations have unequal rounds ({', '.join(ranges)}): their totals do not compare"


def _no_choice(experiment: Experiment) -> str:
    """A warning that every round asks all clients, so that policies have no choice. Empty otherwise."""
    m, clients = experiment.selection.m, len(experiment.client_ids)
    if experiment.server.mode == "asynchronous" or m < clients:
        return ""
    return f"each round asks all {clients} clients, so no policy can choose; set selection.m below {clients}"


def _spread_in_words(spread: Mapping[str, float]) -> str:
    """The mean, with the range over the seeds if their values differ."""
    mean, least, greatest = (number(spread[name]) for name in ("mean", "least", "greatest"))
    return mean if least == greatest else f"{mean} ({least} to {greatest})"


def _check_alike(variants: Sequence[tuple[str, Experiment]]) -> None:
    """Raise ConfigError if some policies are for newcomers and others are not: their regrets cannot be compared."""
    kinds = {isinstance(selected_policy(v.selection), NewcomerPolicy): policy for policy, v in variants}
    if len(kinds) > 1:
        raise ConfigError(
            f"--policies: {kinds[True]} is simulated by drifts and {kinds[False]} by latencies; simulate them apart"
        )


def _spreads(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The mean, least and greatest value over the seeds of each figure that every seed has."""
    found = {name: Spread.of([summary.get(name) for summary in summaries]) for name in _SUMMED}
    return {name: {"mean": s.mean, "least": s.least, "greatest": s.greatest} for name, s in found.items() if s}


def _write_table(path: Path, summaries: Sequence[Mapping[str, Any]]) -> None:
    """Write one row per simulation: its figures and the weights of its genie."""
    names = ("policy", "seed", "rounds", *_SUMMED)
    weights = [{f"genie_{name}": value for name, value in (each.get("genie") or {}).items()} for each in summaries]
    figures = [{name: each[name] for name in names if name in each} for each in summaries]
    write_records(path, [{**of_it, **weighed} for of_it, weighed in zip(figures, weights, strict=True)])
