"""The server's metrics for Prometheus. deploy/METRICS.md describes every metric.

Each scrape makes the metrics from the current snapshot of the run. Every ε is labelled with the privacy unit. In the
unit "coordinate", each ε also has a second sample for the whole upload vector, which is d times as large.
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.privacy_unit import vector_epsilon
from pausefl_server.host_limits import DOUBTS, HostLimits
from pausefl_server.monitoring.snapshot import EXCHANGE, PARTS, SECONDS, Clients, RunSnapshot, greatest_and_median
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import MissKind
from pausefl_server.settings import MetricsSettings, ServerSettings

_Samples = Iterable[tuple[Sequence[str], float]]
"""The samples of a metric: label values and the sample's value."""
_Kind = type[GaugeMetricFamily | CounterMetricFamily]

_QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


def make_registry(telemetry: Telemetry, limits: MetricsSettings, folder: Path | None = None) -> CollectorRegistry:
    """A new registry with the run's metrics, made at each scrape, and the free disk space of `folder`."""
    registry = CollectorRegistry()
    registry.register(_RunCollector(telemetry, limits))
    if folder is not None:
        free = Gauge("pausefl_disk_free_bytes", "Bytes free where run.db lies", registry=registry)
        free.set_function(lambda: shutil.disk_usage(folder).free)
    return registry


class _RunCollector(Collector):
    def __init__(self, telemetry: Telemetry, limits: MetricsSettings) -> None:
        self._telemetry = telemetry
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        now, settings, limits = self._telemetry.now, self._telemetry.settings, self._limits
        are_few = len(now.clients.ids) <= limits.client_series_max
        rows = np.arange(len(now.clients.ids)) if are_few else now.clients.foremost(limits.client_series_top)
        yield from _run(now, settings)
        yield from _rounds(now)
        yield from _work(now, settings)
        yield from _exchanges(now)
        yield from _hosts(now, settings.limits)
        yield from _each_client(now.clients, rows)
        yield from _all_clients(now.clients)
        yield from _privacy(now, settings, rows)


def _run(now: RunSnapshot, settings: ServerSettings) -> Iterator[Metric]:
    privacy, info = settings.privacy, settings.info
    unit = privacy.unit if privacy else "none"
    labels = ("run_name", "policy", "dataset", "model", "unit")
    yield _gauges("run_info", "What is run: always 1", labels, [((*astuple(info), unit), 1)])
    yield _gauge("rounds", "Rounds the run is to have", settings.rounds)
    yield _gauge("round", "Rounds committed so far", now.round)
    yield _gauge("finished", "1: the run has ended in order, and its results are written; 0: it has not", now.is_over)
    text = "Unix time of the last commit, or of the server's start where that came later"
    yield _gauge("last_round_timestamp_seconds", text, now.last_round_at_s)
    evaluations = [((split, e.metric), e.accuracy) for split, (_, e) in now.evaluations.items()]
    text = "Accuracy at the last evaluation, or the task's own score, which the label metric names"
    yield _gauges("accuracy_ratio", text, ("split", "metric"), evaluations)
    text = "Round of the last model evaluated"
    yield _gauge("evaluated_round", text, max((t for t, _ in now.evaluations.values()), default=None))
    text = "1: the evaluator did what it was asked last; 0: it cannot be reached"
    yield _gauge("evaluator_connected", text, now.has_evaluator)
    yield _gauge("connected_clients", "Clients whose stream is open", now.connected)
    text = "Clients that should be connected in the round under way; none when the run is over"
    yield _gauge("expected_clients", text, _expected(now, settings))
    yield _counter("client_arrivals", "Times a client's stream opened", now.arrivals)
    yield _counter("client_departures", "Times a client's stream ended", now.departures)
    yield _counter("rejected_updates", "Messages and updates that were not accepted", now.rejected)


def _expected(now: RunSnapshot, settings: ServerSettings) -> int:
    if now.status.startswith("finished"):  # the clients were sent home; the last model may still be evaluated
        return 0
    if settings.expected is not None:
        return len(settings.expected(min(now.round + 1, settings.rounds)))
    return settings.minimum_clients if settings.clients is None else settings.clients


