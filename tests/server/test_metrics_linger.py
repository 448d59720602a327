"""The end of a run can be seen by those who look from time to time, and costs nobody else any time."""

import asyncio
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from pausefl_server.records import LogEvent, Miss, RoundRecord
from pausefl_server.selection.policies.everyone import All
from pausefl_server.service import RunResult
from pausefl_server.settings import MetricsSettings
from pausefl_server.storage.store import Store
from rigs.federation import clients, federation
from rigs.waiting import wait_for

LONG_S = 3600.0


def samples_at(url: str) -> dict[str, float]:
    """The metrics without labels."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = str(answer.read(), "utf-8").splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if re.match(r"\w+ ", line))}


def scrape(url: str) -> dict[str, float]:
    """The metrics without labels, once the run is over."""
    samples: dict[str, float] = {}

    def is_over() -> bool:
        samples.update(samples_at(url))
        return bool(samples["pausefl_finished"])

    wait_for(is_over, "the end of the run", 20)
    return samples


async def test_a_resumed_run_tells_of_the_failed_attempts_at_its_next_round(tmp_path: Path) -> None:
    joined, miss = LogEvent("joined", "a", n_examples=1), Miss("a", "timeout", 1.0, 1.0)
    store = Store(tmp_path / "run.db")
    for attempt in (1, 2):
        events = (joined,) if attempt == 1 else ()
        store.save_failed_attempt(RoundRecord(1, attempt, ("a",), None, (), events, 1.0, 1.0, 0.0, "", misses=(miss,)))
    store.close()
    async with federation(tmp_path, metrics=MetricsSettings(linger_s=LONG_S)) as run:
        await run.port
        samples = await asyncio.to_thread(samples_at, (await run.event("metrics"))["url"])
        signal.raise_signal(signal.SIGTERM)
        await run.finished()
    assert samples["pausefl_failed_attempts_total"] == 2
    assert samples["pausefl_total_latency_seconds"] == 2.0


async def test_the_end_can_be_scraped_once_results_are_written(tmp_path: Path) -> None:
    kept: list[RunResult] = []
    metrics = MetricsSettings(linger_s=LONG_S)
    async with federation(tmp_path, All(2), metrics=metrics, keep=kept.append) as run, clients() as some:
        some.start_all("ab", await run.port)
        url = (await run.event("metrics"))["url"]
        samples = await asyncio.to_thread(scrape, url)
        assert [result.state.round for result in kept] == [3]
        assert samples["pausefl_round"] == 3
        assert samples["pausefl_expected_clients"] == 0
        signal.raise_signal(signal.SIGINT)
        assert (await run.finished()).stopped_because == "all rounds done"


async def test_a_run_that_somebody_ended_does_not_linger(tmp_path: Path) -> None:
    async with federation(tmp_path, metrics=MetricsSettings(linger_s=LONG_S)) as run:
        await run.port
        signal.raise_signal(signal.SIGTERM)
        assert (await run.finished()).stopped_because == "stopped by SIGTERM"


async def test_an_end_is_not_in_order_before_results_are_written(tmp_path: Path) -> None:
    def fail(_: RunResult) -> None:
        raise OSError("no space is left")

    metrics = MetricsSettings(linger_s=LONG_S)
    async with federation(tmp_path, All(2), metrics=metrics, keep=fail) as run, clients() as some:
        some.start_all("ab", await run.port)
        with pytest.raises(OSError, match="no space"):
            await run.finished()


async def test_a_resumed_run_is_measured_before_anybody_is_back(tmp_path: Path) -> None:
    async with federation(tmp_path, All(2)) as run, clients() as some:
        some.start_all("ab", await run.port)
        result = await run.finished()
    async with federation(tmp_path, All(2), rounds=5, metrics=MetricsSettings()) as run:
        samples = await asyncio.to_thread(samples_at, (await run.event("metrics"))["url"])
    assert (samples["pausefl_round"], samples["pausefl_round_trip_seconds_count"]) == (3, 6)
    assert samples["pausefl_total_latency_seconds"] == pytest.approx(result.state.total_latency_s)
