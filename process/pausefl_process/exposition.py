"""The page that Prometheus scrapes: the metrics of the run and of the process, with the run's name as a label."""

import gzip
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pausefl_process.http_server import Response, Route
from pausefl_process.version import __version__
from pausefl_proto.tls import Tls


def of_process(certificates: Iterable[Tls | None] = ()) -> CollectorRegistry:
    """The metrics of this process: memory, CPU, files, start, version, Python, GC, and time left of `certificates`."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    build = Gauge("pausefl_build_info", "The version of pausefl that runs: always 1", ["version"], registry=registry)
    build.labels(__version__).set(1)
    if shown := {tls for tls in certificates if tls and tls.certificate}:

        def left_s() -> float:  # the least time left; NaN, for an unreadable certificate, only if all are unreadable
            return min((tls.ends_at_s() for tls in shown), key=lambda s: (math.isnan(s), s)) - time.time()

        text = "Time until the first certificate of this process ends"
        Gauge("pausefl_certificate_remaining_seconds", text, registry=registry).set_function(left_s)
    return registry


def exposition(
    metrics: Callable[[], Collector] = CollectorRegistry,
    run: Callable[[], str] = str,
    certificates: Iterable[Tls | None] = (),
) -> Route:
    """The HTTP route that returns `metrics` and the process's own. `metrics` and `run` are called at each scrape."""
    process = of_process(certificates)

    def scrape(headers: Mapping[str, str]) -> Response:
        encode, content_type = choose_encoder(headers.get("Accept", ""))
        body = encode(_OfRun(run(), metrics(), process))
        if "gzip" not in headers.get("Accept-Encoding", ""):
            return Response(content_type, [body])
        return Response(content_type, [gzip.compress(body, 1)], {"Content-Encoding": "gzip"})

    return scrape


class _OfRun(Collector):
    """Several collectors as one, with the label `run` on each sample once the run is known.

    Prometheus cannot add this label itself: consecutive runs may be served at the same address.
    """

    def __init__(self, run: str, *collectors: Collector) -> None:
        self._labels = {"run": run} if run else {}
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            for metric in collector.collect():
                named = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                named.samples = [s._replace(labels={**self._labels, **s.labels}) for s in metric.samples]
                yield named
