"""Simulates an experiment, and writes what came of it: simulation.json, tables and a figure."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pausefl.config.client_records import budget_of, partitioner_of, training_of
from pausefl.config.experiment import Experiment
from pausefl.config.groups import presence_of
from pausefl.config.server_records import selected_policy
from pausefl.delays import Constant, Delay, NoDelay
from pausefl.results.csv_table import write_csv
from pausefl.results.reading import EPSILON_LABELS
from pausefl.simulation.curves import SimulationResult
from pausefl.simulation.engine import (
    Setting,
    genie_of,
    is_compiled,
    least_gap,
    printed_delta,
    regret_bound,
    simulate,
    simulate_pause,
)
from pausefl.simulation.growth import NO_REGRET, growth_fits
from pausefl.simulation.newcomer_outputs import (
    FITS_NOTE,
    CsvTable,
    fits_in_words,
    newcomer_findings,
    newcomers_in_words,
)
from pausefl_client.data.partition import partition
from pausefl_client.training.paced import steps_of
from pausefl_process.files import write_durably
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import ConfigError
from pausefl_server.selection import Policy
from pausefl_server.selection.newcomers import NewcomerPolicy
from pausefl_server.selection.policies.genie import Genie

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_REGRETS = {
    "regret": "with the latencies as drawn (below 0: the policy did better than the genie, which plans by means)",
    "genie_regret": "in the genie's own objective, of mean latencies (never below 0)",
}


def run_simulation(experiment: Experiment, rounds: int, out_dir: Path) -> dict[str, Any]:
    """Simulate an experiment's policy and write simulation.json, simulation.csv, other tables and simulation.png.

    Returns what simulation.json holds.
    """
    from pausefl.report.style import save_png

    policy = selected_policy(experiment.selection)
    if isinstance(policy, NewcomerPolicy):
        summary, tables, figure = newcomer_findings(experiment, policy, rounds)
    else:
        summary, tables, figure = _findings(experiment, policy, rounds)
    out_dir.mkdir(parents=True, exist_ok=True)
    write_durably(out_dir / "simulation.json", json.dumps(summary, indent=2) + "\n")
    for name, (columns, rows) in tables.items():
        write_csv(out_dir / f"{name}.csv", columns, rows)
    save_png(figure, out_dir / "simulation.png")
    return summary


def in_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a simulation found, line by line."""
    if "insertions" in summary:
        yield from newcomers_in_words(summary)
        return
    if early := summary.get("ended_early"):
        yield early
    yield f"total latency {summary['total_latency_s']:.1f} s{_leakage_in_words(summary)}"
    if summary["regret"] is None:
        yield NO_REGRET
        return
    weights = weights_in_words(summary["genie"])
    yield f"regret: the reward lost against a genie that knows every mean latency, with {weights}"
    for name, text in _REGRETS.items():
        fits = fits_in_words(summary["growth_fits"][name])
        yield f"    {summary[name]:.1f} {text}{f'; {fits}' if fits else ''}"
    if any(summary["growth_fits"].values()):
        yield FITS_NOTE


def _leakage_in_words(summary: Mapping[str, Any]) -> str:
    if summary["privacy_unit"] is None:
        return ""
    return f", greatest {EPSILON_LABELS[summary['privacy_unit']]} of a client {summary['max_epsilon_spent']:.3g}"


def weights_in_words(genie: Mapping[str, Any]) -> str:
    """What a genie weighs; a table of clusters, which has a line a client, is not written out."""
    values = {name: "by client" if isinstance(value, Mapping) else value for name, value in genie.items()}
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _findings(
    experiment: Experiment, policy: Policy, rounds: int
) -> tuple[dict[str, Any], dict[str, CsvTable], "Figure"]:
    """Summary, tables and figure for a policy that weighs latencies."""
    from pausefl.simulation.figures import draw_simulation

    setting = setting_of(experiment, rounds)
    if is_compiled(policy, setting):
        result = simulate_pause(policy, setting, rounds)
    else:
        result = simulate(policy, setting, rounds)
    genie = genie_of(policy)
    bounds = {} if genie is None else _bounds(setting, genie, result.round)
    columns = ("round", "regret", "genie_regret", "reward", "total_latency_s", "max_epsilon_spent")
    tables: dict[str, CsvTable] = {
        "simulation": (columns, zip(*(getattr(result, column).tolist() for column in columns), strict=True)),
        "selections": (("client_id", "chosen"), zip(result.client_ids, result.chosen.tolist(), strict=True)),
    }
    budget = setting.budget.epsilon_budget if setting.budget else None
    figure = draw_simulation(result, bounds, experiment.privacy.unit, budget)
    return _summary(experiment, setting, result, rounds, genie, bounds), tables, figure


