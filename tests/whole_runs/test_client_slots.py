"""`pausefl client --slot`: no two processes are the same client; after a crash the next goes on with its ledger."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pausefl.runtime.client.slots import claimed_clients
from pausefl_proto.errors import ConfigError
from rigs.command import PAUSEFL, synthetic
from rigs.log import query

CLIENTS = [f"client-{k:03}" for k in range(5)]
HOLD = """
import sys
import threading
from pathlib import Path
from pausefl.runtime.client.slots import claimed_clients
with claimed_clients([f"client-{k:03}" for k in range(5)], None, 1, Path(sys.argv[1])) as held:
    print(*held, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds the first free slot, and the client it is."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_processes_hold_different_slots_and_a_killed_one_s_is_free_again(tmp_path: Path) -> None:
    with holder(tmp_path) as (_, first), holder(tmp_path) as (killed, second), holder(tmp_path) as (_, third):
        assert [first, second, third] == CLIENTS[:3]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with holder(tmp_path) as (_, next_one):
            assert next_one == second


def test_many_claims_at_once_are_never_the_same(tmp_path: Path) -> None:
    """A lock belongs to an open file, so threads race for the folder as processes do."""
    everybody = [f"client-{k:03}" for k in range(50)]
    everybody_holds = threading.Barrier(len(everybody))

    def claim(_: str) -> str:
        with claimed_clients(everybody, None, 1, tmp_path) as (held,):
            everybody_holds.wait(timeout=150)
            return held

    with ThreadPoolExecutor(len(everybody)) as threads:
        assert sorted(threads.map(claim, everybody)) == everybody


def test_a_slot_has_its_share_of_the_clients(tmp_path: Path) -> None:
    with claimed_clients(CLIENTS, None, 2, tmp_path) as first, claimed_clients(CLIENTS, 2, 2, tmp_path) as last:
        assert first == CLIENTS[:2]
        assert last == CLIENTS[4:]


@pytest.mark.parametrize(
    ("slot", "message"),
    [(3, "--slot 3: must be at most 2: there are 5 clients"), (1, "--slot 1: is held"), (None, "all 3 slots are held")],
)
def test_a_slot_that_cannot_be_had_is_said(slot: int | None, message: str, tmp_path: Path) -> None:
    with (
        claimed_clients(CLIENTS, None, 2, tmp_path),
        claimed_clients(CLIENTS, None, 2, tmp_path),
        claimed_clients(CLIENTS, None, 2, tmp_path),
        pytest.raises(ConfigError, match=message),
        claimed_clients(CLIENTS, slot, 2, tmp_path),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="file: cannot be written"),
        claimed_clients(CLIENTS, None, 1, tmp_path / "file"),
    ):
        pass


@pytest.mark.slow
def test_clients_that_go_by_slot_play_and_go_on_with_their_ledgers(tmp_path: Path) -> None:
    """Two runs on one ledger folder, as containers on one volume: two processes, each a client of its own."""
    for run, rounds in enumerate((3, 2)):
        play(synthetic(tmp_path, rounds, clients=2), tmp_path / f"run-{run}", tmp_path / "ledgers")
    count = "SELECT count(*) FROM releases"
    releases = {path.stem: query(path, count)[0][0] for path in (tmp_path / "ledgers").glob("*.db")}
    assert releases == dict.fromkeys(CLIENTS[:2], 5)


def play(experiment: Path, run_dir: Path, ledgers: Path) -> None:
    serve = [*PAUSEFL, "server", str(experiment), "--run-dir", str(run_dir)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        events = (json.loads(line) for line in server.stdout)
        address = next(f"127.0.0.1:{event['port']}" for event in events if event["kind"] == "ready")
        arguments = [str(experiment), "--server", address, "--slot", "auto", "--ledger-dir", str(ledgers)]
        clients = [subprocess.Popen([*PAUSEFL, "client", *arguments]) for _ in range(2)]
        assert [event["kind"] for event in events][-1] == "finished"
        assert [client.wait(30) for client in clients] == [0, 0]
