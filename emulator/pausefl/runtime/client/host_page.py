"""The HTTP pages of a client process: metrics and health probes. Clients that stay serve them between runs, too."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from pausefl.experiment.tables import Metrics
from pausefl_client.jobs import OnAnswered
from pausefl_client.privacy.ledger import Ledger
from pausefl_client.session import ClientSession
from pausefl_process.events import MetricsServed, Report
from pausefl_process.health import health_routes
from pausefl_process.http_server import WebServer
from pausefl_proto.privacy_unit import PrivacyUnit, vector_epsilon
from pausefl_proto.tls import Tls


class HostPage:
    """Serves the metrics of the run that a process's clients take part in, or last took part in."""

    def __init__(self, where: Metrics, certificates: Iterable[Tls | None]) -> None:
        """Start to serve; needs a running event loop. ConfigError if the port is not available."""
        from pausefl_client.metrics import HostMetrics  # here, as clients without metrics need no prometheus-client
        from pausefl_process.exposition import exposition

        self._make, self._series_max = HostMetrics, where.client_series_max
        self._metrics = HostMetrics((), {}, {}, 0)
        self._sessions: Mapping[str, ClientSession] = {}
        self.waits_for = ""
        """The event that the clients wait for, between runs."""
        probes = health_routes(asyncio.get_running_loop(), lambda: "", self._not_ready)
        routes = {"/metrics": exposition(lambda: self._metrics.registry, self._run, certificates), **probes}
        self.web = WebServer(where.client_host, where.client_port, routes, key="metrics.client_port")

    def show(
        self,
        clients: Sequence[str],
        ledgers: Mapping[str, Ledger],
        unit: PrivacyUnit,
        model_size: int,
        sessions: Mapping[str, ClientSession],
    ) -> OnAnswered:
        """Show these clients from now on. Returns a function that counts the jobs that they answer."""
        units: dict[str, float] = {"vector": vector_epsilon(unit, 1, model_size), unit: 1}
        self._metrics = self._make(clients, ledgers, units, self._series_max)
        self._sessions, self.waits_for = sessions, ""
        return self._metrics.count

    def _run(self) -> str:
        return next((session.run_name for session in self._sessions.values() if session.run_name), "")

    def _not_ready(self) -> str:
        if any(session.is_connected for session in self._sessions.values()):
            return ""
        return self.waits_for or "no client of this process is connected"


@contextmanager
def host_page(where: Metrics, report: Report, certificates: Iterable[Tls | None]) -> Iterator[HostPage | None]:
    """Serve this process's page for the block, report its address and yield it.

    Yields None if `metrics.client_port` is negative.
    """
    if where.client_port < 0:
        yield None
        return
    page = HostPage(where, certificates)
    with closing(page.web):
        report(MetricsServed(f"http://{page.web.address}/metrics"))
        yield page
