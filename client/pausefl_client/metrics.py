"""The metrics of a client process, for the data holder's own Prometheus; deploy/METRICS.md describes each of them."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pausefl_client.jobs import AnsweredJob
from pausefl_client.privacy.ledger import Ledger


class HostMetrics(Collector):
    """The metrics of all clients of one process, in a separate Prometheus registry."""

    def __init__(
        self, clients: Sequence[str], ledgers: Mapping[str, Ledger], units: Mapping[str, float], client_series_max: int
    ) -> None:
        """`ledgers` by client id, empty without privacy. `units`: unit -> factor from a ledger's ε to that unit.

        With more than `client_series_max` clients, only the first client and the greatest ε are shown.
        """
        self.registry = registry = CollectorRegistry()

        def seconds(name: str, text: str, *labels: str) -> Summary:
            return Summary(f"pausefl_host_{name}", text, labels, registry=registry)

        self._train = seconds("train_seconds", "Time a client's training took")
        self._queue = seconds("queue_seconds", "Time a client's training waited for a trainer")
        self._privatise = seconds("privatise_seconds", "Time that clipping, noise and the ledger took")
        injected = seconds("injected_delay_seconds", "Time the link held messages back", "direction")
        self._injected_down, self._injected_up = injected.labels("down"), injected.labels("up")
        text = "Jobs answered, by what was answered"
        self._exchanges = Counter("pausefl_host_exchanges", text, ("status",), registry=registry)
        text = "Event-loop lag in the last exchange, the worst"
        self._lag = Gauge("pausefl_host_event_loop_lag_seconds", text, registry=registry)
        Gauge("pausefl_host_clients", "Clients that share this process", registry=registry).set(len(clients))
        info = Gauge("pausefl_host_client_info", "A client of this process: always 1", ("client",), registry=registry)
        for client_id in clients if len(clients) <= client_series_max else clients[:1]:
            info.labels(client_id).set(1)
        self._ledgers, self._units, self._client_series_max = ledgers, units, client_series_max
        registry.register(self)

    def count(self, job: AnsweredJob) -> None:
        """Count a job that a client of the process answered. Only status "ok" adds times, so re-sent work adds none."""
        self._exchanges.labels(job.status).inc()
        if job.status != "ok":
            return
        timing = job.result.timing
        self._train.observe(timing.train_s)
        self._queue.observe(timing.queue_s)
        self._privatise.observe(timing.privatise_s)
        self._injected_down.observe(timing.injected_down_s)
        self._injected_up.observe(timing.injected_up_s)
        self._lag.set(job.result.host.loop_lag_s)

    def collect(self) -> Iterator[Metric]:
        """The metrics of ε, read at each scrape from the ledgers, which record it as soon as it is spent."""
        spent = {client_id: ledger.spent.epsilon for client_id, ledger in self._ledgers.items()}
        text, labels = "Privacy budget a client of this process has spent", ("client", "unit")
        each = GaugeMetricFamily("pausefl_host_epsilon_spent", text, labels=labels)
        text = "Greatest privacy budget any client of this process has spent"
        most = GaugeMetricFamily("pausefl_host_epsilon_spent_max", text, labels=("unit",))
        text = "Privacy that a client which stays has spent in all of its runs"
        in_all = GaugeMetricFamily("pausefl_host_epsilon_all_runs", text, labels=labels)
        for unit, factor in self._units.items() if spent else ():
            most.add_metric((unit,), factor * max(spent.values()))
            for client_id in spent if len(spent) <= self._client_series_max else ():
                each.add_metric((client_id, unit), factor * spent[client_id])
                if (ledger := self._ledgers[client_id]).life is not None:
                    in_all.add_metric((client_id, unit), factor * ledger.in_all.epsilon)
        yield from (each, most, in_all)