def _rounds(now: RunSnapshot) -> Iterator[Metric]:
    latency, selection = now.rounds.series()
    yield _histogram("round_latency_seconds", "Greatest latency of a round's clients", {(): latency})
    text = "Sum of the rounds' latencies, and of the waits of failed attempts"
    yield _gauge("total_latency_seconds", text, now.total_latency_s)
    text = "Sum of the rounds' greatest measured latencies, without the waits for clients that missed"
    yield _gauge("measured_latency_seconds", text, now.measured_latency_s)
    text = "Chosen clients without an update"
    yield _counters("missed_jobs", text, ("kind",), [((kind,), now.missed[kind]) for kind in get_args(MissKind)])
    text = "Rounds whose latency a miss decided: its wait, after which the answer had not come"
    yield _counter("censored_rounds", text, now.censored_rounds)
    yield _counter("late_updates", "Updates that came after their round", now.events["late"])
    yield _counter("withdrawn_jobs", "Withdrawn jobs that clients dropped unpaid", now.events["withdrawn"])
    text = "Attempts at rounds in which no client gave an update; the rounds were tried again"
    yield _counter("failed_attempts", text, now.failed_attempts)
    yield _counter("clamped_latencies", "Latencies below τ_min, which count as equally fast", now.clamped)
    yield _histogram("selection_seconds", "Time the policy took to choose", {(): selection})
    # Every reason has a sample, also of 0: Prometheus sees no increase from a missing sample to 1.
    doubts = [((reason,), now.doubts[reason]) for reason in DOUBTS]
    yield _counters("suspect_rounds", "Rounds whose measurements are in doubt", ("reason",), doubts)
    text = "Measurements of clients' answers that are in doubt themselves"
    yield _counter("suspect_observations", text, now.suspect_observations)


def _work(now: RunSnapshot, settings: ServerSettings) -> Iterator[Metric]:
    text = "Time from the run's first job to the last commit, at the emulated scale"
    yield _gauge("elapsed_seconds", text, now.elapsed_s)
    yield _gauge("places", "Clients that may be at work at once", settings.places(now.asked))
    text = "Elapsed time that clients had jobs, over all clients"
    yield _counter("at_work_seconds", text, float(now.clients.at_work_s.sum()))
    stale = now.staleness if settings.is_asynchronous else None
    yield _counter("staleness_steps", "Sum of the updates' staleness", stale)


def _exchanges(now: RunSnapshot) -> Iterator[Metric]:
    series = dict(zip(EXCHANGE, now.exchanges.series(), strict=True))
    yield _histogram("round_trip_seconds", "Round trips of all exchanges", {(): series["round_trip"]})
    text = "Where the exchanges' time went; propagation is the residual"
    parts = SummaryMetricFamily("pausefl_exchange_part_seconds", text, labels=["part"])
    for part in PARTS:
        counts, sum_s = series[part]
        parts.add_metric([part], counts[-1], sum_s)
    yield parts
    text, ways = "Delays as drawn for the exchanges, at the injected scale", ("down", "up")
    yield _histogram("drawn_delay_seconds", text, {(way,): series[way] for way in ways}, ["direction"])
    text = "Measured less drawn time, without sign, at the injected scale"
    yield _histogram("timing_error_seconds", text, {(): series["timing_error"]})


def _hosts(now: RunSnapshot, limits: HostLimits) -> Iterator[Metric]:
    last = now.record
    reports = {"server": [last.host], "clients": [o.host for o in last.observations]} if last is not None else {}

    def worst(name: str, text: str, key: str) -> Metric:
        samples = [((host,), max(getattr(r, key) for r in of_host)) for host, of_host in reports.items() if of_host]
        return _gauges(name, text, ("host",), samples)

    yield worst("host_loop_lag_seconds", "Event-loop lag in the last round, the worst", "loop_lag_s")
    yield worst("host_timer_overshoot_seconds", "Timer overshoot in the last round, the worst", "timer_overshoot_s")
    yield worst("host_steal_ratio", "Processor time stolen in the last round, the worst", "steal_share")
    yield worst("host_compute_ratio", "Share of the last round spent computing, the most", "compute_share")
    names = ("loop_lag_s", "timer_overshoot_s", "steal_share", "compute_share")
    text = "Limits of [host], beyond which a round is suspect"
    yield _gauges("host_limit", text, ("of",), [((name,), getattr(limits, name)) for name in names])


def _each_client(clients: Clients, rows: IntArray) -> Iterator[Metric]:
    ids = [(clients.ids[row],) for row in rows]

    def of(column: FloatArray | IntArray) -> _Samples:
        pairs = zip(ids, column[rows].tolist(), strict=True)
        return [(labels, value) for labels, value in pairs if not math.isnan(value)]

    label = ("client",)
    yield _gauges("client_round_trip_seconds", "A client's last measured round trip", label, of(clients.round_trip_s))
    text = "A client's last latency as its policy sees it"
    yield _gauges("client_latency_seconds", text, label, of(clients.latency_s))
    yield _gauges("client_ping_seconds", "Last idle round trip of an empty message", label, of(clients.ping_s))
    text = "Bytes of jobs sent to a client that it answered in time"
    yield _counters("client_down_bytes", text, label, of(clients.bytes_down))
    yield _counters("client_up_bytes", "Bytes of updates received from a client in time", label, of(clients.bytes_up))
    yield _counters("client_at_work_seconds", "Elapsed time that a client had jobs", label, of(clients.at_work_s))
    yield _counters("client_selections", "Times a client was chosen", label, of(clients.chosen))


