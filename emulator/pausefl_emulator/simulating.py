"""Simulates an experiment, and writes what came of it: simulation.json, tables and a figure."""

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pausefl.errors import ConfigError
from pausefl_client.partition import partition
from pausefl_emulator.delays import Delay
from pausefl_emulator.experiment import Experiment
from pausefl_emulator.simulate import (
    Setting,
    SimulationResult,
    genie_of,
    growth_fits,
    is_compiled,
    least_gap,
    printed_delta,
    regret_bound,
    simulate,
    simulate_pause,
)
from pausefl_server.clients import FloatArray
from pausefl_server.selection import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def run_simulation(experiment: Experiment, rounds: int, out_dir: Path) -> dict[str, Any]:
    """Simulate an experiment's policy and write simulation.json, simulation.csv, selections.csv and a figure.

    Returns what simulation.json holds.
    """
    policy, setting = experiment.policy(), setting_of(experiment)
    if is_compiled(policy, setting):
        result = simulate_pause(policy, setting, rounds)
    else:
        result = simulate(policy, setting, rounds)
    out_dir.mkdir(parents=True, exist_ok=True)
    summary = _summary(experiment, policy, setting, result)
    (out_dir / "simulation.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    columns = ("round", "regret", "genie_regret", "reward", "total_latency_s", "max_epsilon_spent")
    _write_csv(out_dir / "simulation.csv", columns, zip(*(getattr(result, c).tolist() for c in columns), strict=True))
    chosen = zip(result.client_ids, result.chosen.tolist(), strict=True)
    _write_csv(out_dir / "selections.csv", ("client_id", "chosen"), chosen)
    _draw(result, policy, setting, out_dir / "simulation.png")
    return summary


def setting_of(experiment: Experiment) -> Setting:
    """The latencies, data sizes and budget of an experiment; τ_min = "auto" counts as the least delay possible."""
    workload, ids = experiment.workload, experiment.client_ids
    labels = np.arange(workload.examples or 1000 * len(ids)) % 10
    shares = partition(
        workload.partition,
        labels,
        clients=len(ids),
        classes=10,
        seed=experiment.experiment.seed,
        concentration=workload.concentration,
        dominant_share=workload.dominant_share,
    )
    laws = experiment.delays()
    return Setting(
        laws=laws,
        examples={client_id: len(rows) for client_id, rows in zip(ids, shares, strict=True)},
        tau_min_s=experiment.tau_min_s or _least_delay_s(laws),
        budget=experiment.budget(),
        seed=experiment.experiment.seed,
    )


def _least_delay_s(laws: Mapping[str, Delay]) -> float:
    least_s = min(law.minimum_s for law in laws.values())
    if least_s == 0:
        raise ConfigError('latency.tau_min_s = "auto": a simulation needs a number where a delay can be 0')
    return least_s


def _summary(experiment: Experiment, policy: Policy, setting: Setting, result: SimulationResult) -> dict[str, Any]:
    inverse_s = np.array(list(setting.oracle.mean_inverse_latency.values()))
    return {
        "policy": experiment.selection.policy,
        "seed": setting.seed,
        "rounds": int(result.round[-1]),
        "clients": len(result.client_ids),
        "m": policy.m,
        "tau_min_s": setting.tau_min_s,
        "total_latency_s": float(result.total_latency_s[-1]),
        "cluster_penalty_s": result.cluster_penalty_s,
        "max_epsilon_spent": float(result.max_epsilon_spent[-1]),
        "epsilon_budget": setting.budget and setting.budget.epsilon_budget,
        "reward": _finite(result.reward[-1]),
        "regret": _finite(result.regret[-1]),
        "genie_regret": _finite(result.genie_regret[-1]),
        "regret_is": "sum of r(genie) - r(policy), PAUSE v2 eq. (15), the genie asked on the policy's own history",
        "growth_fits": {
            "regret": growth_fits(result.round, result.regret),
            "genie_regret": growth_fits(result.round, result.genie_regret),
        },
        "bound_17": {
            name: _finite(regret_bound(setting, genie_of(policy), result.round[-1:], delta)[0])
            for name, delta in (
                ("delta = least gap of E[tau], as printed", printed_delta(setting)),
                ("delta = least gap of mu", setting.tau_min_s * least_gap(inverse_s)),
            )
            if 0 < delta < math.inf
        },
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _write_csv(path: Path, header: tuple[str, ...], rows: Any) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _draw(result: SimulationResult, policy: Policy, setting: Setting, path: Path) -> None:
    """Regret with its fits and bound, leakage, and selections, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    regret, leakage, selections = figure.subplots(1, 3)
    _draw_regret(regret, result, regret_bound(setting, genie_of(policy), result.round, printed_delta(setting)))
    leakage.plot(result.round, result.max_epsilon_spent)
    leakage.set(title="Greatest leakage", xlabel="round", ylabel="ε spent")
    selections.bar(range(len(result.chosen)), result.chosen)
    selections.set(title="Selections", xlabel="client", ylabel="times chosen")
    figure.savefig(path, dpi=120)


def _draw_regret(axes: "Axes", result: SimulationResult, bound: FloatArray) -> None:
    axes.plot(result.round, result.regret, label="realised, eq. (15)")
    axes.plot(result.round, result.genie_regret, label="in the genie's objective, eq. (10)")
    fits = growth_fits(result.round, result.genie_regret)
    late = result.round[result.round > result.round[-1] / 10]
    for (name, shape), dash in zip({"ln n": np.log, "sqrt n": np.sqrt}.items(), ("--", ":"), strict=True):
        if name in fits:
            label = f"{name} fit, R² = {fits[name]['r_squared']:.3f}"
            axes.plot(late, fits[name]["a"] + fits[name]["b"] * shape(late), dash, color="0.3", label=label)
    greatest = np.nanmax(np.concatenate((result.regret, result.genie_regret, [0.0])))
    if bound[-1] < 20 * greatest:
        axes.plot(result.round, bound, "-.", color="0.2", label="bound (17)")
    else:
        axes.plot([], [], " ", label=f"bound (17) at the end: {bound[-1]:.2g}")
    axes.set(title="Regret against the genie", xlabel="round", ylabel="Σ r(G) − r(S)")
    axes.legend(fontsize=7)
