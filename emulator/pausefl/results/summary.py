"""What a run comes to: summary.json."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from rich.table import Table
from rich.text import Text

from pausefl.config.client_records import budget_of
from pausefl.config.links import LatencyTable
from pausefl.config.tables import ClientGroup, PrivacyTable, SelectionTable
from pausefl.results.accounting import releases_at_most, tighter_epsilon
from pausefl.results.selections import choices_by_group
from pausefl_client.data.datasets import split_note
from pausefl_client.link import Mode
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import advice
from pausefl_server.records import ACCURACY, Evaluation, LogEvent, RoundRecord
from pausefl_server.selection.base import Policy
from pausefl_server.service import RunResult

# What a client tells the server besides its noised updates, whatever the experiment says.
_ALWAYS_DISCLOSED = ("n_examples", "device_times", "host_load", "answers")
_MOST_FAILURES = 5
# Keys that mean nothing without privacy.
_PRIVATE_ONLY = (
    *("median_epsilon_spent", "delta", "epsilon_at_delta", "epsilon_floor", "retired_clients"),
    *("noise", "budget_per"),
)


@dataclass(frozen=True)
class SummaryPlan:
    """What summary.json takes from the experiment."""

    seed: int
    clients: int
    groups: Mapping[str, ClientGroup]
    """By name."""
    selection: SelectionTable
    dataset: str
    clock: Literal["real", "virtual"]
    latency: LatencyTable
    privacy: PrivacyTable
    shows_host_metrics: bool
    """Whether client processes serve metrics."""


def summarise(
    plan: SummaryPlan,
    policy: Policy,
    records: Sequence[RoundRecord],
    late_events: Sequence[LogEvent],
    result: RunResult,
    *,
    unfinished: Sequence[RoundRecord] = (),
) -> dict[str, Any]:
    """The keys of summary.json; times in seconds, accuracies on the test set, None where nothing was measured.

    `late_events`: those after the last round; `unfinished`: the failed attempts at the round after it.
    """
    size = int(result.theta.size)
    attempts = [*(attempt for record in records for attempt in record.attempts), *unfinished]
    events = _all_events(attempts, late_events)
    kinds = Counter(event.kind for event in events)
    return {
        "policy": plan.selection.policy,
        "policy_parameters": {f.name: getattr(policy, f.name) for f in fields(policy)},
        "seed": plan.seed,
        "rounds": result.state.round,
        "clients": plan.clients,
        "m": plan.selection.m,
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
        "missed_jobs": dict(Counter(miss.kind for attempt in attempts for miss in attempt.missed)),
        "unneeded_jobs": sum(len(attempt.misses) - len(attempt.missed) for attempt in attempts),
        "withdrawn_jobs": kinds["withdrawn"],
        "late_updates": kinds["late"],
        "merged_updates": kinds["merged"],
        "failed_attempts": len(attempts) - len(records),
        "failures": failures(attempts),
        "tau_min_s": _finite(result.state.table.effective_tau_min_s),
        "clamped_latencies": int(result.state.table.clamped.sum()),
        "capped": capped(result.state.table, events),
        "latency_signal": plan.latency.signal,
        "time_scale": plan.latency.time_scale,
        "clock": plan.clock,
        **_privacy(plan.privacy, attempts, late_events, result.state.table, size),
        "disclosed": [*_ALWAYS_DISCLOSED, *plan.privacy.disclose, *_by_metrics(plan)],
        "selection_s_median": float(np.median([r.selection_s for r in records])) if records else None,
        "selections_by_group": _selections(records, plan.groups),
        "rejected_updates": kinds["rejected"],
        "timing_error_s": timing_error_s(records, plan.latency.mode),
        **({"overruns": overruns(records)} if plan.latency.mode == "total" else {}),
        "suspect_rounds": result.state.suspect_rounds,
        "suspect_because": suspect_because(records),
        "stopped_because": result.stopped_because,
        "outcome": result.outcome,
    }


def failures(records: Iterable[RoundRecord]) -> list[dict[str, Any]]:
    """What clients said when a job failed with them, and how many jobs did so; the few most frequent first."""
    said = Counter(miss.reason for record in records for miss in record.misses if miss.kind == "refused")
    return [{"reason": reason, "jobs": jobs} for reason, jobs in said.most_common(_MOST_FAILURES)]


def capped(table: ClientTable, events: Iterable[LogEvent]) -> dict[str, dict[str, int]]:
    """What clients said of themselves and was cut, by client: the examples they stated, and how often what else was."""
    found: dict[str, dict[str, int]] = {}
    for row in np.flatnonzero(table.stated_examples > table.n_examples).tolist():
        found[table.ids[row]] = {"stated examples": int(table.stated_examples[row])}
    for client_id, what in ((event.client_id, event.detail) for event in events if event.kind == "capped"):
        of_client = found.setdefault(client_id, {})
        of_client[what] = of_client.get(what, 0) + 1
    return found


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _by_metrics(plan: SummaryPlan) -> list[str]:
    return ["host_metrics"] if plan.shows_host_metrics else []


def _data(dataset: str, result: RunResult) -> str | None:
    """How many examples clients trained on and models were evaluated on; None if no model was evaluated."""
    evaluated = {e.split: e.n_examples for e in result.final_evaluations}
    if not evaluated:
        return None
    note = split_note(dataset, evaluated["test"])
    sizes = f"{result.state.table.n_examples.sum():,} with the clients, {evaluated['validation']:,} for validation"
    return f"{dataset}, examples: {sizes}, {evaluated['test']:,} to test on" + (f"; {note}" if note else "")


def _privacy(
    settings: PrivacyTable,
    records: Sequence[RoundRecord],
    late_events: Sequence[LogEvent],
    table: ClientTable,
    size: int,
) -> dict[str, Any]:
    """What was promised and spent, every ε in `privacy_unit` but the one that names the vector.

    The greatest ε spent is an upper bound: it counts jobs whose clients have not been heard of since.
    """
    budget = budget_of(settings)
    private = budget is not None and not settings.reproducible_noise
    if budget is None:
        names = ("max_epsilon_spent", "epsilon_budget", "privacy_unit", "vector_epsilon_max", *_PRIVATE_ONLY)
        return {"private": private, **dict.fromkeys(names)}
    released = releases_at_most(records, late_events, table, budget)
    spent = max(float(table.epsilon_spent.max(initial=0.0)), budget.spent(released))
    return {
        "private": private,
        "max_epsilon_spent": spent,
        "epsilon_budget": budget.epsilon_budget,
        "privacy_unit": settings.unit,
        "vector_epsilon_max": spent if settings.unit == "vector" else spent * size,
        "median_epsilon_spent": float(np.median(table.epsilon_spent)) if len(table) else 0.0,
        "delta": settings.delta,
        "epsilon_at_delta": tighter_epsilon(budget, settings.unit, released, settings.delta),
        "epsilon_floor": budget.epsilon_floor,
        "retired_clients": int(table.retired.sum()),
        "noise": settings.noise,
        "budget_per": "data holder" if settings.ledger_dir or _had_spent(_all_events(records, late_events)) else "run",
    }


def _all_events(records: Sequence[RoundRecord], late_events: Sequence[LogEvent]) -> list[LogEvent]:
    return [*(event for record in records for event in record.events), *late_events]


def _had_spent(events: Iterable[LogEvent]) -> bool:
    """Whether a client first came with releases on its ledger: where it keeps that is its own choice."""
    released: dict[str, int] = {}
    for event in events:
        if event.kind == "joined":
            released.setdefault(event.client_id, event.released)
    return any(released.values())


def _selections(records: Sequence[RoundRecord], groups: Mapping[str, ClientGroup]) -> dict[str, dict[str, Any]]:
    """How often each group's clients were chosen from when they joined, also per client and round they could be."""
    return {
        name: {
            "clients": group.clients,
            "join_round": group.join_round,
            "selections_after_join": int(group.chosen.sum()),
            "per_client_round": group.per_client_round,
        }
        for name, group in choices_by_group(records, groups).items()
    }


