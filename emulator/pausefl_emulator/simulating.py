"""Simulates an experiment, and writes what came of it: simulation.json, tables and a figure."""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
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
from pausefl_emulator.simulating_newcomers import (
    Table,
    draw_fits,
    fits_in_words,
    newcomer_findings,
    newcomers_in_words,
)
from pausefl_server.clients import FloatArray
from pausefl_server.selection import Policy
from pausefl_server.selection.newcomers import NewcomerPolicy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def run_simulation(experiment: Experiment, rounds: int, out_dir: Path) -> dict[str, Any]:
    """Simulate an experiment's policy and write simulation.json, simulation.csv, other tables and simulation.png.

    Returns what simulation.json holds.
    """
    policy = experiment.policy()
    if isinstance(policy, NewcomerPolicy):
        summary, tables, figure = newcomer_findings(experiment, policy, rounds)
    else:
        summary, tables, figure = _findings(experiment, policy, rounds)
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "simulation.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    for name, (columns, rows) in tables.items():
        _write_csv(out_dir / f"{name}.csv", columns, rows)
    figure.savefig(out_dir / "simulation.png", dpi=120)
    return summary


def in_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a simulation found, line by line."""
    if "insertions" in summary:
        yield from newcomers_in_words(summary)
        return
    yield f"total latency {summary['total_latency_s']:.1f} s, greatest ε {summary['max_epsilon_spent']:.3g}"
    for name, text in (("regret", "regret"), ("genie_regret", "genie regret")):
        # A policy whose rounds are not of m clients has no regret against a genie that chooses m.
        grows = fits_in_words(summary["growth_fits"][name])
        yield f"{text} undefined" if summary[name] is None else f"{text} {summary[name]:.1f} ({grows})"


def _findings(experiment: Experiment, policy: Policy, rounds: int) -> tuple[dict[str, Any], dict[str, Table], "Figure"]:
    """Summary, tables and figure for a policy that weighs latencies."""
    setting = setting_of(experiment, rounds)
    if is_compiled(policy, setting):
        result = simulate_pause(policy, setting, rounds)
    else:
        result = simulate(policy, setting, rounds)
    columns = ("round", "regret", "genie_regret", "reward", "total_latency_s", "max_epsilon_spent")
    tables: dict[str, Table] = {
        "simulation": (columns, zip(*(getattr(result, column).tolist() for column in columns), strict=True)),
        "selections": (("client_id", "chosen"), zip(result.client_ids, result.chosen.tolist(), strict=True)),
    }
    return _summary(experiment, policy, setting, result), tables, _draw(result, policy, setting)


def setting_of(experiment: Experiment, rounds: int | None = None) -> Setting:
    """The latencies, data sizes, budget and groups of an experiment, or of so many rounds of it.

    τ_min = "auto" counts as the least delay possible.
    """
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
        presence=experiment.presence(rounds),
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


def _write_csv(path: Path, columns: tuple[str, ...], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _draw(result: SimulationResult, policy: Policy, setting: Setting) -> "Figure":
    """Regret with its fits and bound, leakage, and selections, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    regret, leakage, selections = figure.subplots(1, 3)
    _draw_regret(regret, result, regret_bound(setting, genie_of(policy), result.round, printed_delta(setting)))
    leakage.plot(result.round, result.max_epsilon_spent)
    leakage.set(title="Greatest leakage", xlabel="round", ylabel="ε spent")
    selections.bar(range(len(result.chosen)), result.chosen)
    selections.set(title="Selections", xlabel="client", ylabel="times chosen")
    return figure


def _draw_regret(axes: "Axes", result: SimulationResult, bound: FloatArray) -> None:
    axes.plot(result.round, result.regret, label="realised, eq. (15)")
    axes.plot(result.round, result.genie_regret, label="in the genie's objective, eq. (10)")
    draw_fits(axes, result.round, result.genie_regret)
    greatest = np.nanmax(np.concatenate((result.regret, result.genie_regret, [0.0])))
    if bound[-1] < 20 * greatest:
        axes.plot(result.round, bound, "-.", color="0.2", label="bound (17)")
    else:
        axes.plot([], [], " ", label=f"bound (17) at the end: {bound[-1]:.2g}")
    axes.set(title="Regret against the genie", xlabel="round", ylabel="Σ r(G) − r(S)")
    axes.legend(fontsize=7)
