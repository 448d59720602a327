"""The figures of summary.json in words, for a run's page and a terminal. Each fact is (name, value, note)."""

from collections.abc import Iterator, Mapping
from typing import Any

from pausefl.results.reading import EPSILON_LABELS, latency_unit
from pausefl_server.monitoring.noise import MOST_NOISE_TO_CLIP, NOISE_REMEDY, in_times

Fact = tuple[str, str, str]
# At most this many of the clients that made rounds suspect are named.
_MOST_NAMED = 4


def accuracies(s: Mapping[str, Any]) -> Iterator[Fact]:
    """The test scores of the last and of the validated model. Yields nothing if no model was evaluated."""
    if s["final_accuracy"] is None:
        return
    test, whole = f"test {s['metric']}", f"all {s['test_examples']:,} test examples"
    yield f"{test}, last model", percent(s["final_accuracy"]), whole
    if s["best_accuracy"] is not None:
        chosen = f"{turn(s)} {s['best_round']}, chosen on validation data; {whole}"
        yield f"{test}, validated model", percent(s["best_accuracy"]), chosen


def costs(s: Mapping[str, Any]) -> Iterator[Fact]:
    """The facts about time, privacy, missed jobs and doubtful measurements."""
    unit, attempts = latency_unit([s]), " and failed attempts" if s["failed_attempts"] else ""
    summed = f"{s['latency_signal']}, sum over all {turn(s)}s{attempts}"
    yield "total latency", f"{s['total_latency_s']:,.1f} {unit}", summed
    if (idle := s["idle_share"]) is not None:
        note = f"at the emulated scale, {s['clients_at_work']:.1f} clients at work; {idle:.0%} of places idle"
        yield "elapsed time", f"{s['elapsed_s']:,.1f} s", note
    if s["mode"] == "asynchronous" and (staleness := s["staleness"]):
        yield "staleness", f"{staleness['mean']:.1f} steps", f"of an update on average, {staleness['max']:.0f} at most"
    yield from _missed(s, unit)
    if s["clamped_latencies"]:
        note = f"they count as equally fast; τ_min is {number(s['tau_min_s'])} {unit} at the end"
        yield "latencies below τ_min", str(s["clamped_latencies"]), note
    for client_id, cuts in (s["capped"] or {}).items():
        details = ", ".join(f"{what}: {count:,}" for what, count in cuts.items())
        yield "capped", client_id, f"{details}; what a client says of itself is bounded"
    emulated = "" if s["time_scale"] == 1 else f"; {s['time_scale']:g} for an emulated one of injected delay"
    clock = "real seconds" if s["clock"] == "real" else "virtual seconds: no delay was measured"
    yield "wall clock", f"{s['wall_clock_s']:,.1f} s", f"{clock}{emulated}"
    if s["privacy_unit"] is not None:
        note = f"of {number(s['epsilon_budget'])}, {EPSILON_LABELS[s['privacy_unit']]}"
        yield "greatest ε spent", number(s["max_epsilon_spent"]), note
        if s["privacy_unit"] == "coordinate":
            yield "the same as vector ε", number(s["vector_epsilon_max"]), "ε of the client's whole uploads"
    yield "selection, median", milliseconds(s["selection_s_median"]), f"per {turn(s)}, {s['clock']} time"
    yield "rejected updates", str(s["rejected_updates"]), ""
    doubted = f"of {s['rounds']}; {counted(s['suspect_observations'], 'measurement')}"
    yield f"suspect {turn(s)}s", str(s["suspect_rounds"]), doubted
    if "overruns" in s:
        yield "overruns", str(s["overruns"]), "exchanges longer than the total drawn for them"


def _missed(s: Mapping[str, Any], unit: str) -> Iterator[Fact]:
    """The facts about jobs that gave no update in time."""
    if jobs := sum(s["missed_jobs"].values()):
        kinds = ", ".join(f"{count} {kind}" for kind, count in s["missed_jobs"].items())
        waits_s = s["total_latency_s"] - s["measured_latency_s"]
        decided = f"; they decide the latency of {counted(s['censored_rounds'], turn(s))}" if s["rounds"] else ""
        yield "missed jobs", str(jobs), f"{kinds}{decided}"
        yield "waits for misses", f"{waits_s:,.1f} {unit}", "of the total latency: nothing was measured then"
    if s["failed_attempts"]:
        yield "failed attempts", str(s["failed_attempts"]), "no client gave an update; the round was tried again"
    if s["unneeded_jobs"]:
        yield "not waited for", str(s["unneeded_jobs"]), "jobs of clients that came after enough others had answered"
    if s["late_updates"] or s["withdrawn_jobs"]:
        charged = "" if s["privacy_unit"] is None else "; their ε is counted"
        note = f"{s['merged_updates']} in a later model{charged}; {counted(s['withdrawn_jobs'], 'job')} stopped in time"
        yield "late updates", str(s["late_updates"]), note


def noise(s: Mapping[str, Any]) -> str:
    """How great the noise was, with a remedy, if it was much greater than the clipped updates; empty otherwise."""
    ratios = s["noise_to_clip"]
    if not ratios or (ratios["last"] is not None and ratios["last"] <= MOST_NOISE_TO_CLIP):
        return ""
    last = "beyond all numbers" if ratios["last"] is None else f"{in_times(ratios['last'])} the clip"
    return f"{in_times(ratios['first'])} the clip at first, {last} in the end: {NOISE_REMEDY}"


def timing_error(s: Mapping[str, Any]) -> str:
    """The quantiles of the timing error, on the run's clock; empty if nothing was measured."""
    error_s = s["timing_error_s"]
    if not error_s or error_s["p50"] is None:
        return ""
    quantiles = f"p50 {milliseconds(error_s['p50'])}, p99 {milliseconds(error_s['p99'])}"
    return f"{quantiles} off what was drawn, {s['clock']} time"


def counted(count: int, noun: str) -> str:
    """The number with its noun, as "1 client" or "2 clients"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def number(value: float | None) -> str:
    """The number to four significant digits, "–" for None."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A fraction as a percentage, "–" for None."""
    return "–" if value is None else f"{value:.1%}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, to four significant digits and whole microseconds."""
    return "–" if seconds is None else f"{number(round(1e3 * seconds, 3))} ms"


def turn(summary: Mapping[str, Any]) -> str:
    """What the server did again and again: a "step" in an asynchronous run, else a "round"."""
    return "step" if summary.get("mode") == "asynchronous" else "round"


def asked(summary: Mapping[str, Any]) -> str:
    """How many clients a round or step asked, as "5 to 7 a round". Uses m if none was played."""
    fewest, most = summary["asked_per_round"] or (summary["m"], summary["m"])
    return f"{fewest if fewest == most else f'{fewest} to {most}'} a {turn(summary)}"


def by_whom(rounds_of: Mapping[str, int]) -> str:
    """The clients whose hosts made rounds suspect, with the numbers of rounds: "; a (12), b (3) and 2 more"."""
    if not rounds_of:
        return ""
    named = [f"{client_id} ({rounds})" for client_id, rounds in list(rounds_of.items())[:_MOST_NAMED]]
    more = len(rounds_of) - len(named)
    return f"; {', '.join(named)}{f' and {more} more' if more else ''}"