def setting_of(experiment: Experiment, rounds: int | None = None) -> Setting:
    """The latencies, data sizes, budget and groups of an experiment, or of so many rounds of it.

    τ_min = "auto" counts as the least latency possible.
    """
    laws, timeout_s, examples = experiment.delays(), experiment.round_timeout_s, _data_sizes(experiment)
    training = _training_times(experiment, examples)
    return Setting(
        laws=laws,
        examples=examples,
        tau_min_s=experiment.tau_min_s
        or _least_latency_s(laws, training if experiment.latency.signal == "round_trip" else {}),
        budget=budget_of(experiment.privacy),
        seed=experiment.experiment.seed,
        latency_seed=experiment.experiment.seed_of("latency"),
        presence=presence_of(experiment.groups, rounds or experiment.experiment.rounds, experiment.experiment.seed),
        deadline_s=None if timeout_s is None else timeout_s / experiment.latency.time_scale,
        time_scale=experiment.latency.time_scale,
        rest_rounds_max=experiment.server.rest_rounds_max,
        examples_max=experiment.clients.examples_max,
        weight_share_max=experiment.aggregation.weight_share_max,
        training=training,
        mode=experiment.latency.mode,
        signal=experiment.latency.signal,
        spare=experiment.selection.asked - experiment.selection.m,
        quorum=experiment.server.quorum,
    )


def _data_sizes(experiment: Experiment) -> dict[str, int]:
    """|D_k| by id, as the experiment's partition deals out examples of ten equally frequent labels."""
    workload, ids = experiment.workload, experiment.client_ids
    labels = np.arange(workload.examples or 1000 * len(ids)) % 10
    shares = partition(
        partitioner_of(workload),
        labels,
        clients=len(ids),
        classes=10,
        seed=experiment.experiment.seed_of("split"),
        owners=np.arange(labels.size) * len(ids) // labels.size,  # equal shares stand for unknown owners
    )
    return {client_id: len(rows) for client_id, rows in zip(ids, shares, strict=True)}


def _training_times(experiment: Experiment, examples: Mapping[str, int]) -> dict[str, Delay]:
    """The law of the seconds that each client trains, as far as the experiment states it; empty where it does not."""
    workload = experiment.workload
    if stated := experiment.training_times():
        return stated
    if workload.model == "synthetic":
        return dict.fromkeys(examples, Constant(workload.train_s)) if workload.train_s else {}
    if workload.step_s is None:
        return {}
    settings = training_of(workload)
    return {c: Constant(workload.step_s * steps_of(settings, n)) for c, n in examples.items()}


def _least_latency_s(laws: Mapping[str, Delay], training: Mapping[str, Delay]) -> float:
    least_s = min(law.minimum_s + training.get(c, NoDelay()).minimum_s for c, law in laws.items())
    if least_s == 0:
        raise ConfigError('latency.tau_min_s = "auto": a simulation needs a number where a latency can be 0')
    return least_s


def _bounds(setting: Setting, genie: Genie, rounds: IntArray) -> dict[str, FloatArray]:
    """Bound (17) at these rounds under either reading of δ; where δ = 0, because two means are equal, there is none."""
    mu = setting.tau_min_s * np.array(list(setting.oracle.mean_inverse_latency.values()))
    readings = {
        "delta = least gap of E[tau], as printed": printed_delta(setting),
        "delta = least gap of mu": least_gap(mu),
    }
    return {
        reading: regret_bound(setting, genie, rounds, delta)
        for reading, delta in readings.items()
        if 0 < delta < math.inf
    }


def _summary(
    experiment: Experiment,
    setting: Setting,
    result: SimulationResult,
    rounds: int,
    genie: Genie | None,
    bounds: Mapping[str, FloatArray],
) -> dict[str, Any]:
    return {
        "policy": experiment.selection.policy,
        "seed": setting.seed,
        "rounds": int(result.round[-1]),
        "ended_early": _early_end(int(result.round[-1]), rounds),
        "clients": len(result.client_ids),
        "m": experiment.selection.m,
        "tau_min_s": setting.tau_min_s,
        "total_latency_s": float(result.total_latency_s[-1]),
        "cluster_penalty_s": result.cluster_penalty_s,
        "deadline_s": setting.deadline_s,
        "missed": 0 if result.missed is None else int(result.missed.sum()),
        "max_epsilon_spent": setting.budget and float(result.max_epsilon_spent[-1]),
        "epsilon_budget": setting.budget and setting.budget.epsilon_budget,
        "privacy_unit": setting.budget and experiment.privacy.unit,
        "reward": _finite(result.reward[-1]),
        "regret": _finite(result.regret[-1]),
        "genie_regret": _finite(result.genie_regret[-1]),
        "regret_is": "sum of r(genie) - r(policy), PAUSE v2 eq. (15), the genie asked on the policy's own history",
        "genie": genie and _weights(genie),
        "growth_fits": {
            "regret": growth_fits(result.round, result.regret),
            "genie_regret": growth_fits(result.round, result.genie_regret),
        },
        "bound_17": {reading: _finite(bound[-1]) for reading, bound in bounds.items()},
    }


def _early_end(played: int, rounds: int) -> str:
    """What to say of a simulation of fewer rounds than were asked for; empty for one that played all."""
    return f"ended after {played} of {rounds} rounds, as budgets were spent" if played < rounds else ""


def _weights(genie: Genie) -> dict[str, Any]:
    """What the genie weighs, and so what reward and regret are of."""
    names = ("alpha", "gamma", "beta", "zeta", "reward", *(("rho", "clusters") if genie.reward == "R2" else ()))
    return {name: getattr(genie, name) for name in names}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
