"""What a run comes to: summary.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from pausefl.config.client_records import budget_of
from pausefl.config.links import LatencyTable
from pausefl.config.tables import ClientGroup, PrivacyTable, SelectionTable
from pausefl.results.accounting import tighter_epsilon
from pausefl.results.tally import RunTally
from pausefl_client.data.datasets import split_note
from pausefl_proto.privacy_unit import vector_epsilon
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import HostLimits
from pausefl_server.records import ACCURACY, Evaluation
from pausefl_server.selection.base import Policy
from pausefl_server.service import RunResult

# What a client tells the server besides its noised updates, whatever the experiment says.
_ALWAYS_DISCLOSED = ("n_examples", "device_times", "host_load", "answers")
# Keys that mean nothing without privacy.
_PRIVATE_ONLY = (
    *("max_epsilon_spent", "epsilon_budget", "privacy_unit", "vector_epsilon_max", "median_epsilon_spent", "delta"),
    *("epsilon_at_delta", "epsilon_floor", "retired_clients", "noise", "budget_per"),
)
# How many of the clients that made rounds suspect are named.
_MOST_NAMED = 4


@dataclass(frozen=True)
class SummaryPlan:
    """What summary.json takes from the experiment."""

    seed: int
    clients: int
    groups: Mapping[str, ClientGroup]
    """The groups of clients, by name."""
    selection: SelectionTable
    dataset: str
    clock: Literal["real", "virtual"]
    latency: LatencyTable
    privacy: PrivacyTable
    shows_host_metrics: bool
    """Whether client processes serve metrics."""
    limits: HostLimits
    """The limits beyond which a round was suspect."""


def summarise(plan: SummaryPlan, policy: Policy, tally: RunTally, result: RunResult) -> dict[str, Any]:
    """The keys of summary.json; times in seconds, accuracies on the test set, None where nothing was measured."""
    size = int(result.theta.size)
    return {
        "policy": plan.selection.policy,
        "policy_parameters": _parameters(policy),
        "seed": plan.seed,
        "rounds": result.state.round,
        "clients": plan.clients,
        "m": plan.selection.m,
        "asked_per_round": tally.asked_per_round,
        "data": _data(plan.dataset, result),
        "model_size": size,
        "test_examples": next((e.n_examples for e in result.final_evaluations if e.split == "test"), None),
        "metric": next((e.metric for e in result.final_evaluations), ACCURACY),
        "final_accuracy": _test_accuracy(result.final_evaluations),
        "best_accuracy": _test_accuracy(result.best_evaluations),
        "best_round": result.best.round if result.best else None,
        "wall_clock_s": result.state.wall_clock_s,
        "total_latency_s": result.state.total_latency_s,
        "measured_latency_s": result.state.measured_latency_s,
        "censored_rounds": result.state.censored_rounds,
        "missed_jobs": dict(tally.missed_jobs),
        "unneeded_jobs": tally.unneeded_jobs,
        "withdrawn_jobs": tally.events["withdrawn"],
        "late_updates": tally.events["late"],
        "merged_updates": tally.events["merged"],
        "failed_attempts": tally.failed_attempts,
        "failures": tally.failures,
        "tau_min_s": _finite(result.state.table.effective_tau_min_s),
        "clamped_latencies": int(result.state.table.clamped.sum()),
        "capped": tally.capped(result.state.table),
        "latency_signal": plan.latency.signal,
        "time_scale": plan.latency.time_scale,
        "clock": plan.clock,
        **_privacy(plan.privacy, tally, result.state.table, size),
        "disclosed": [
            *_ALWAYS_DISCLOSED,
            *plan.privacy.disclose,
            *(["host_metrics"] if plan.shows_host_metrics else []),
        ],
        "selection_s_median": tally.selection_s_median,
        "selections_by_group": tally.selections_by_group,
        "rejected_updates": tally.events["rejected"],
        "timing_error_s": tally.timing_error_s,
        **({"overruns": tally.overruns} if plan.latency.mode == "total" else {}),
        "suspect_rounds": result.state.suspect_rounds,
        "suspect_because": tally.suspect_because,
        "stopped_because": result.stopped_because,
        "outcome": result.outcome,
    }


def _parameters(policy: Policy) -> dict[str, Any]:
    values = {f.name: getattr(policy, f.name) for f in fields(policy)}
    return {name: _finite(value) if isinstance(value, float) else value for name, value in values.items()}


def _finite(value: float) -> float | None:
    """The value; None for an infinite one, which JSON does not have."""
    return float(value) if np.isfinite(value) else None


def _data(dataset: str, result: RunResult) -> str | None:
    """How many examples clients trained on and models were evaluated on; None if no model was evaluated."""
    evaluated = {e.split: e.n_examples for e in result.final_evaluations}
    if not evaluated:
        return None
    note = split_note(dataset, evaluated["test"])
    sizes = f"{result.state.table.n_examples.sum():,} with the clients, {evaluated['validation']:,} for validation"
    return f"{dataset}, examples: {sizes}, {evaluated['test']:,} to test on" + (f"; {note}" if note else "")


def _privacy(settings: PrivacyTable, tally: RunTally, table: ClientTable, size: int) -> dict[str, Any]:
    """What was promised and spent, every ε in `privacy_unit` but the one that names the vector.

    What clients spent are upper bounds: they count jobs whose clients have not been heard of since.
    """
    if (budget := budget_of(settings)) is None:
        return {"private": False, **dict.fromkeys(_PRIVATE_ONLY)}
    released_by = tally.unanswered.releases_at_most(table, budget)
    told = dict(zip(table.ids, table.epsilon_spent.tolist(), strict=True))
    spent_by = [max(told.get(client_id, 0.0), budget.spent(n)) for client_id, n in released_by.items()]
    released, spent = max(released_by.values(), default=0), max(spent_by, default=0.0)
    return {
        "private": not settings.reproducible_noise,
        "max_epsilon_spent": spent,
        "epsilon_budget": budget.epsilon_budget,
        "privacy_unit": settings.unit,
        "vector_epsilon_max": vector_epsilon(settings.unit, spent, size),
        "median_epsilon_spent": float(np.median(spent_by)) if spent_by else 0.0,
        "delta": settings.delta,
        "epsilon_at_delta": tighter_epsilon(budget, settings.unit, released, settings.delta),
        "epsilon_floor": budget.epsilon_floor,
        "retired_clients": int(table.retired.sum()),
        "noise": settings.noise,
        "budget_per": "data holder" if settings.ledger_dir or tally.had_spent else "run",
    }


def _test_accuracy(evaluations: Sequence[Evaluation]) -> float | None:
    return next((e.accuracy for e in evaluations if e.split == "test"), None)


def asked_in_words(summary: Mapping[str, Any]) -> str:
    """How many clients a round asked, as "5" or "5 to 7"; m, where an older summary says no more."""
    fewest, most = summary.get("asked_per_round") or (summary["m"], summary["m"])
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def by_whom(rounds_of: Mapping[str, int]) -> str:
    """The clients whose hosts gave a reason for doubt, those of most rounds first, as "; a (12), b (3) and 2 more"."""
    if not rounds_of:
        return ""
    named = [f"{client_id} ({rounds})" for client_id, rounds in list(rounds_of.items())[:_MOST_NAMED]]
    more = len(rounds_of) - len(named)
    return f"; {', '.join(named)}{f' and {more} more' if more else ''}"
