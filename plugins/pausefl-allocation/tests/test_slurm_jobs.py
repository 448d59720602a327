"""The jobs of `--on slurm` while Slurm does not answer."""

import os
import subprocess
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from pausefl_allocation.jobs import _LOST_AFTER_LOOKS, _SlurmExecutor
from rigs.waiting import wait_for

submitit = pytest.importorskip("submitit")


def test_no_job_is_lost_while_slurm_is_silent_or_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the user's squeue shows other jobs, nor asked without a pause after a shutdown that waits for a job."""
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    os.mkfifo(go_on := tmp_path / "go on")
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("pausefl_allocation.jobs._LOOKS_EVERY_S", 0.02)

    class Unreadable:
        def __reduce__(self) -> tuple[type, tuple[str]]:
            return int, ("no number",)

    def work(go_on: Path) -> Unreadable:
        go_on.read_bytes()  # once it is written
        return Unreadable()

    run, refusals, asked_s = subprocess.run, [BlockingIOError(11, "no process more")], list[float]()

    def refused_once(*words: Any, **options: Any) -> Any:
        asked_s.append(time.monotonic())
        if refusals:
            raise refusals.pop()
        return run(*words, **options)

    monkeypatch.setattr("pausefl_allocation.jobs.subprocess.run", refused_once)
    with _SlurmExecutor(submitit.LocalExecutor(tmp_path / "jobs")) as executor:
        future = executor.submit(work, go_on)
        wait_for(lambda: len(asked_s) > 2 * _LOST_AFTER_LOOKS, "looks")
        assert not future.done()
        Thread(target=executor.shutdown, daemon=True).start()
        wait_for(lambda: len(asked_s) > 4 * _LOST_AFTER_LOOKS, "more looks")
        go_on.write_bytes(b"")
        wait_for(lambda: [*(tmp_path / "jobs").glob("*_result.pkl")], "the result")
        (tmp_path / "squeue").write_text('#!/bin/sh\ntest -z "$SQUEUE_PARTITION"\n')
        assert "no number" in str(future.exception(30))
    assert sorted(np.diff(asked_s))[1] >= 0.015, "but for the moment of the shutdown"