def _all_clients(clients: Clients) -> Iterator[Metric]:
    text = "Quantiles over clients of the last measured round trip"
    yield _summary("clients_round_trip_seconds", text, [({}, clients.round_trip_s)])
    text = "Quantiles over clients of the last latency as the policy sees it"
    yield _summary("clients_latency_seconds", text, [({}, clients.latency_s)])
    text = "Bytes of jobs sent to all clients that they answered in time"
    yield _counter("down_bytes", text, int(clients.bytes_down.sum()))
    yield _counter("up_bytes", "Bytes of updates received from all clients in time", int(clients.bytes_up.sum()))
    yield _gauge("retired_clients", "Clients that release nothing more", int(clients.retired.sum()))


def _privacy(now: RunSnapshot, settings: ServerSettings, rows: IntArray) -> Iterator[Metric]:
    clients, spent, privacy = now.clients, now.clients.epsilon_spent, settings.privacy
    factors: dict[str, float] = {}  # unit -> the factor from an ε in the run's privacy unit to an ε in this unit
    if privacy:
        factors = {privacy.unit: 1, "vector": vector_epsilon(privacy.unit, 1, settings.manifest.charged.size)}

    def epsilon(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
        """A gauge with each sample once per unit of ε."""
        each = [((*values, unit), f * value) for values, value in samples for unit, f in factors.items()]
        return _gauges(name, text, (*labels, "unit"), each)

    of_client, budget = ("client",), settings.budget
    ids, whole = [(clients.ids[r],) for r in rows], budget.epsilon_budget if budget else 0.0
    samples = zip(ids, spent[rows].tolist(), strict=True)
    yield epsilon("client_epsilon_spent", "Privacy budget a client has spent", of_client, samples)
    samples = zip(ids, (whole - spent[rows]).tolist(), strict=True)
    yield epsilon("client_epsilon_remaining", "Privacy budget a client has left", of_client, samples)
    samples = zip(ids, (_next(clients, r, budget) for r in rows), strict=True)
    yield epsilon("client_epsilon_next", "What a client's next release would spend", of_client, samples)
    text = "Quantiles over clients of the privacy budget spent"
    yield _summary("clients_epsilon_spent", text, [({"unit": unit}, f * spent) for unit, f in factors.items()])
    greatest, median = greatest_and_median(spent)
    yield epsilon("epsilon_spent_max", "Greatest privacy budget any client has spent", (), [((), greatest)])
    yield epsilon("epsilon_spent_median", "Median over clients of the budget spent", (), [((), median)])
    yield epsilon("epsilon_budget", "Privacy budget of each client", (), [((), whole)])
    ends = math.inf if now.budgets_end is None else now.budgets_end
    text = "Round after which fewer than m clients have budget left"
    yield _gauge("budgets_end_round", text, ends if budget else None)
    text = "1: updates are noised from entropy; 0: they are not, the run is not private"
    yield _gauge("private", text, privacy is not None and not privacy.reproducible_noise)


def _next(clients: Clients, row: int, budget: Budget | None) -> float:
    """ε of a client's next release; 0 if it may not release."""
    i = int(clients.released[row]) + 1
    return budget.epsilon(i) if budget and budget.affords(i) and not clients.retired[row] else 0.0


def _single(kind: _Kind, name: str, text: str, value: float | None) -> Metric:
    """A metric without labels; None: without a sample too."""
    return kind(f"pausefl_{name}", text, value=value)


def _family(kind: _Kind, name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    family = kind(f"pausefl_{name}", text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


_gauge, _counter = partial(_single, GaugeMetricFamily), partial(_single, CounterMetricFamily)
_gauges, _counters = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _summary(name: str, text: str, columns: Iterable[tuple[dict[str, str], FloatArray]]) -> Metric:
    """The quantiles of each column's values that are not NaN, as a Prometheus summary without sum and count."""
    family = Metric(f"pausefl_{name}", text, "summary")
    for labels, column in columns:
        known = column[~np.isnan(column)]
        for quantile in _QUANTILES if known.size else ():
            value = float(np.quantile(known, quantile))
            family.add_sample(family.name, {**labels, "quantile": f"{quantile:g}"}, value)
    return family


def _histogram(
    name: str, text: str, series: Mapping[tuple[str, ...], tuple[list[int], float]], labels: Sequence[str] = ()
) -> Metric:
    """A Prometheus histogram. `series`: label values -> cumulative counts and sum, see `Histogram.series`."""
    family = HistogramMetricFamily(f"pausefl_{name}", text, labels=labels)
    bounds = [*map(str, SECONDS.tolist()), "+Inf"]
    for values, (counts, sum_s) in series.items():
        family.add_metric(values, list(zip(bounds, counts, strict=True)), sum_s)
    return family
