"""What stops and sleeps of real processes touched is marked, and nothing else; the virtual clock knows none."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rigs.command import PAUSEFL, query, rounds_in, sets
from rigs.waiting import wait_for
from stops.play import play, stops

pytestmark = [pytest.mark.end_to_end, pytest.mark.realtime]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to make a machine seem to sleep")
async def test_what_a_stop_or_a_sleep_touched_is_marked_and_nothing_else(tmp_path: Path) -> None:
    """One of each of the server, of a client and of both at once; `python tests/stops` plays a hundred."""
    *struck, total = await play(stops(6, seed=1, shortest_s=0.4, longest_s=2.0), 1, tmp_path, is_patient=True)
    assert sum(stop["touched"] for stop in struck) >= 3
    assert [stop for stop in struck if stop["missed"]] == []
    assert (total["wrongly marked"], total["rejected"]) == ([], 0)


def test_a_stop_leaves_no_mark_on_the_virtual_clock(tmp_path: Path) -> None:
    run_dir, keys = tmp_path / "run", ("workload.model=synthetic", "clients.count=4", "selection.m=2")
    command = [*PAUSEFL, "run", "demo", "--virtual", "--run-dir", str(run_dir), *sets(*keys, "experiment.rounds=500")]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for rounds in (0, 100):
        wait_for(lambda: rounds_in(run_dir) > rounds, "a round", running=run)  # noqa: B023 - called at once
        run.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # how long it is stopped
        run.send_signal(signal.SIGCONT)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert rounds_in(run_dir) == 500
    for view in ("suspect_rounds", "suspect_observations"):
        assert query(run_dir, f"SELECT * FROM {view}") == []
