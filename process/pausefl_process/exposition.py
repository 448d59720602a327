"""The answer to Prometheus: the metrics of a run, each series with its name, and those of the process."""

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
    """The memory, processor time, open files, start and version of this process, and what Python is and collects.

    Of its certificates, how long they last.
    """
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    build = Gauge("pausefl_build_info", "The version of pausefl that runs: always 1", ["version"], registry=registry)
    build.labels(__version__).set(1)
    if shown := {tls for tls in certificates if tls and tls.certificate}:

        def left_s() -> float:  # NaN, of one that cannot be read, hides no other's end
            return min((tls.ends_at_s() for tls in shown), key=lambda s: (math.isnan(s), s)) - time.time()

        text = "Time until the first certificate of this process ends"
        Gauge("pausefl_certificate_remaining_seconds", text, registry=registry).set_function(left_s)
    return registry


def exposition(
    metrics: Callable[[], Collector] = CollectorRegistry,
    run: Callable[[], str] = str,
    certificates: Iterable[Tls | None] = (),
) -> Route:
    """The route on which they can be scraped beside those of the process; both are asked at each scrape."""
    process = of_process(certificates)

    def scrape(headers: Mapping[str, str]) -> Response:
        encode, content_type = choose_encoder(headers.get("Accept", ""))
        body = encode(_OfRun(run(), metrics(), process))
        if "gzip" not in headers.get("Accept-Encoding", ""):
            return Response(content_type, [body])
        return Response(content_type, [gzip.compress(body, 1)], {"Content-Encoding": "gzip"})

    return scrape


class _OfRun(Collector):
    """Several collectors, with the label `run` on each sample once the run is known.

    A label of the scraper's own would be that of whatever run comes next: of consecutive ones at the same address.
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
