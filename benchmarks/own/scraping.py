"""Measures the cost of watchers: rounds with a scrape a second, or with the live page open, against rounds without.

The three alternate within one run, a few seconds each, so that other work on the machine affects all of them. The cost
of having metrics at all, read or not, is measured by alternating runs with and without metrics.
"""

import http.client
import signal
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pausefl.bench.runs import BARE, play
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_process.events import MetricsServed, ProgressEvent, RoundCommitted
from pausefl_proto.wire import MOST_ROUNDS
from pausefl_server.records import RoundRecord
from pausefl_server.storage.store import Store

_SEGMENT_S = 2.0
# Rounds this close to a change of watchers are left out.
_MARGIN_S = 0.1
_WARM_UP_S = 3.0
_SCRAPE_EVERY_S = 1.0
_ROUNDS_APART = 500
_WARM_UP_ROUNDS = 20


def cases(
    clients: int = 10, payload_bytes: int = 4_000, blocks: int = 12, runs_apart: int = 3
) -> Iterator[dict[str, Any]]:
    """Yields a case per way of watching. `ratio` is of median rounds; `mean_ratio` is of means, which stalls raise."""
    overrides = [
        f"clients.count={clients}",
        f"selection.m={clients}",
        "selection.policy=all",
        f"workload.model_bytes={payload_bytes - payload_bytes % 4}",
    ]
    yield _apart(overrides, runs_apart, f"{clients} clients, {payload_bytes} bytes")
    found = _alternate(overrides, blocks)
    for watcher, text in (("scrape", "scraped each second"), ("page", "live page open")):
        pairs = [(block[watcher], block["alone"]) for block in found]
        yield _case(text, [b for _, b in pairs], [w for w, _ in pairs])


def _apart(overrides: list[str], runs: int, case: str) -> dict[str, Any]:
    """Compare runs with metrics that are never read with runs without metrics."""
    durations_s: dict[str, list[Any]] = defaultdict(list)
    for enabled in ("false", "true") * runs:
        records = play([*overrides, f"metrics.enabled={enabled}", f"experiment.rounds={_ROUNDS_APART}"])
        durations_s[enabled].append(_durations_s(records)[1][_WARM_UP_ROUNDS:])
    return _case(f"{case}: with metrics, unread", durations_s["false"], durations_s["true"])


def _alternate(overrides: list[str], n_blocks: int) -> list[dict[str, Any]]:
    """The durations of one run's rounds, by block and by watcher."""
    never = f"experiment.rounds={MOST_ROUNDS}"
    experiment = parse_experiment(BARE, [*overrides, "metrics.enabled=true", "metrics.page=on", never])
    audience = _Audience(n_blocks)
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        Fleet(plan_of(experiment, "bench"), Path(folder)).run(audience.show)
        store = Store(Path(folder) / "run.db")
        ends_s, durations_s = _durations_s(store.rounds())
        store.close()
    blocks: list[dict[str, Any]] = []
    for block in audience.blocks:
        found = {}
        for watcher, (since_s, until_s) in block.items():
            begun_s = ends_s - durations_s + audience.origin_s
            within = (begun_s > since_s + _MARGIN_S) & (ends_s + audience.origin_s < until_s - _MARGIN_S)
            found[watcher] = durations_s[within]
        blocks.append(found)
    return blocks


def _durations_s(records: list[RoundRecord]) -> tuple[Any, Any]:
    """The end and the duration of each round but the first, in seconds. A round lasts from durable commit to commit."""
    ends_s = np.array([record.wall_clock_s for record in records])
    return ends_s[1:], np.diff(ends_s)


def _case(case: str, alone_s: list[Any], watched_s: list[Any]) -> dict[str, Any]:
    """The ratios of watched to other rounds in each block, whose parts are adjacent in time, and their quartiles."""
    medians = [np.median(w) / np.median(a) for a, w in zip(alone_s, watched_s, strict=True)]
    means = [np.mean(w) / np.mean(a) for a, w in zip(alone_s, watched_s, strict=True)]
    low, middle, high = np.quantile(medians, (0.25, 0.5, 0.75))
    return {
        "name": "scraping",
        "case": case,
        "median_s": float(np.median(np.concatenate(watched_s))),
        "p99_s": float(np.quantile(np.concatenate(watched_s), 0.99)),
        "baseline_median_s": float(np.median(np.concatenate(alone_s))),
        "ratio": float(middle),
        "ratio_q1": float(low),
        "ratio_q3": float(high),
        "mean_ratio": float(np.median(means)),
    }


class _Audience:
    """Watches a run in alternating ways, notes the times of each, and ends the run after the last block."""

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self.blocks: list[dict[str, tuple[float, float]]] = []
        """For each block, the start and end of each watcher's turn (time.monotonic)."""
        self.origin_s = float("inf")
        """The offset from the run's own clock to time.monotonic. Its error is the delay of the fastest event."""
        self._netloc = ""
        self._thread: threading.Thread | None = None
        self._is_over = False

    def show(self, event: ProgressEvent) -> None:
        """Start to watch at the first round, and interrupt after the last block: the fleet then ends the run."""
        if isinstance(event, MetricsServed):
            self._netloc = urlsplit(event.url).netloc
        if not isinstance(event, RoundCommitted):
            return
        self.origin_s = min(self.origin_s, time.monotonic() - event.wall_clock_s)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch)
            self._thread.start()
        elif self._is_over:
            self._is_over = False
            signal.raise_signal(signal.SIGINT)

    def _watch(self) -> None:
        try:
            time.sleep(_WARM_UP_S)
            watchers = deque([("alone", _look_away), ("scrape", self._scrape), ("page", self._read_page)])
            for _ in range(self._n_blocks):
                self.blocks.append({name: self._segment(watch) for name, watch in watchers})
                watchers.rotate()  # so that each block begins with another watcher
        finally:
            self._is_over = True

    def _segment(self, watch: Callable[[float], None]) -> tuple[float, float]:
        since_s = time.monotonic()
        watch(since_s + _SEGMENT_S)
        return since_s, time.monotonic()

    def _scrape(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            self._get("/metrics").read()
            time.sleep(_SCRAPE_EVERY_S)

    def _read_page(self, until_s: float) -> None:
        stream = self._get("/events")
        while time.monotonic() < until_s:
            stream.readline()
        stream.close()

    def _get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._netloc, timeout=10)
        connection.request("GET", path)
        return connection.getresponse()


def _look_away(until_s: float) -> None:
    time.sleep(until_s - time.monotonic())
