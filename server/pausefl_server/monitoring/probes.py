"""The server's health and readiness, for the probes of containers and clusters."""

import asyncio
from collections.abc import Callable

from pausefl_process.health import health_routes
from pausefl_process.http_server import Route
from pausefl_server.monitoring.telemetry import Telemetry

# A commit usually takes milliseconds. A run cannot go on with a disk that is slower than this.
_WRITES_WITHIN_S = 10.0


def server_probes(
    telemetry: Telemetry, write_s: Callable[[], float], is_draining: Callable[[], bool]
) -> dict[str, Route]:
    """The routes `/healthz` and `/readyz`. `write_s` returns how long the current write has taken so far.

    A server is healthy while its event loop runs and the store writes. It is ready from its first round to its last,
    while a client is connected and the run has not been asked to end.
    """

    def trouble() -> str:
        taken_s = write_s()
        return f"a write takes {taken_s:.0f} s so far" if taken_s > _WRITES_WITHIN_S else ""

    def not_ready() -> str:
        now = telemetry.now
        if is_draining():
            return "the run was asked to end"
        if now.status != "running":
            return f"{now.status} ({now.connected} connected)"
        return "" if now.connected else "no client is connected"

    return health_routes(asyncio.get_running_loop(), trouble, not_ready)
