"""Computes the summary of a run, which is written to summary.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pausefl.experiment.server_records import parameters_of
from pausefl.experiment.tables import ClientGroup, PrivacyTable, SelectionTable
from pausefl.results.accounting import tighter_epsilon
from pausefl.results.figures import Figures
from pausefl.results.stored_summary import NoiseToClip, Summary
from pausefl.results.tally import RunTally
from pausefl_client.data.datasets import split_note
from pausefl_proto.budget import Budget
from pausefl_proto.privacy_unit import PrivacyUnit, vector_epsilon
from pausefl_server.records import ACCURACY, Evaluation
from pausefl_server.selection.base import Policy
from pausefl_server.settings import ServerSettings

if TYPE_CHECKING:
    from pausefl_server.service import RunResult

# Besides noised updates, a client always sends these to the server, whatever the experiment's settings.
_ALWAYS_DISCLOSED = ("n_examples", "device_times", "host_load", "answers")


@dataclass(frozen=True)
class SummaryPlan:
    """The experiment's settings that summary.json needs, besides those of its server."""

    clients: int
    expected: frozenset[str]
    """The ids of the clients that may take part, as far as they are known before the run."""
    groups: Mapping[str, ClientGroup]
    """The groups of clients, by name."""
    selection: SelectionTable
    clock: Literal["real", "virtual"]
    privacy: PrivacyTable
    shows_host_metrics: bool
    """Whether client processes serve metrics."""
    compose: Callable[[Budget, PrivacyUnit, int, float], float | None] = tighter_epsilon


