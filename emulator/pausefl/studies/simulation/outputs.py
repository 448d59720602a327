"""Simulates an experiment and writes the results: simulation.json, tables and a figure."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pausefl.experiment.client_records import partitioner_of
from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.delay_laws.laws import Constant, NoDelay
from pausefl.experiment.experiment import Experiment, with_values
from pausefl.experiment.server_records import policy_of
from pausefl.results.reading import EPSILON_LABELS, TIME_LABELS, time_axis
from pausefl.results.summary import finite
from pausefl.results.tables import write_csv
from pausefl.runtime.client.plan import TrainingPlan, client_plan
from pausefl.runtime.server.plan import settings_of
from pausefl.studies.simulation.curves import NO_REGRET, SimulationResult, growth_fits
from pausefl.studies.simulation.engine import Setting, genie_of, least_gap, regret_bound, simulate_fast
from pausefl.studies.simulation.newcomer_outputs import (
    FITS_NOTE,
    CsvTable,
    fits_in_words,
    newcomer_findings,
    newcomers_in_words,
)
from pausefl_client.data.partition import Dealt, partition
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


def run_simulation(experiment: Experiment, rounds: int, out_dir: Path, *, is_drawn: bool = True) -> dict[str, Any]:
    """Simulate an experiment's policy and write simulation.json, simulation.csv, other tables and simulation.png.

    Returns the content of simulation.json. `is_drawn` False skips the picture, whose drawing takes most of the time.
    """
    from pausefl.results.report.style import write_picture

    policy = policy_of(experiment)
    if isinstance(policy, NewcomerPolicy):
        summary, tables, draw = newcomer_findings(experiment, policy, rounds)
    else:
        summary, tables, draw = _findings(experiment, policy, rounds)
    out_dir.mkdir(parents=True, exist_ok=True)
    write_durably(out_dir / "simulation.json", json.dumps(summary, indent=2) + "\n")
    for name, (columns, rows) in tables.items():
        write_csv(out_dir / f"{name}.csv", columns, rows)
    if is_drawn:
        write_picture(out_dir / "simulation", draw)
    return summary


def in_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """The results of a simulation, line by line."""
    if "insertions" in summary:
        yield from newcomers_in_words(summary)
        return
    if early := summary.get("ended_early"):
        yield early
    unit, waited = summary["privacy_unit"], f"{TIME_LABELS[time_axis([summary])]} {summary['total_latency_s']:.1f} s"
    leaked = f", greatest {EPSILON_LABELS[unit]} of a client {summary['max_epsilon_spent']:.3g}" if unit else ""
    yield waited + leaked
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


def weights_in_words(genie: Mapping[str, Any]) -> str:
    """A genie's weights as text. A table of clusters is shown as "by client", as it has an entry per client."""
    values = {name: "by client" if isinstance(value, Mapping) else value for name, value in genie.items()}
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _findings(
    experiment: Experiment, policy: Policy, rounds: int
) -> tuple[dict[str, Any], dict[str, CsvTable], "Callable[[], Figure]"]:
    """The summary, the tables and a function that draws the figure, for a policy that is simulated on latencies."""
    from pausefl.studies.simulation.figures import draw_simulation

    setting = setting_of(experiment, rounds)
    result = simulate_fast(policy, setting, rounds)
    genie = None if experiment.is_asynchronous else genie_of(policy)
    bounds = {} if genie is None else _bounds(setting, genie, result.round)
    columns = ("round", "regret", "genie_regret", "reward", "total_latency_s", "max_epsilon_spent")
    tables: dict[str, CsvTable] = {
        "simulation": (columns, zip(*(getattr(result, column).tolist() for column in columns), strict=True)),
        "selections": (("client_id", "chosen"), zip(result.client_ids, result.chosen.tolist(), strict=True)),
    }
    budget = setting.server.budget.epsilon_budget if setting.server.budget else None
    summary = _summary(experiment, setting, result, rounds, genie, bounds)
    return summary, tables, partial(draw_simulation, result, bounds, budget, summary)


