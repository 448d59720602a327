"""The live page over HTTP: its records, a server that shows it, and a reader of its frames."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pausefl_process.http_server import WebServer
from pausefl_proto.budget import Budget
from pausefl_server.monitoring.page import LivePage
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import LogEvent, Observation, RoundRecord, Timing
from pausefl_server.settings import PrivacySettings, RunInfo

BUDGET = Budget(epsilon_budget=10.0, eta=0.5)
PRIVATE = PrivacySettings(BUDGET, "coordinate", "agreed")
INFO = RunInfo("run-1", "pause", "digits", "mlp")


def record(t: int, names: list[str], **changes: Any) -> RoundRecord:
    """Everybody answers; number k takes k + 1 seconds, and who comes first in the alphabet has released most."""
    seen = tuple(
        Observation(
            name,
            Timing(1.0 + k, train_s=0.5),
            1.0 + k,
            10,
            t,
            BUDGET.epsilon(t),
            BUDGET.spent(t) + (1 - k / 1e3) * BUDGET.epsilon(t + 1),
        )
        for k, name in enumerate(names)
    )
    joined = tuple(LogEvent("joined", name, n_examples=10) for name in names) if t == 1 else ()
    plain = RoundRecord(t, 1, tuple(names), None, seen, joined, float(len(names)), float(t), 0.003, "")
    return replace(plain, **changes)


@contextmanager
def served(telemetry: Telemetry) -> Iterator[tuple[LivePage, str]]:
    page = LivePage(telemetry, Path("/runs/run-1"))
    server = WebServer("127.0.0.1", 0, page.routes, key="metrics.port")
    try:
        yield page, server.address
    finally:
        page.close()
        server.close()


def get(address: str, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", path)
    return connection.getresponse()


def next_frame(stream: http.client.HTTPResponse) -> dict[str, Any] | None:
    """The next frame of the stream, None at its end."""
    while line := stream.readline():
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return found
    return None
