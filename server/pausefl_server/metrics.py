"""What Prometheus can scrape from the server; every metric is described in deploy/METRICS.md."""

import errno
import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from pausefl.errors import ConfigError
from pausefl_server.records import Evaluation, RoundRecord
from pausefl_server.state import RunState

# From a millisecond to a minute, the times a federation's exchange can take.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


class ServerMetrics:
    """The server's metrics, on a registry of their own. `unit` labels every ε with what it protects."""

    def __init__(self, *, epsilon_budget: float | None, unit: str) -> None:
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"pausefl_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"pausefl_{name}", text, registry=registry, buckets=_SECONDS)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pausefl_{name}", text, labels, registry=registry)

        self._unit = unit
        self._round = gauge("round", "Rounds committed so far")
        self._accuracy = gauge("accuracy_ratio", "Accuracy at the last evaluation", "split")
        self._connected = gauge("connected_clients", "Clients whose stream is open")
        self._rejected = counter("rejected_updates", "Messages and updates that were not accepted")
        self._round_latency = histogram("round_latency_seconds", "Greatest latency of a round's clients")
        self._total_latency = gauge("total_latency_seconds", "Sum of the rounds' latencies")
        self._selection = histogram("selection_seconds", "Time the policy took to choose")
        self._round_trip = gauge("client_round_trip_seconds", "A client's last measured round trip", "client")
        self._latency = gauge("client_latency_seconds", "A client's last latency as its policy sees it", "client")
        self._selections = counter("client_selections", "Times a client was chosen", "client")
        self._epsilon = gauge("client_epsilon_spent", "Privacy budget a client has spent", "client", "unit")
        self._epsilon_max = gauge("epsilon_spent_max", "Greatest privacy budget any client has spent", "unit")
        self._epsilon_budget = gauge("epsilon_budget", "Privacy budget of each client", "unit")
        if epsilon_budget is not None:
            self._epsilon_budget.labels(unit).set(epsilon_budget)

    def connected(self, clients: int) -> None:
        """So many streams are open now."""
        self._connected.set(clients)

    def rejected(self) -> None:
        """Something a client sent was not accepted."""
        self._rejected.inc()

    def evaluated(self, evaluation: Evaluation) -> None:
        """A model was judged."""
        self._accuracy.labels(evaluation.split).set(evaluation.accuracy)

    def round_committed(self, record: RoundRecord, state: RunState) -> None:
        """A round is on disk."""
        self._round.set(record.round)
        self._round_latency.observe(record.round_latency_s)
        self._total_latency.set(state.total_latency_s)
        self._selection.observe(record.selection_s)
        for client_id in record.chosen:
            self._selections.labels(client_id).inc()
        for o in record.observations:
            self._round_trip.labels(o.client_id).set(o.timing.round_trip_s)
            self._latency.labels(o.client_id).set(o.latency_s)
            if o.participation:
                self._epsilon.labels(o.client_id, self._unit).set(o.epsilon_spent)
        if self._unit:
            self._epsilon_max.labels(self._unit).set(float(state.table.epsilon_spent.max(initial=0.0)))


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
