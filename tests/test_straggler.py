"""A whole run, processes and all, with a client that answers long after the round's timeout."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

EXPERIMENT = """
[experiment]
rounds = 2
[clients]
count = 3
[clients.groups.fast]
count = 2
[clients.groups.slow]
count = 1
[selection]
policy = "all"
m = 3
[workload]
model = "synthetic"
[latency.delay]
kind = "constant"
value_s = 0.05
[[latency.groups]]
clients = "slow-000"
delay = { kind = "constant", value_s = 30.0 }
[server]
round_timeout_s = 2.0
[privacy]
enabled = false
[evaluation]
every = 0
"""


@pytest.mark.slow
def test_a_client_that_answers_after_30_s_costs_the_timeout_of_2_s_each_round(tmp_path: Path) -> None:
    """Their sum is the time on the clock, but for what the server adds between rounds."""
    (tmp_path / "slow.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "pausefl", "run", "slow.toml", "--run-dir", "run"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["missed_jobs"] == {"timeout": 2}
    assert summary["censored_rounds"] == 2
    assert 4.0 <= summary["total_latency_s"] <= summary["wall_clock_s"]
    assert summary["wall_clock_s"] - summary["total_latency_s"] < 1.0
    assert summary["measured_latency_s"] < 2.0
    with closing(sqlite3.connect(tmp_path / "run" / "run.db")) as database:
        rounds = database.execute("SELECT round_latency_s, misses, is_censored FROM round_latency").fetchall()
        misses = database.execute("SELECT client_id, kind, waited_s FROM censored_latencies").fetchall()
    assert all(latency_s >= 2.0 and (missed, censored) == (1, 1) for latency_s, missed, censored in rounds)
    assert all((client_id, kind) == ("slow-000", "timeout") and s >= 2.0 for client_id, kind, s in misses)
    assert "missed jobs" in (tmp_path / "run" / "report.html").read_text()
    assert "missed" in finished.stdout
