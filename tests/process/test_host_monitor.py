"""Host-interference checks: stalls, late timers and stolen time are detected, and affected rounds are marked."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pausefl
from pausefl_process.host_monitor import HostMonitor, HostReport, Peaks, StealMeter, TurnMeter
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.connections.exchange import host_of
from pausefl_server.host_limits import DOUBTS, OVERDUE, HostLimits, still_s
from pausefl_server.records import LogEvent, RoundRecord, Timing
from pausefl_server.storage.store import Store
from rigs.command import query
from rigs.experiments import small
from rigs.log import observation, record

STALL_S = 0.4
TOLERANCE_S = 0.15
"""The next probe, at most 50 ms later, sees a stall. The rest of the tolerance is for a busy machine."""
TIMING = Timing(0.5, 0.01, 0.1, 0.02, 0.15, 0.003, 0.1, 0.02, framing_s=0.001, server_wait_s=0.004)


async def probed(monitor: HostMonitor, count: int) -> None:
    async with asyncio.timeout(10.0):
        while monitor.n_probes < count:  # noqa: ASYNC110 - a probe is an event of another thread
            await asyncio.sleep(0.01)


@pytest.mark.realtime
async def test_a_blocked_event_loop_is_seen_as_lag() -> None:
    with closing(HostMonitor()) as monitor, monitor.watching():
        began_s = time.monotonic()
        time.sleep(STALL_S)  # noqa: ASYNC251 - the test blocks the loop
        report = monitor.report(began_s, STALL_S / 2)
        assert STALL_S - TOLERANCE_S < report.loop_lag_s < STALL_S + TOLERANCE_S, "not answered yet"
        assert 0 < report.compute_share <= 0.5
        await probed(monitor, 1)
        assert STALL_S - TOLERANCE_S < monitor.report(began_s, 0.0).loop_lag_s < STALL_S + TOLERANCE_S
        over_s, _ = monitor._lags_s._falling[0]
        assert monitor.report(over_s + 0.04, 0.0).loop_lag_s > STALL_S - TOLERANCE_S, "it may have delayed the start"
        later_s = time.monotonic() + 1.0
        assert monitor.report(later_s, 0.0).loop_lag_s < TOLERANCE_S, "an older stall is not this window's"


@pytest.mark.realtime
async def test_a_free_event_loop_lags_little() -> None:
    with closing(HostMonitor()) as monitor, monitor.watching():
        began_s, reports = time.monotonic(), []
        for count in range(1, 11):
            await probed(monitor, count)
            reports.append(monitor.report(time.monotonic(), 0.0).loop_lag_s)
        reports.sort()
        assert reports[5] < 0.02
        assert monitor.report(began_s, 0.0).timer_overshoot_s > 0


@pytest.mark.realtime
def test_a_stop_is_on_record_from_the_moment_it_is_over() -> None:
    """Even if the event loop runs before the monitor's thread does. Windows that begin after the stop report none."""
    program = """
import asyncio, json, time
from contextlib import closing
from dataclasses import asdict
from pausefl_process.host_monitor import HostMonitor
async def main():
    with closing(HostMonitor()) as monitor, monitor.watching():
        for _ in range(3):
            await asyncio.sleep(0.2)
            began_s = before_s = monitor.clock()
            print("watching", flush=True)
            while (now_s := time.monotonic()) - before_s < 0.3:
                before_s = now_s
                await asyncio.sleep(0.005)
            resumed_s = monitor.clock()
            while time.monotonic() < resumed_s + 0.03:
                pass
            report = monitor.report(began_s, 0.0)
            print(json.dumps([report.stopped_s, report.timer_overshoot_s, monitor.report(resumed_s, 0.0).stopped_s]))
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        for _ in range(3):
            assert said.readline() == "watching\n"
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(process.pid, signal.SIGCONT)
            stopped_s, overshoot_s, after_s = json.loads(said.readline())
            assert STALL_S - TOLERANCE_S < stopped_s < STALL_S + TOLERANCE_S
            assert overshoot_s > STALL_S - TOLERANCE_S
            assert after_s == 0.0
    assert process.wait(10) == 0


async def test_a_monitor_opens_no_file_once_it_is_made() -> None:
    """A run counts its open files at that moment, and again when it ends."""

    def held() -> int:
        return sum(os.path.realpath(file).endswith("/schedstat") for file in Path("/proc/self/fd").iterdir())

    for _ in range(10):
        with closing(HostMonitor()) as monitor, monitor.watching():
            before = held()
            await probed(monitor, 1)
            assert held() == before


class Suspended:
    """Two clocks of a process. The test sets for how long the process was stopped and the machine slept."""

    def __init__(self) -> None:
        self.stopped_s = self.slept_s = 0.0

    def awake_s(self) -> float:
        return time.monotonic() + self.stopped_s

    def real_s(self) -> float:
        return self.awake_s() + self.slept_s


@pytest.mark.parametrize("how", ["stopped", "suspended"])
async def test_a_stop_and_a_sleep_belong_to_the_windows_that_they_lie_in(how: str) -> None:
    clocks = Suspended()
    with closing(HostMonitor(clocks.awake_s, clocks.real_s)) as monitor, monitor.watching():
        await probed(monitor, 1)
        for still_s in (90.0, 30.0):  # also one that is shorter than one before
            began_s = monitor.clock()
            clocks.stopped_s += still_s if how == "stopped" else 0.0
            clocks.slept_s += still_s if how == "suspended" else 0.0
            after_s = monitor.clock()
            within, after = monitor.report(began_s, 0.0), monitor.report(after_s, 0.0)
            assert getattr(within, f"{how}_s") == pytest.approx(still_s, abs=0.2)
            assert within.stood_still_s == getattr(within, f"{how}_s"), "either a stop or a sleep"
            assert after.stood_still_s == 0.0
            assert monitor.stood_still_s(began_s, after_s) == within.stood_still_s
            assert monitor.stood_still_s(after_s, monitor.clock()) == 0.0
            assert monitor.stood_still_s(began_s, began_s) == 0.0


@pytest.mark.realtime
async def test_a_thread_that_keeps_the_interpreter_to_itself_is_load_and_no_stop() -> None:
    with closing(HostMonitor()) as monitor, monitor.watching():
        await probed(monitor, 1)  # now the monitor's thread runs, and waits for its turn
        began_s = monitor.clock()
        while monitor.clock() - began_s < 2 * STALL_S:
            sum(range(30_000_000))  # without a turn for other threads
        report = monitor.report(began_s, 0.0)
        assert report.timer_overshoot_s > 0.05
        assert report.stopped_s == 0.0


def test_a_thread_s_turn_is_what_it_ran_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not count says 0: then the process's CPU time is taken."""
    monkeypatch.setattr(os, "open", lambda *_: os.dup(0))
    monkeypatch.setattr(time, "process_time", lambda: 4.0)
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.005)
    for counts, spent_s in ((b"1000000000 2000000000 3\n", 3.015), (b"0 0 0\n", 4.0)):
        monkeypatch.setattr(os, "pread", lambda *_, counts=counts: counts)
        with closing(TurnMeter()) as turns:
            assert turns._read_s() == spent_s


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(-1, 31))
def test_peaks_are_the_greatest_since_then(values: list[int], since: int) -> None:
    peaks = Peaks()
    for at, value in enumerate(values):
        peaks.add(at, value)
    assert peaks.since(since) == max(values[max(since, 0) :], default=0)


