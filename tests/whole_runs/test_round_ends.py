"""Whole runs, processes and all, whose rounds do not wait for every client."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from pausefl.outcomes import FAILED
from rigs.command import is_alive, query, rounds_in, run
from rigs.waiting import wait_for

pytestmark = pytest.mark.end_to_end

EXPERIMENT = """
[experiment]
rounds = {rounds}
[clients]
count = 3
connect_timeout_s = 60.0
[clients.groups.fast]
count = 2
[clients.groups.slow]
count = 1
[selection]
policy = "all"
m = 3
[workload]
model = "synthetic"
[latency]
down = {{ kind = "constant", value_s = 0.0 }}
up = {{ kind = "constant", value_s = {fast_up_s} }}
[[latency.groups]]
clients = "slow-000"
down = {{ kind = "constant", value_s = 0.0 }}
up = {{ kind = "constant", value_s = {slow_up_s} }}
[evaluation]
every = 0
[metrics]
enabled = false
[server]
{server}
"""
"""A slow client trains and pays at once; its update is held back."""


def experiment(folder: Path, server: str, rounds: int, fast_up_s: float = 0.1, slow_up_s: float = 0.35) -> Path:
    path = folder / "experiment.toml"
    path.write_text(EXPERIMENT.format(server=server, rounds=rounds, fast_up_s=fast_up_s, slow_up_s=slow_up_s))
    return path


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def charged(run_dir: Path, client_id: str) -> int:
    """Releases in a client's own ledger."""
    with closing(sqlite3.connect(run_dir / f"ledgers/{client_id}.db")) as ledger:
        return int(ledger.execute("SELECT count(*) FROM releases").fetchone()[0])


def mirrored(run_dir: Path, client_id: str) -> int:
    """Releases of a client in the server's log."""
    union = f"""SELECT participation AS i FROM observations WHERE client_id = '{client_id}'
        UNION ALL SELECT released FROM events WHERE client_id = '{client_id}'"""
    return int(query(run_dir, f"SELECT coalesce(max(i), 0) FROM ({union})")[0][0])


@pytest.mark.parametrize("late", ["drop", "buffer"])
@pytest.mark.slow
def test_a_quorum_ends_rounds_and_late_updates_are_counted(tmp_path: Path, late: str) -> None:
    config = experiment(tmp_path, f'quorum = 0.6\nlate = "{late}"', rounds=20)
    done = run("run", config, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of(tmp_path / "run")
    assert (summary["rounds"], summary["missed_jobs"], summary["censored_rounds"]) == (20, {}, 0)
    assert summary["unneeded_jobs"] == 20
    assert summary["late_updates"] >= 2
    assert (summary["merged_updates"] >= 1) == (late == "buffer")
    assert summary["rejected_updates"] == 0
    assert "not waited for" in done.stdout
    assert "not waited for" in (tmp_path / "run/report.html").read_text("utf-8")
    # Each job of the slow client was paid for and came late, or was dropped unpaid; the last may be under way.
    assert 0 <= charged(tmp_path / "run", "slow-000") - mirrored(tmp_path / "run", "slow-000") <= 1
    assert charged(tmp_path / "run", "slow-000") < 20
    for client_id in ("fast-000", "fast-001"):
        assert charged(tmp_path / "run", client_id) == mirrored(tmp_path / "run", client_id) == 20


@pytest.mark.slow
def test_a_run_killed_with_a_buffered_update_goes_on_and_loses_no_epsilon(
    tmp_path: Path, background: Callable[..., subprocess.Popen[bytes]]
) -> None:
    config, run_dir = experiment(tmp_path, 'quorum = 0.6\nlate = "buffer"', rounds=60), tmp_path / "run"
    process = background("run", config, "--run-dir", run_dir)
    wait_for(lambda: rounds_in(run_dir) >= 12, "twelve rounds", running=process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(is_alive(child) for child in family), "every process to end", 20)
    played = rounds_in(run_dir)
    assert played < 60
    done = run("run", "--resume", run_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of(run_dir)
    assert (summary["rounds"], summary["outcome"]) == (60, "completed")
    for client_id in ("fast-000", "fast-001", "slow-000"):
        assert 0 <= charged(run_dir, client_id) - mirrored(run_dir, client_id) <= 1
    twice = "SELECT client_id, participation FROM observations GROUP BY 1, 2 HAVING count(*) > 1"
    assert query(run_dir, twice) == []
    twice = "SELECT client_id, released FROM events WHERE kind = 'merged' GROUP BY 1, 2 HAVING count(*) > 1"
    assert query(run_dir, twice) == []
    fates = "SELECT kind, count(*) FROM events WHERE kind IN ('late', 'merged', 'dropped') GROUP BY 1"
    counted = {str(kind): int(n) for kind, n in query(run_dir, fates)}
    assert counted["late"] == counted["merged"] + counted.get("dropped", 0), "each kept update has one fate"


@pytest.mark.slow
def test_a_run_that_no_client_answers_fails_with_the_reason(tmp_path: Path) -> None:
    server = "round_timeout_s = 0.5\nrounds_without_update_max = 2"
    config = experiment(tmp_path, server, rounds=5, fast_up_s=30.0, slow_up_s=30.0)
    done = run("run", config, "--run-dir", tmp_path / "run")
    assert done.returncode == FAILED
    assert "no client gave an update in 2 attempts in a row; the last one, slow-000: gave no answer" in done.stderr
    summary = summary_of(tmp_path / "run")
    assert (summary["outcome"], summary["rounds"], summary["failed_attempts"]) == ("failed", 0, 2)
    assert summary["missed_jobs"] == {"timeout": 6}
    assert summary["total_latency_s"] >= 1.0


@pytest.mark.slow
def test_a_client_that_answers_after_30_s_costs_the_timeout_of_2_s_each_round(tmp_path: Path) -> None:
    """Their sum is the time on the clock, but for what the server adds between rounds."""
    config, run_dir = experiment(tmp_path, "round_timeout_s = 2.0", rounds=2, slow_up_s=30.0), tmp_path / "run"
    done = run("run", config, "--run-dir", run_dir, "--set", "privacy.enabled=false")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of(run_dir)
    assert (summary["missed_jobs"], summary["censored_rounds"]) == ({"timeout": 2}, 2)
    assert 4.0 <= summary["total_latency_s"] <= summary["wall_clock_s"] < summary["total_latency_s"] + 1.0
    assert summary["measured_latency_s"] < 2.0
    for latency_s, missed, censored in query(run_dir, "SELECT round_latency_s, misses, is_censored FROM round_latency"):
        assert float(str(latency_s)) >= 2.0
        assert (missed, censored) == (1, 1)
    for client_id, kind, waited_s in query(run_dir, "SELECT client_id, kind, waited_s FROM censored_latencies"):
        assert (client_id, kind) == ("slow-000", "timeout")
        assert float(str(waited_s)) >= 2.0
    assert "missed jobs" in (run_dir / "report.html").read_text("utf-8")
    assert "missed" in done.stdout
