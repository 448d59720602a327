"""Whether a server is healthy and ready, for the probes of containers and clusters."""

import asyncio
from collections.abc import Callable

from pausefl_process.health import health_routes
from pausefl_process.http_server import Route
from pausefl_server.monitoring.telemetry import Telemetry

# A commit takes milliseconds; a disk this slow is none that a run can go on with.
_WRITES_WITHIN_S = 10.0


def server_probes(
    telemetry: Telemetry, write_s: Callable[[], float], is_draining: Callable[[], bool]
) -> dict[str, Route]:
    """The routes `/healthz` and `/readyz`; `write_s` is how long the write at hand takes so far.

    A server is healthy while its event loop turns and the store writes. It is ready from the first round it plays
    until its last, as long as a client is connected and it has not been asked to end.
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