async def test_the_event_loop_is_left_alone_while_nobody_watches_but_stops_are_seen() -> None:
    clocks = Suspended()
    with closing(HostMonitor(clocks.awake_s, clocks.real_s)) as monitor:
        with monitor.watching():
            await probed(monitor, 1)
        clocks.stopped_s = 2.0  # longer than it keeps probing without watchers
        stopped_s, n_probes = monitor.report(0.0, 0.0).stopped_s, monitor.n_probes
        assert stopped_s == pytest.approx(2.0, abs=0.2)
        clocks.stopped_s = 4.0
        assert monitor.report(0.0, 0.0).stopped_s == pytest.approx(4.0, abs=0.4)
        assert monitor.n_probes <= n_probes + 1, "at most one was under way"


def test_steal_is_a_share_of_all_ticks_of_the_last_second(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 800 0 0 0 50 7 0\ncpu0 ...\n")
    meter = StealMeter(stat)
    assert meter.share(10.0) == 0.0
    stat.write_text("cpu  150 0 50 820 0 0 0 80 9 0\ncpu0 ...\n")
    assert [meter.share(now_s) for now_s in (10.9, 11.0)] == [0.0, 30 / 100], "not a second yet, and then one"
    stat.unlink()
    assert meter.share(12.5) == 30 / 100, "as it was while it cannot be read: an error would end the monitor's thread"
    stat.write_text("cpu  250 0 50 820 0 0 0 80 7 0\ncpu0 ...\n")
    assert meter.share(14.0) == 0.0
    assert StealMeter(tmp_path / "none").share(0.0) == 0.0


def test_each_limit_is_a_doubt_of_its_own_with_advice() -> None:
    limits = HostLimits()
    assert limits.of_server(HostReport()) == limits.of_client(HostReport(), "round_trip") == []
    for name in (field.name for field in fields(HostReport)):
        bad = HostReport(**{name: 0.9})
        assert (limits.of_server(bad), limits.of_client(bad, "round_trip")) == ([f"server {name}"], [f"clients {name}"])
        assert limits.teaches(limits.of_server(bad)) == (name not in ("stopped_s", "suspended_s"))
        assert DOUBTS[f"clients {name}"].startswith(f"client hosts, {name}: ")


def test_what_clients_compute_spoils_no_communication_time_nor_a_drawn_total_and_advice_fits_its_host() -> None:
    """Total mode allows neither another signal nor a time scale, so advice for the server names neither."""
    busy = HostReport(compute_share=0.9)
    assert HostLimits().of_client(busy, "communication") == []
    assert HostLimits().of_client(busy, "round_trip", total_delays=True) == []
    assert "choose fewer clients" in DOUBTS["server compute_share"]
    assert "time_scale" not in DOUBTS["server compute_share"]
    assert 'latency.signal = "communication"' in DOUBTS["clients compute_share"]


def doubted_round() -> RoundRecord:
    doubts, theirs = ("clients loop_lag_s", "clients stopped_s"), HostReport(0.1, 0.2, 0.3, 0.4, 0.5, 0.0)
    seen = observation("c", timing=TIMING, host=theirs, suspect=doubts, teaches=False)
    joined = (LogEvent("joined", "c", n_examples=1),)
    return record(1, seen, events=joined, host=HostReport(0.01, 0.02, 0.03, 0.04), suspect=doubts)


def test_a_doubt_tells_how_long_its_host_stood_still() -> None:
    still = replace(doubted_round(), host=HostReport(stopped_s=3.0, suspended_s=7.0))
    doubts = ("server stopped_s", "server suspended_s", OVERDUE, "clients stopped_s", "clients loop_lag_s")
    assert [still_s(doubt, still) for doubt in doubts] == [3.0, 7.0, 0.0, 0.5, 0.0]


def test_the_server_reads_what_a_clients_host_said_with_computing_as_a_share_of_the_round_trip() -> None:
    for said, kept in ((0.3, 0.3), (0.9, TIMING.device_s / TIMING.round_trip_s)):
        report = HostReport(0.1, 0.2, 0.3, said, 0.5, 0.6)
        result = pb.Result(host=pb.Host(**asdict(report), still_before_s=0.7))
        assert (host_of(result, TIMING), result.host.still_before_s) == (replace(report, compute_share=kept), 0.7)


def test_the_log_keeps_what_hosts_and_clocks_said(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "run.db")) as store:
        store.commit_round(said := doubted_round())
        assert store.rounds() == [said]
    hosts = query(tmp_path, "SELECT * FROM hosts ORDER BY client_id")
    assert hosts == [(1, None, *astuple(said.host)), (1, "c", *astuple(said.observations[0].host))]
    doubts = [(1, "clients loop_lag_s"), (1, "clients stopped_s")]
    assert query(tmp_path, "SELECT * FROM suspect_rounds") == doubts
    assert query(tmp_path, "SELECT * FROM suspect_observations") == [(1, "c", doubt, 0) for _, doubt in doubts]
    assert query(tmp_path, "SELECT exchange_s FROM breakdown") == [(pytest.approx(0.505),)]


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
def test_a_run_accounts_for_every_exchange_and_marks_what_it_doubts(tmp_path: Path) -> None:
    keys = {"experiment.rounds": 8, "latency.time_scale": 0.05, "host.compute_share": 0.0001}
    experiment = small({"experiment.clock": "real", "clients.count": 3, **keys})
    summary = pausefl.run(experiment, tmp_path / "run", progress=False).summary
    assert (summary["suspect_rounds"], summary["suspect_because"]["server compute_share"]["rounds"]) == (8, 8)
    assert "round 1 is suspect: the server, compute_share" in (tmp_path / "run/server.log").read_text()
    parts = "download_s, injected_down_s, queue_s, train_s, privatise_s, injected_up_s, upload_s, propagation_s"
    sql = f"SELECT exchange_s, round_trip_s, framing_s, server_wait_s, {parts} FROM breakdown"
    exchange_s, round_trip_s, framing_s, server_wait_s, *inside_s = np.array(query(tmp_path / "run", sql)).T
    np.testing.assert_allclose(np.sum(inside_s, axis=0), round_trip_s, atol=1e-12)
    np.testing.assert_allclose(framing_s + round_trip_s + server_wait_s, exchange_s, atol=1e-12)
    assert min(framing_s.min(), server_wait_s.min()) > 0
    assert (inside_s[-1] > -1e-3).all(), "the residual"
