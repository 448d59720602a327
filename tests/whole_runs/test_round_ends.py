"""Whole runs, processes and all, whose rounds do not wait for every client."""

from pathlib import Path

import psutil
import pytest

from pausefl.outcomes import FAILED
from rigs import log
from rigs.command import Background, is_alive, kill_group, played, query, rounds_in, run, summary_of, synthetic
from rigs.waiting import wait_for

pytestmark = pytest.mark.end_to_end


def constant(seconds: float) -> dict[str, object]:
    return {"kind": "constant", "value_s": seconds}


def experiment(folder: Path, rounds: int, fast_up_s: float = 0.1, slow_up_s: float = 0.35, **server: object) -> Path:
    """Two fast clients and a slow one, which trains and pays at once; its update is held back."""
    slow = {"clients": "slow-000", "down": constant(0.0), "up": constant(slow_up_s)}
    keys = {
        "clients.groups": {"fast": {"count": 2}, "slow": {"count": 1}},
        "selection.policy": "all",
        "latency.delay.kind": None,
        "latency.down": constant(0.0),
        "latency.up": constant(fast_up_s),
        "latency.groups": [slow],
        "metrics.enabled": False,
        "server": server,
    }
    return synthetic(folder, rounds, clients=3, m=3, more=keys)


def charged(run_dir: Path, client_id: str) -> int:
    """Releases in a client's own ledger."""
    return int(log.query(run_dir / f"ledgers/{client_id}.db", "SELECT count(*) FROM releases")[0][0])


def mirrored(run_dir: Path, client_id: str) -> int:
    """Releases of a client in the server's log."""
    union = f"""SELECT participation AS i FROM observations WHERE client_id = '{client_id}'
        UNION ALL SELECT released FROM events WHERE client_id = '{client_id}'"""
    return int(query(run_dir, f"SELECT coalesce(max(i), 0) FROM ({union})")[0][0])


@pytest.mark.parametrize("late", ["drop", "buffer"])
@pytest.mark.slow
def test_a_quorum_ends_rounds_and_late_updates_are_counted(tmp_path: Path, late: str) -> None:
    config = experiment(tmp_path, rounds=20, quorum=0.6, late=late)
    done = played("run", config, "--run-dir", tmp_path / "run")
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
def test_a_killed_run_keeps_its_buffered_updates_epsilon(tmp_path: Path, background: Background) -> None:
    config, run_dir = experiment(tmp_path, rounds=60, quorum=0.6, late="buffer"), tmp_path / "run"
    process = background("run", config, "--run-dir", run_dir)
    wait_for(lambda: rounds_in(run_dir) >= 12, "twelve rounds", running=process)
    family = psutil.Process(process.pid).children(recursive=True)
    kill_group(process)
    wait_for(lambda: not any(is_alive(child) for child in family), "every process to end", 20)
    assert rounds_in(run_dir) < 60
    played("run", "--resume", run_dir)
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
    late = {"fast_up_s": 30.0, "slow_up_s": 30.0}
    config = experiment(tmp_path, rounds=5, **late, round_timeout_s=0.5, rounds_without_update_max=2)
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
    config, run_dir = experiment(tmp_path, rounds=2, slow_up_s=30.0, round_timeout_s=2.0), tmp_path / "run"
    done = played("run", config, "--run-dir", run_dir, "--set", "privacy.enabled=false")
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
