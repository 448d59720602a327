"""The whole path with real processes: `pausefl run` on digits, rounds with a quorum, and faults."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from rigs import log
from rigs.command import (
    Background,
    command_line,
    greatest_told,
    is_alive,
    kill_group,
    played,
    query,
    rounds_in,
    sets,
    summary_of,
    synthetic,
)
from rigs.waiting import wait_for

pytestmark = pytest.mark.end_to_end


@pytest.mark.slow
def test_digits_are_learnt_over_the_network(tmp_path: Path) -> None:
    keys = ["clients.count=6", "selection.m=3", "experiment.rounds=12", "latency.time_scale=0.02", "evaluation.every=4"]
    played("run", "demo", "--run-dir", tmp_path / "run", *sets(*keys))
    summary = summary_of(tmp_path / "run")
    assert (summary["rounds"], summary["privacy_unit"]) == (12, "coordinate")
    assert summary["final_accuracy"] > 0.5
    assert summary["data"] == "digits, examples: 1,200 with the clients, 297 for validation, 300 to test on"
    assert summary["data"] in (tmp_path / "run/report.html").read_text("utf-8")
    assert summary["vector_epsilon_max"] == pytest.approx(summary["max_epsilon_spent"] * summary["model_size"])
    for name in ("config.toml", "run.db", "model.safetensors", "report.html", "server.log", "clients.log"):
        assert (tmp_path / "run" / name).stat().st_size > 0, name
    parts = "round_trip_s, device_s, communication_s, drawn_s, propagation_s"
    rows = query(tmp_path / "run", f"SELECT {parts} FROM breakdown")
    assert len(rows) == 36
    for round_trip_s, device_s, communication_s, drawn_s, propagation_s in rows:
        assert 0 < device_s < round_trip_s
        assert communication_s >= drawn_s
        assert propagation_s > -0.001
    chosen = {c for (c,) in query(tmp_path / "run", "SELECT DISTINCT client_id FROM selections")}
    assert chosen == {f"client-{k:03}" for k in range(6)}
    evaluated = query(tmp_path / "run", "SELECT round FROM accuracy WHERE split = 'test' AND subset ORDER BY 1")
    assert evaluated == [(4,), (8,), (12,)]


@pytest.mark.slow
def test_a_stopped_client_is_measured_and_its_round_is_suspect(tmp_path: Path, background: Background) -> None:
    """Delays are 0. A client stopped for half a second takes at least that long, and reports the stop itself."""
    run_dir, keys = tmp_path / "run", {"selection.policy": "all", "host.timer_overshoot_s": 0.25}
    process = background("run", synthetic(tmp_path, 100_000, 2, train_s=0.1, more=keys), "--run-dir", run_dir)
    wait_for(lambda: rounds_in(run_dir) >= 5, "five rounds", running=process)
    family = psutil.Process(process.pid).children(recursive=True)
    # A forked client is a child of the fork server and has the same command line.
    victim = next(p for p in family if "forkserver" in command_line(p) and p.ppid() != process.pid)
    victim.suspend()
    wait_for(lambda: victim.status() == psutil.STATUS_STOPPED, "the client to stop")
    time.sleep(0.5)  # the half second that must be measured
    victim.resume()
    before = rounds_in(run_dir)
    wait_for(lambda: rounds_in(run_dir) > before + 2, "further rounds", running=process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    columns = "round, attempt, count(*), max(drawn_s), max(round_trip_s), round_latency_s"
    touched = "FROM rounds JOIN breakdown USING (round) GROUP BY round HAVING max(round_trip_s) >= 0.5"
    rounds = query(run_dir, f"SELECT {columns} {touched}")
    assert rounds
    for _, attempt, answers, drawn_s, longest_s, latency_s in rounds:
        assert (attempt, answers, drawn_s) == (1, 2, 0), "each client answered once, and the first attempt was the last"
        assert latency_s == pytest.approx(longest_s, abs=1e-9)
    suspect = query(run_dir, "SELECT round FROM suspect_rounds WHERE reason = 'clients timer_overshoot_s'")
    assert {number for (number,) in suspect} & {number for number, *_ in rounds}


def constant(seconds: float) -> dict[str, object]:
    return {"kind": "constant", "value_s": seconds}


def experiment(folder: Path, rounds: int, **server: object) -> Path:
    """Two fast clients and a slow one. The slow client trains and is charged at once, but its update is delayed."""
    keys = {
        "clients.groups": {"fast": {"count": 2}, "slow": {"count": 1}},
        "selection.policy": "all",
        "latency.delay.kind": None,
        "latency.down": constant(0.0),
        "latency.up": constant(0.1),
        "latency.groups": [{"clients": "slow-000", "down": constant(0.0), "up": constant(0.35)}],
        "metrics.enabled": False,
        "server": server,
    }
    return synthetic(folder, rounds, clients=3, m=3, more=keys)


def charged_and_told(run_dir: Path, client_id: str) -> tuple[int, int]:
    """The number of releases in a client's own ledger, and in the server's log."""
    released = log.query(run_dir / f"ledgers/{client_id}.db", "SELECT count(*) FROM releases")[0][0]
    return int(released), greatest_told(run_dir, client_id)[0]


@pytest.mark.parametrize("late", ["drop", "buffer"])
@pytest.mark.slow
def test_a_quorum_ends_rounds_and_late_updates_are_counted(tmp_path: Path, late: str) -> None:
    done = played("run", experiment(tmp_path, rounds=20, quorum=0.6, late=late), "--run-dir", tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert (summary["rounds"], summary["missed_jobs"], summary["censored_rounds"]) == (20, {}, 0)
    assert (summary["unneeded_jobs"], summary["rejected_updates"]) == (20, 0)
    assert summary["late_updates"] >= 2
    assert (summary["merged_updates"] >= 1) == (late == "buffer")
    assert "not waited for" in done.stdout
    assert "not waited for" in (tmp_path / "run/report.html").read_text("utf-8")
    # Each job of the slow client was charged and late, or withdrawn uncharged. The last one may still be open.
    charged, told = charged_and_told(tmp_path / "run", "slow-000")
    assert told <= charged <= min(told + 1, 19)
    for client_id in ("fast-000", "fast-001"):
        assert charged_and_told(tmp_path / "run", client_id) == (20, 20)


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
        charged, told = charged_and_told(run_dir, client_id)
        assert told <= charged <= told + 1
    for rows, number in (("observations", "participation"), ("events WHERE kind = 'merged'", "released")):
        assert query(run_dir, f"SELECT 1 FROM {rows} GROUP BY client_id, {number} HAVING count(*) > 1") == []
    fates = "SELECT kind, count(*) FROM events WHERE kind IN ('late', 'merged', 'dropped') GROUP BY 1"
    counted = {str(kind): int(n) for kind, n in query(run_dir, fates)}
    assert counted["late"] == counted["merged"] + counted.get("dropped", 0), "each kept update has one fate"