def setting_of(experiment: Experiment, rounds: int | None = None) -> Setting:
    """The setting of an experiment: latencies, data sizes, budget and groups. `rounds` replaces its number of rounds.

    With τ_min = "auto", τ_min is the least possible latency.
    """
    if rounds is not None:
        experiment = with_values(experiment, "experiment", rounds=rounds)
    clients = client_plan(experiment)
    laws = {client_id: link.exchange for client_id, link in clients.links.items()}
    server, examples = settings_of(experiment, "", clients), _data_sizes(experiment)
    training = _training_times(clients.training, examples)
    if server.tau_min_s is None:
        timed = training if experiment.latency.signal == "round_trip" else {}
        parts_s = [(law.minimum_s, timed.get(c, NoDelay()).minimum_s) for c, law in laws.items()]
        least_s = min(map(max, parts_s) if experiment.latency.mode == "total" else map(sum, parts_s))
        if least_s == 0:
            raise ConfigError('latency.tau_min_s = "auto": a simulation needs a number where a latency can be 0')
        server = replace(server, tau_min_s=least_s)
    return Setting(laws, examples, server, clients.presence, clients.latency_seed, training, experiment.latency.mode)


def _data_sizes(experiment: Experiment) -> dict[str, int]:
    """|D_k| by client id. No data are loaded: the experiment's partition is applied to ten equally frequent labels."""
    workload, ids = experiment.workload, experiment.client_ids
    labels = np.arange(workload.examples or 1000 * len(ids)) % 10
    owners = np.arange(labels.size) * len(ids) // labels.size  # they are unknown, so they get equal shares
    dealt = Dealt(labels, 10, len(ids), owners)
    shares = partition(partitioner_of(workload), dealt, experiment.experiment.seed_of("split"))
    return {client_id: len(rows) for client_id, rows in zip(ids, shares, strict=True)}


def _training_times(plan: TrainingPlan, examples: Mapping[str, int]) -> Mapping[str, Delay]:
    """The law of each client's training time in seconds, by client id. Empty if the experiment does not state it."""
    workload = plan.workload
    if plan.training_times:
        return plan.training_times
    if workload.model == "synthetic":
        return dict.fromkeys(examples, Constant(workload.train_s)) if workload.train_s else {}
    if workload.step_s is None:
        return {}
    return {c: Constant(workload.step_s * workload.steps(n)) for c, n in examples.items()}


def _bounds(setting: Setting, genie: Genie, rounds: IntArray) -> dict[str, FloatArray]:
    """Bound (17) at these rounds, by reading of δ. A reading is left out if its δ is 0, as two means are equal."""
    mu = setting.tau_min_s * np.array(list(setting.oracle.mean_inverse_latency.values()))
    readings = {
        "delta = least gap of E[tau], as printed": least_gap(list(setting.oracle.mean_latency_s.values())),
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
    timeout_s = setting.server.round_timeout_s
    return {
        "policy": experiment.selection.policy,
        "seed": setting.server.seed,
        "rounds": (played := int(result.round[-1])),
        "ended_early": f"ended after {played} of {rounds} rounds, as budgets were spent" if played < rounds else "",
        "mode": experiment.server.mode,
        "clients": len(result.client_ids),
        "m": experiment.selection.m,
        "tau_min_s": setting.tau_min_s,
        "total_latency_s": float(result.total_latency_s[-1]),
        "cluster_penalty_s": result.cluster_penalty_s,
        "deadline_s": timeout_s and timeout_s / setting.server.time_scale,
        "missed": int(result.missed.sum()),
        "max_epsilon_spent": setting.server.budget and float(result.max_epsilon_spent[-1]),
        "epsilon_budget": setting.server.budget and setting.server.budget.epsilon_budget,
        "privacy_unit": setting.server.budget and experiment.privacy.unit,
        "reward": finite(result.reward[-1]),
        "regret": finite(result.regret[-1]),
        "genie_regret": finite(result.genie_regret[-1]),
        "regret_is": "sum of r(genie) - r(policy), PAUSE v2 eq. (15), the genie asked on the policy's own history",
        "genie": genie and _weights(genie),
        "growth_fits": {
            "regret": growth_fits(result.round, result.regret),
            "genie_regret": growth_fits(result.round, result.genie_regret),
        },
        "bound_17": {reading: finite(bound[-1]) for reading, bound in bounds.items()},
    }


def _weights(genie: Genie) -> dict[str, Any]:
    names = ("alpha", "gamma", "beta", "zeta", "reward", *(("rho", "clusters") if genie.reward == "R2" else ()))
    return {name: getattr(genie, name) for name in names}
