"""Benchmarks that are interrupted: they leave no process that waits for others."""

import multiprocessing
from typing import Any

import pytest

from pausefl.bench.echo import time_echo
from pausefl.runtime.processes.lifetime import start


@pytest.mark.end_to_end
@pytest.mark.parametrize("begun", [1, 2])
def test_an_interrupted_baseline_ends_its_processes(begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server waits for clients, and they wait for it: Python's end would wait for both."""
    started = list[Any]()

    def interrupted(process: Any) -> None:
        start(process)
        started.append(process)
        if len(started) == begun:
            raise KeyboardInterrupt

    monkeypatch.setattr("pausefl.bench.echo.start", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            time_echo(clients=2, payload_bytes=1000, rounds=1)
        assert not {process.pid for process in started} & {child.pid for child in multiprocessing.active_children()}
        assert all(process.exitcode is not None for process in started)
    finally:
        for process in started:
            process.kill()
