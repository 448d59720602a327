"""A run's summary as a person reads it on a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from pausefl.results.reading import latency_unit, summed_over
from pausefl.results.summary import asked_in_words, by_whom
from pausefl_server.monitoring.noise import MOST_NOISE_TO_CLIP, NOISE_REMEDY
from pausefl_server.records import ACCURACY

_SummaryLine = tuple[str, str]
"""A name, and what there is to say."""


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a run, from the keys of summary.json; it holds text as it is, no markup."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for rows in (_played, _learned, _latency, _what_failed, _bounded, _privacy, _measurements):
        for row in rows(summary):
            table.add_row(*row)
    return table


def _played(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    rounds = f"{summary['rounds']} with {summary['clients']} clients, {asked_in_words(summary)} a round"
    yield "policy", f"{summary['policy']} (seed {summary['seed']})"
    yield "rounds", f"{rounds}; {summary['stopped_because']}"


def _learned(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    if summary["data"] is not None:
        yield "data", summary["data"]
    if summary["final_accuracy"] is not None:
        last = f"{summary['final_accuracy']:.1%} for the last model"
        best = f"{summary['best_accuracy']:.1%} for that chosen on validation (round {summary['best_round']})"
        whole = f"all {summary['test_examples']:,} test examples"
        yield f"test {summary.get('metric', ACCURACY)}", f"{last}, {best}; {whole}"


def _latency(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    total = f"{summary['total_latency_s']:.1f} {latency_unit([summary])}"
    latency = f"{total} {summed_over(summary)} ({summary['latency_signal']}"
    scale = f"; each {summary['time_scale']:g} real ones of delay" if summary["time_scale"] != 1 else ""
    clock = f"{summary['wall_clock_s']:.1f} s on the {summary.get('clock', 'real')} clock"
    yield "latency", f"{latency}{scale}); {clock}"
    if (idle := summary.get("idle_share")) is not None:
        at_work = f"{summary['clients_at_work']:.1f} clients at work on average, {idle:.0%} of places idle"
        yield "elapsed time", f"{summary['elapsed_s']:.1f} {latency_unit([summary])}; {at_work}"
    if summary["mode"] == "asynchronous" and (staleness := summary["staleness"]) is not None:
        yield "staleness", f"{staleness['mean']:.1f} steps on average, {staleness['max']} at most"
    if missed := summary["missed_jobs"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in missed.items())
        waits_s = summary["total_latency_s"] - summary["measured_latency_s"]
        yield "missed jobs", f"{kinds}; {waits_s:.1f} s of the latency were waits for them"


def _what_failed(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    if unneeded := summary["unneeded_jobs"]:
        yield "not waited for", f"{unneeded} jobs: enough others had answered"
    if late := summary["late_updates"]:
        yield "late updates", f"{late}, {summary['merged_updates']} of them in a later model; their ε is counted"
    if failed := summary["failed_attempts"]:
        yield "failed attempts", f"{failed}: no client gave an update; the round was tried again"
    for failure in summary["failures"]:
        yield "failed", f"{failure['jobs']} jobs: {failure['reason']}"


def _bounded(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    """Lines on values that were cut to a bound."""
    if summary["clamped_latencies"]:
        yield "below τ_min", f"{summary['clamped_latencies']} latencies, which count as equally fast"
    if summary["capped"]:
        yield "capped", f"what {', '.join(summary['capped'])} stated; see summary.json"


def _privacy(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    if summary["max_epsilon_spent"] is None:
        yield "privacy", "none: updates leave without noise"
        return
    spent = f"ε {summary['max_epsilon_spent']:.3g} of {summary['epsilon_budget']:g} per {summary['privacy_unit']}"
    yield "greatest leakage", f"{spent}; ε {summary['vector_epsilon_max']:.3g} for all the uploads of a client"
    ratios = summary.get("noise_to_clip")
    if ratios and (ratios["last"] is None or ratios["last"] > MOST_NOISE_TO_CLIP):
        last = "beyond all numbers" if ratios["last"] is None else f"{ratios['last']:.2g} times the clip"
        yield "noise", f"{ratios['first']:.2g} times the clip at first, {last} in the end: {NOISE_REMEDY}"
    if not summary["private"]:
        yield "NOT PRIVATE", "the noise was drawn from the seed: anyone who knows it can subtract it"


def _measurements(summary: Mapping[str, Any]) -> Iterator[_SummaryLine]:
    """How far the measurements can be trusted."""
    error_s = summary["timing_error_s"]
    if error_s and error_s["p50"] is not None:
        quantiles = f"p50 {1e3 * error_s['p50']:.1f} ms, p99 {1e3 * error_s['p99']:.1f} ms off what was drawn"
        yield "timing error", f"{quantiles}; {summary['rejected_updates']} updates rejected"
    for reason in (summary["suspect_because"] or {}).values():
        yield "suspect", f"{reason['rounds']} rounds: {reason['advice']}{by_whom(reason.get('clients', {}))}"
    if "overruns" in summary:
        yield "overruns", f"{summary['overruns']} exchanges took longer than the total drawn for them"
    for name, why in summary.get("missing_figures", {}).items():
        yield "missing", f"{name}: {why}"