def summarise(
    plan: SummaryPlan,
    settings: ServerSettings,
    tally: RunTally,
    result: "RunResult",
    charged_size: int,
    starts: Callable[[], list[dict[str, str]]] = list,
) -> Summary:
    """The content of summary.json. Times are in seconds, accuracies on the test set; None if nothing was measured.

    `charged_size` is how many values of an update are noised and charged. `starts` reads when and how the run was
    started and resumed. A figure that cannot be computed is None, and `missing_figures` holds the reason.
    """
    state, privacy, budget = result.state, plan.privacy, settings.budget
    concurrency = settings.asynchronous.concurrency if settings.is_asynchronous else None
    released_by = tally.unanswered.releases_at_most(state.table, budget) if budget else {}
    told = dict(zip(state.table.ids, state.table.epsilon_spent.tolist(), strict=True))
    # Upper bounds: they assume that every job without an answer was charged.
    spent = tuple(max(told.get(c, 0.0), budget.spent(n)) for c, n in released_by.items()) if budget else ()
    spent_max, released_max = max(spent, default=0.0), max(released_by.values(), default=0)
    figures = Figures()
    summary: Summary = {
        "policy": plan.selection.policy,
        "policy_parameters": policy_parameters(state.policy),
        "seed": settings.seed,
        "rounds": state.round,
        "clients": plan.clients,
        "m": plan.selection.m,
        "asked_per_round": tally.asked_per_round,
        "model_size": charged_size,
        "test_examples": next((e.n_examples for e in result.final_evaluations if e.split == "test"), None),
        "metric": next((e.metric for e in result.final_evaluations), ACCURACY),
        "final_accuracy": _test_accuracy(result.final_evaluations),
        "best_accuracy": _test_accuracy(result.best_evaluations),
        "best_round": result.best.round if result.best else None,
        "wall_clock_s": state.wall_clock_s,
        "mode": "asynchronous" if settings.is_asynchronous else "rounds",
        "elapsed_s": state.elapsed_s,
        "clients_at_work": tally.clients_at_work(state.elapsed_s),
        "idle_share": figures.compute("idle_share", lambda: tally.idle_share(state.elapsed_s, concurrency)),
        "staleness": tally.staleness,
        "total_latency_s": state.total_latency_s,
        "measured_latency_s": state.measured_latency_s,
        "censored_rounds": state.censored_rounds,
        "missed_jobs": dict(tally.missed_jobs),
        "unneeded_jobs": tally.unneeded_jobs,
        "withdrawn_jobs": tally.events["withdrawn"],
        "late_updates": tally.events["late"],
        "merged_updates": tally.events["merged"],
        "failed_attempts": tally.failed_attempts,
        "failures": tally.failures,
        "tau_min_s": finite(state.table.effective_tau_min_s),
        "clamped_latencies": int(state.table.clamped.sum()),
        "latency_signal": settings.signal,
        "time_scale": settings.time_scale,
        "clock": plan.clock,
        # Every ε is in `privacy_unit`, except `vector_epsilon_max`.
        "private": budget is not None and not privacy.reproducible_noise,
        "max_epsilon_spent": spent_max if budget else None,
        "epsilon_budget": budget.epsilon_budget if budget else None,
        "privacy_unit": privacy.unit if budget else None,
        "vector_epsilon_max": vector_epsilon(privacy.unit, spent_max, charged_size) if budget else None,
        "delta": privacy.delta if budget else None,
        "epsilon_floor": budget.epsilon_floor if budget else None,
        "noise": privacy.noise if budget else None,
        "retired_clients": int(state.table.retired.sum()) if budget else None,
        "budget_per": ("data holder" if privacy.ledger_dir or tally.had_spent else "run") if budget else None,
        "disclosed": [*_ALWAYS_DISCLOSED, *privacy.disclose, *(["host_metrics"] if plan.shows_host_metrics else [])],
        "absent_clients": sorted(plan.expected.difference(state.table.ids)),
        "rejected_updates": tally.events["rejected"],
        "suspect_rounds": state.suspect_rounds,
        "suspect_observations": state.suspect_observations,
        "data": figures.compute("data", lambda: _data(settings.info.dataset, result)),
        "capped": figures.compute("capped", lambda: tally.capped(state.table)),
        "selection_s_median": figures.compute("selection_s_median", lambda: tally.selection_s_median),
        "selections_by_group": figures.compute("selections_by_group", lambda: tally.selections_by_group),
        "timing_error_s": figures.compute("timing_error_s", lambda: tally.timing_error_s),
        "suspect_because": figures.compute("suspect_because", lambda: tally.suspect_because),
        "median_epsilon_spent": figures.compute(
            "median_epsilon_spent", lambda: None if budget is None else float(np.median(spent or 0.0))
        ),
        "epsilon_at_delta": figures.compute(
            "epsilon_at_delta",
            lambda: None if budget is None else plan.compose(budget, privacy.unit, released_max, privacy.delta),
        ),
        "noise_to_clip": figures.compute(
            "noise_to_clip", lambda: None if budget is None else _noise_to_clip(budget, released_max)
        ),
        "starts": figures.compute("starts", starts),
        "missing_figures": figures.missing,
        "stopped_because": result.stopped_because,
        "outcome": result.outcome,
    }
    if settings.total_delays:
        summary["overruns"] = tally.overruns
    return summary


def policy_parameters(policy: Policy) -> dict[str, Any]:
    """A policy's parameters by name, for JSON. An infinite value becomes None."""
    values = parameters_of(policy)
    return {name: finite(value) if isinstance(value, float) else value for name, value in values.items()}


def finite(value: float) -> float | None:
    """The value, or None if it is not finite: JSON has no such numbers."""
    return float(value) if np.isfinite(value) else None


def _data(dataset: str, result: "RunResult") -> str | None:
    """A sentence on how many examples are for training, validation and test; None if no model was evaluated."""
    evaluated = {e.split: e.n_examples for e in result.final_evaluations}
    if not evaluated:
        return None
    note = split_note(dataset, evaluated["test"])
    sizes = f"{result.state.table.stated_examples.sum():,} with the clients, {evaluated['validation']:,} for validation"
    return f"{dataset}, examples: {sizes}, {evaluated['test']:,} to test on" + (f"; {note}" if note else "")


def _noise_to_clip(budget: Budget, releases: int) -> NoiseToClip:
    return {"first": budget.noise_to_clip(1), "last": finite(budget.noise_to_clip(max(1, releases)))}


def _test_accuracy(evaluations: Sequence[Evaluation]) -> float | None:
    return next((e.accuracy for e in evaluations if e.split == "test"), None)
