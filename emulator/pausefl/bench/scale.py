"""Measures a thousand clients on one machine: the time to connect, the speed of rounds, the memory of the server."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from pausefl.bench.runs import BARE, durations_s, play_experiment
from pausefl.experiment.experiment import parse_experiment
from pausefl_process.events import Finished, ProgressEvent, RoundCommitted, WaitingForClients

_M = 50
_ROUNDS = 100
_MODEL_BYTES = 4_000
_CONNECT_WITHIN_S = 600


class _ScaleWatch:
    """Records when all clients were connected, the server's memory at its last round, and what it did not release."""

    def __init__(self, clients: int) -> None:
        self.connect_s = 0.0
        self.server_rss_bytes = 0
        self.left: Mapping[str, int] = {}
        self._server: psutil.Process | None = None
        self._cpu_s: list[tuple[int, float]] = []  # (round, processor time) after each reported round
        self._clients = clients
        self._started_s = time.monotonic()

    def hear(self, event: ProgressEvent) -> None:
        if isinstance(event, WaitingForClients) and event.connected == self._clients:
            self.connect_s = time.monotonic() - self._started_s
        if isinstance(event, RoundCommitted):
            self._server = self._server or _server()  # once: it looks at every process of the machine
            self.server_rss_bytes = self._server.memory_info().rss
            self._cpu_s.append((event.round, sum(self._server.cpu_times()[:2])))
        if isinstance(event, Finished):
            self.left = event.left

    @property
    def server_cpu_per_round_s(self) -> float:
        """The server's processor time per round, from the first reported round to the last; some are not reported."""
        (first, before_s), (last, after_s) = self._cpu_s[0], self._cpu_s[-1]
        return (after_s - before_s) / (last - first)


def _server() -> psutil.Process:
    """The server's process, the only child that was spawned. Clients are forked from the fork server."""
    return next(p for p in psutil.Process().children() if any("spawn_main" in word for word in p.cmdline()))


def cases(clients: int = 1000) -> Iterator[dict[str, Any]]:
    """One run: a synthetic model of 4 kB, no delays, m = 50 drawn at random."""
    yield played(clients, [f"workload.model_bytes={_MODEL_BYTES}"])


def played(clients: int, overrides: Sequence[str], what: str = "") -> dict[str, Any]:
    """The figures of 100 rounds with `clients` clients. `what` is added to the case's name, to tell cases apart."""
    m = min(_M, clients)
    found = figures(clients, _ROUNDS, [f"selection.m={m}", *overrides])
    case = f"{clients} clients in {found['processes']} processes, m = {m}{what}"
    return {"name": "scale", "case": case, "clients": clients, **found}


def figures(clients: int, rounds: int, overrides: Sequence[str]) -> dict[str, Any]:
    """The figures of `rounds` rounds or steps with `clients` clients, of which each round chooses some at random."""
    size = [f"clients.count={clients}", f"experiment.rounds={rounds}", f"clients.connect_timeout_s={_CONNECT_WITHIN_S}"]
    experiment = parse_experiment(BARE, [*size, "selection.policy=random", *overrides])
    watch = _ScaleWatch(clients)
    records = play_experiment(experiment, watch.hear)
    return {
        "processes": -(-clients // experiment.clients_per_process),
        **dict(zip(("median_s", "p99_s"), np.quantile(durations_s(records), (0.5, 0.99)).tolist(), strict=True)),
        "connect_s": watch.connect_s,
        "rounds_per_s": len(records) / records[-1].wall_clock_s,
        "server_cpu_per_round_s": watch.server_cpu_per_round_s,
        "server_rss_bytes": watch.server_rss_bytes,
        **{f"{kind}_left": count for kind, count in watch.left.items()},
    }
