"""The end of a run can be seen by those who look from time to time, and costs nobody else any time."""

import asyncio
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from pausefl_server.selection.policies.everyone import All
from pausefl_server.service import RunResult
from pausefl_server.settings import MetricsSettings
from rigs.federation import clients, federation
from rigs.waiting import wait_for

LONG_S = 3600.0


def scrape(url: str) -> dict[str, float]:
    """The metrics without labels, once the run is over."""
    samples: dict[str, float] = {}

    def is_over() -> bool:
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = str(answer.read(), "utf-8").splitlines()
        samples.update(
            (name, float(value)) for name, value in (line.split() for line in lines if re.match(r"\w+ ", line))
        )
        return bool(samples["pausefl_finished"])

    wait_for(is_over, "the end of the run", 20)
    return samples


async def test_the_end_can_be_scraped_once_results_are_written(tmp_path: Path) -> None:
    kept: list[RunResult] = []
    metrics = MetricsSettings(linger_s=LONG_S)
    async with federation(tmp_path, All(2), metrics=metrics, keep=kept.append) as run, clients() as some:
        for name in ("a", "b"):
            some.start(name, await run.port)
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
        for name in ("a", "b"):
            some.start(name, await run.port)
        with pytest.raises(OSError, match="no space"):
            await run.finished()