def timing_error_s(records: Sequence[RoundRecord], mode: Mode = "additive") -> dict[str, float | None]:
    """Quantiles of measured minus drawn time: what the network and this software added.

    Measured is communication; where delays are total, the round trip.
    """
    errors = [
        (o.timing.round_trip_s if mode == "total" else o.timing.communication_s) - o.drawn_down_s - o.drawn_up_s
        for r in records
        for o in r.observations
    ]
    if not errors:
        return {"p50": None, "p99": None}
    p50, p99 = np.quantile(errors, (0.5, 0.99))
    return {"p50": float(p50), "p99": float(p99)}


def suspect_because(records: Sequence[RoundRecord]) -> dict[str, dict[str, Any]]:
    """By reason to doubt a round: in how many it held, and what to do about it."""
    counts = Counter(doubt for record in records for doubt in record.suspect)
    return {doubt: {"rounds": count, "advice": advice(doubt)} for doubt, count in counts.most_common()}


def overruns(records: Sequence[RoundRecord]) -> int:
    """How many exchanges took longer than the total drawn for them: the update was ready after it was due."""
    return sum(
        o.timing.download_s + o.timing.injected_down_s + o.timing.device_s > o.drawn_down_s + o.drawn_up_s
        for r in records
        for o in r.observations
    )


