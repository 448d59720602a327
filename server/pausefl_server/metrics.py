"""What Prometheus can scrape from the server; every metric is described in deploy/METRICS.md."""

import errno
import math
import threading
from collections.abc import Sequence
from operator import attrgetter
from wsgiref.simple_server import WSGIServer

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from pausefl.budget import Budget
from pausefl.errors import ConfigError
from pausefl.honesty import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.records import Evaluation, RoundRecord
from pausefl_server.settings import Privacy
from pausefl_server.state import RunState

_PARTS = (
    *("framing", "download", "injected_down", "queue", "train", "privatise", "injected_up", "upload"),
    *("server_wait", "propagation"),
)
# From a millisecond to a minute, the times a federation's exchange can take.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


class ServerMetrics:
    """The server's metrics, on a registry of their own. Every ε is labelled with the unit it protects.

    Where the unit is the coordinate, each ε stands a second time for the whole upload vector, d times as large.
    """

    def __init__(self, privacy: Privacy | None, model_size: int, *, is_served: bool = True) -> None:
        """Unless `is_served`, nobody can read them, and rounds are spared the work."""
        self._is_served = is_served
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"pausefl_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"pausefl_{name}", text, labels, registry=registry, buckets=_SECONDS)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pausefl_{name}", text, labels, registry=registry)

        self._budget = privacy.budget if privacy else None
        # Unit -> how many times the privacy unit's ε its own is.
        self._units = {privacy.unit: 1, "vector": privacy.vector_epsilon(1, model_size)} if privacy else {}
        self._round = gauge("round", "Rounds committed so far")
        self._accuracy = gauge("accuracy_ratio", "Accuracy at the last evaluation", "split")
        self._connected = gauge("connected_clients", "Clients whose stream is open")
        self._arrivals = counter("client_arrivals", "Times a client's stream opened")
        self._departures = counter("client_departures", "Times a client's stream ended")
        self._rejected = counter("rejected_updates", "Messages and updates that were not accepted")
        self._round_latency = histogram("round_latency_seconds", "Greatest latency of a round's clients")
        self._total_latency = gauge("total_latency_seconds", "Sum of the rounds' latencies")
        self._selection = histogram("selection_seconds", "Time the policy took to choose")
        self._round_trip = gauge("client_round_trip_seconds", "A client's last measured round trip", "client")
        self._latency = gauge("client_latency_seconds", "A client's last latency as its policy sees it", "client")
        self._round_trips = histogram("round_trip_seconds", "Round trips of all exchanges")
        parts = histogram(
            "exchange_part_seconds", "Where the exchanges' time went; propagation is the residual", "part"
        )
        self._parts = [(attrgetter(f"{part}_s"), parts.labels(part).observe) for part in _PARTS]
        self._bytes_down = counter("client_down_bytes", "Bytes of jobs sent to a client", "client")
        self._bytes_up = counter("client_up_bytes", "Bytes of updates received from a client", "client")
        self._ping = gauge("client_ping_seconds", "Last idle round trip of an empty message", "client")
        self._suspect = counter("suspect_rounds", "Rounds whose measurements are in doubt", "reason")
        self._loop_lag = gauge("host_loop_lag_seconds", "Event-loop lag in the last round, the worst", "host")
        self._overshoot = gauge("host_timer_overshoot_seconds", "Timer overshoot in the last round, the worst", "host")
        self._steal = gauge("host_steal_ratio", "Processor time stolen in the last round, the worst", "host")
        self._compute = gauge("host_compute_ratio", "Share of the last round spent computing, the most", "host")
        self._selections = counter("client_selections", "Times a client was chosen", "client")
        self._epsilon = gauge("client_epsilon_spent", "Privacy budget a client has spent", "client", "unit")
        self._epsilon_max = gauge("epsilon_spent_max", "Greatest privacy budget any client has spent", "unit")
        self._remaining = gauge("client_epsilon_remaining", "Privacy budget a client has left", "client", "unit")
        self._next = gauge("client_epsilon_next", "What a client's next release would spend", "client", "unit")
        self._epsilon_median = gauge("epsilon_spent_median", "Median over clients of the budget spent", "unit")
        self._epsilon_budget = gauge("epsilon_budget", "Privacy budget of each client", "unit")
        self._retired = gauge("retired_clients", "Clients that release nothing more")
        self._budgets_end = gauge("budgets_end_round", "Round after which fewer than m clients have budget left")
        self._is_private = gauge(
            "private", "1: updates are noised from entropy; 0: they are not, the run is not private"
        )
        self._is_private.set(privacy is not None and not privacy.reproducible_noise)
        if privacy is not None:
            self._set(self._epsilon_budget, privacy.budget.epsilon_budget)

    def arrived(self, connected: int) -> None:
        """A client's stream opened; so many are open now."""
        self._connected.set(connected)
        self._arrivals.inc()

    def departed(self, connected: int) -> None:
        """A client's stream ended; so many are open now."""
        self._connected.set(connected)
        self._departures.inc()

    def rejected(self) -> None:
        """Something a client sent was not accepted."""
        self._rejected.inc()

    def pinged(self, client_id: str, ping_s: float) -> None:
        """An idle client answered a ping."""
        self._ping.labels(client_id).set(ping_s)

    def evaluated(self, evaluation: Evaluation) -> None:
        """A model was judged."""
        self._accuracy.labels(evaluation.split).set(evaluation.accuracy)

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        """A round is on disk; `budgets_end` is the round after which fewer than m clients have budget left."""
        if not self._is_served:
            return
        self._round.set(record.round)
        self._round_latency.observe(record.round_latency_s)
        self._total_latency.set(state.total_latency_s)
        self._selection.observe(record.selection_s)
        for reason in record.suspect:
            self._suspect.labels(reason).inc()
        self._hosts_reported("server", [record.host])
        if record.observations:
            self._hosts_reported("clients", [o.host for o in record.observations])
        for client_id in record.chosen:
            self._selections.labels(client_id).inc()
        for o in record.observations:
            self._round_trip.labels(o.client_id).set(o.timing.round_trip_s)
            self._latency.labels(o.client_id).set(o.latency_s)
            self._round_trips.observe(o.timing.round_trip_s)
            for part_of, observe in self._parts:
                observe(part_of(o.timing))
            self._bytes_down.labels(o.client_id).inc(o.bytes_down)
            self._bytes_up.labels(o.client_id).inc(o.bytes_up)
        self._retired.set(int(state.table.retired.sum()))
        if self._budget is None:
            return
        for client_id in {o.client_id for o in record.observations} | {e.client_id for e in record.events}:
            self._ledger_of(client_id, state.table, self._budget)
        self._set(self._epsilon_max, float(state.table.epsilon_spent.max(initial=0.0)))
        self._set(self._epsilon_median, float(np.median(state.table.epsilon_spent)))
        self._budgets_end.set(math.inf if budgets_end is None else budgets_end)

    def _ledger_of(self, client_id: str, table: ClientTable, budget: Budget) -> None:
        row = table.row_of.get(client_id)
        if row is None:
            return
        i, spent = int(table.released[row]) + 1, float(table.epsilon_spent[row])
        self._set(self._epsilon, spent, client_id)
        self._set(self._remaining, budget.epsilon_budget - spent, client_id)
        self._set(self._next, budget.epsilon(i) if budget.affords(i) else 0.0, client_id)

    def _set(self, epsilon: Gauge, value: float, *labels: str) -> None:
        for unit, factor in self._units.items():
            epsilon.labels(*labels, unit).set(factor * value)

    def _hosts_reported(self, host: str, reports: Sequence[HostReport]) -> None:
        self._loop_lag.labels(host).set(max(r.loop_lag_s for r in reports))
        self._overshoot.labels(host).set(max(r.timer_overshoot_s for r in reports))
        self._steal.labels(host).set(max(r.steal_share for r in reports))
        self._compute.labels(host).set(max(r.compute_share for r in reports))


class MetricsServer:
    """Serves a registry at /metrics from a thread; ConfigError when the port is taken."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise
            raise ConfigError(f"metrics.port = {port}: cannot listen on {host}:{port} ({error.strerror})") from None
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving and wait for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
