"""A client process that is killed in mid-run is started again, also where clients come and go."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from rigs.command import Background, query, rounds_in, synthetic
from rigs.waiting import wait_for

pytestmark = pytest.mark.end_to_end

GROUPS = {
    "clients.count": 2,
    "clients.groups.original.count": 1,
    "clients.groups.victim.count": 1,
    "selection.policy": "all",
    "metrics.enabled": False,
}
COMING = {"clients.count": 3, "clients.groups.late.count": 1, "clients.groups.late.join_round": 3}


def process_of(client_id: str, run: int) -> psutil.Process | None:
    """The process that has this client's ledger open."""
    for process in psutil.Process(run).children(recursive=True):
        try:
            if any(Path(file.path).name == f"{client_id}.db" for file in process.open_files()):
                return process
        except psutil.Error:
            continue
    return None


@pytest.mark.parametrize("coming", [{}, COMING], ids=["all are there", "some come later"])
def test_a_killed_client_process_is_back_soon(tmp_path: Path, background: Background, coming: dict[str, int]) -> None:
    config, run_dir = synthetic(tmp_path, 100_000, m=1, train_s=0.02, more=GROUPS | coming), tmp_path / "run"
    run = background("run", config, "--run-dir", run_dir)
    wait_for(lambda: rounds_in(run_dir) >= 5, "five rounds", running=run)
    victim = process_of("victim-000", run.pid)
    assert victim is not None
    killed_in = rounds_in(run_dir)
    victim.kill()

    def is_back() -> bool:
        joined = query(
            run_dir,
            f"SELECT round FROM events WHERE kind = 'joined' AND client_id = 'victim-000' AND round > {killed_in}",
        )
        ((chosen,),) = query(run_dir, "SELECT chosen FROM rounds ORDER BY round DESC LIMIT 1")
        return bool(joined) and "victim-000" in json.loads(str(chosen))

    wait_for(is_back, "the client to take part again", 20.0, running=run)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(30) in (0, 130)
    # Of messages that come together the terminal shows some: the log has all.
    assert "pausefl-victim-000 ended (exit code -9)" in (run_dir / "clients.log").read_text()