def _test_accuracy(evaluations: Sequence[Evaluation]) -> float | None:
    return next((e.accuracy for e in evaluations if e.split == "test"), None)


def _what_failed(summary: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    if unneeded := summary["unneeded_jobs"]:
        yield "not waited for", Text(f"{unneeded} jobs: enough others had answered")
    if late := summary["late_updates"]:
        yield "late updates", Text(f"{late}, {summary['merged_updates']} of them in a later model; their ε is counted")
    if failed := summary["failed_attempts"]:
        yield "failed attempts", Text(f"{failed}: no client gave an update; the round was tried again")
    for failure in summary["failures"]:
        yield "failed", Text(f"{failure['jobs']} jobs: {failure['reason']}")


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The summary as a person reads it at the end of a run."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rounds = f"{summary['rounds']} with {summary['clients']} clients, {summary['m']} a round"
    table.add_row("policy", f"{summary['policy']} (seed {summary['seed']})")
    table.add_row("rounds", f"{rounds}; {summary['stopped_because']}")
    if summary["data"] is not None:
        table.add_row("data", summary["data"])
    if summary["final_accuracy"] is not None:
        chosen = f"{summary['best_accuracy']:.1%} for that chosen on validation (round {summary['best_round']})"
        table.add_row(
            f"test {summary.get('metric', ACCURACY)}",
            f"{summary['final_accuracy']:.1%} for the last model, {chosen};"
            f" all {summary['test_examples']:,} test examples",
        )
    latency = f"{summary['total_latency_s']:.1f} s over all rounds ({summary['latency_signal']}"
    scale = f"; emulated seconds of {summary['time_scale']:g} real ones" if summary["time_scale"] != 1 else ""
    table.add_row(
        "latency", f"{latency}{scale}); {summary['wall_clock_s']:.1f} s on the {summary.get('clock', 'real')} clock"
    )
    if missed := summary["missed_jobs"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in missed.items())
        waits_s = summary["total_latency_s"] - summary["measured_latency_s"]
        table.add_row("missed jobs", f"{kinds}; {waits_s:.1f} s of the latency were waits for them")
    for what, text in _what_failed(summary):
        table.add_row(what, text)
    if summary["clamped_latencies"]:
        table.add_row("below τ_min", f"{summary['clamped_latencies']} latencies, which count as equally fast")
    if summary["capped"]:
        table.add_row("capped", f"what {', '.join(summary['capped'])} stated; see summary.json")
    if summary["max_epsilon_spent"] is None:
        table.add_row("privacy", "none: updates leave without noise")
    else:
        spent = f"ε {summary['max_epsilon_spent']:.3g} of {summary['epsilon_budget']:g} per {summary['privacy_unit']}"
        table.add_row(
            "greatest leakage", f"{spent}; ε {summary['vector_epsilon_max']:.3g} for all the uploads of a client"
        )
        if not summary["private"]:
            table.add_row("NOT PRIVATE", "the noise was drawn from the seed: anyone who knows it can subtract it")
    error = summary["timing_error_s"]
    if error["p50"] is not None:
        quantiles = f"p50 {1e3 * error['p50']:.1f} ms, p99 {1e3 * error['p99']:.1f} ms"
        table.add_row("measured − drawn", f"{quantiles}; {summary['rejected_updates']} updates rejected")
    for reason in summary["suspect_because"].values():
        table.add_row("suspect", f"{reason['rounds']} rounds: {reason['advice']}")
    if "overruns" in summary:
        table.add_row("overruns", f"{summary['overruns']} exchanges took longer than the total drawn for them")
    return table
