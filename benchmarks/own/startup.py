"""Measures how long N client processes take to connect, the memory of each, and how long short runs take."""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl.runtime.run import run_experiment
from pausefl_process.events import ProgressEvent, RoundCommitted, WaitingForClients

_ROUNDS = 12
_WEIGHED_AFTER = 3
_NEXT_RUNS = 3


class _Stopwatch:
    """Notes when all clients were connected, and the memory of each client process (USS) in the middle of the run."""

    def __init__(self, clients: int) -> None:
        self.connect_s = 0.0
        self.uss_bytes: list[int] = []
        self._started_s = time.monotonic()
        self._clients = clients

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, WaitingForClients) and event.connected == self._clients:
            self.connect_s = time.monotonic() - self._started_s
        if isinstance(event, RoundCommitted) and event.round == _WEIGHED_AFTER:
            family = psutil.Process().children(recursive=True)
            # Forked clients share the fork server's command line; only the fork server has children.
            forked = [p for p in family if "forkserver" in " ".join(p.cmdline()) and not p.children()]
            for process in forked:
                with suppress(psutil.NoSuchProcess):  # a process may have ended meanwhile
                    self.uss_bytes.append(process.memory_full_info().uss)


def cases(clients: int = 30) -> Iterator[dict[str, Any]]:
    """Yields two cases of the `demo` preset, which trains on digits. Each runs in a new process, as a command would."""
    for measure in (_connecting, _short_runs):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            yield {"name": "startup", **process.submit(measure, clients).result()}


def _connecting(clients: int) -> dict[str, Any]:
    """The seconds until all clients are connected, and the largest client's memory. Every round has every client."""
    overrides = [f"clients.count={clients}", f"selection.m={clients}", f"experiment.rounds={_ROUNDS}"]
    experiment = load_experiment("demo", overrides)
    watch = _Stopwatch(clients)
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        Fleet(plan_of(experiment, "bench"), Path(folder)).run(watch.show)
    return {
        "case": f"{clients} client processes",
        "connect_s": watch.connect_s,
        "client_uss_max_bytes": max(watch.uss_bytes),
    }


def _short_runs(clients: int) -> dict[str, Any]:
    """The durations of runs on the virtual clock, one after the other. `next_s` is the shortest after the first."""
    overrides = [f"clients.count={clients}", f"experiment.rounds={_ROUNDS}", "experiment.clock=virtual"]
    experiment = load_experiment("demo", overrides)
    durations_s = []
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        for number in range(1 + _NEXT_RUNS):
            began_s = time.monotonic()
            run_experiment(experiment, Path(folder) / f"{number}", lambda _: None)
            durations_s.append(time.monotonic() - began_s)
    return {
        "case": f"runs of {_ROUNDS} rounds on the virtual clock, {clients} clients, report included",
        "first_s": durations_s[0],
        "next_s": min(durations_s[1:]),
    }
