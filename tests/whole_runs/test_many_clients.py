"""Many clients in one process or in many: their shares, the number that compute at once, and slots."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import takes_no_time
from pausefl.runtime.client.slots import claimed_clients
from pausefl_client.training.pace import TrainingPace, pace
from pausefl_client.training.trainer_pool import TrainerPool
from pausefl_client.training.withdrawal import Withdrawal, Withdrawn, withdrawable
from pausefl_proto.errors import ConfigError
from rigs.command import played, query, synthetic
from rigs.session import SessionRig


@pytest.mark.parametrize(("count", "processes"), [(1, 1), (30, 30), (32, 32)])
def test_up_to_32_clients_have_a_process_each(count: int, processes: int) -> None:
    experiment = parse_experiment("", [f"clients.count={count}", "selection.m=1"])
    assert -(-count // experiment.clients_per_process) == processes


def test_more_clients_share_a_process_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = parse_experiment("", ["clients.count=1000"])
    for cores, each in ((1, 250), (2, 250), (16, 63)):
        monkeypatch.setattr("pausefl.experiment.experiment.available_cores", lambda cores=cores: cores)
        assert experiment.clients_per_process == each
    assert parse_experiment("", ["clients.count=1000", "clients.per_process=500"]).clients_per_process == 500


@pytest.mark.slow
def test_a_crowd_queues_for_its_trainer_and_says_so(tmp_path: Path) -> None:
    crowd = {"clients.per_process": 20, "selection.policy": "all"}
    played("run", synthetic(tmp_path, 6, 40, train_s=0.01, more=crowd), "--run-dir", tmp_path / "run")
    queues = "SELECT max(queue_s), min(train_s), count(*) FROM breakdown WHERE round > 1 GROUP BY round"
    rows = query(tmp_path / "run", queues)
    assert [n for *_, n in rows] == [40] * 5
    for queue_s, train_s, _ in rows:
        # The last of the 20 clients that share a trainer waits for the other 19.
        assert queue_s > 19 * 0.01 * 0.9
        assert train_s < queue_s / 4
    finished = next(line for line in (tmp_path / "run/server.log").read_text().splitlines() if "finished" in line)
    assert json.loads(finished[finished.index("{") :])["left"] == {"tasks": 0, "descriptors": 0}


def test_training_computes_on_its_own_thread_alone() -> None:
    import torch

    from pausefl.runtime.client.process import make_trainers

    experiment = parse_experiment("", ["clients.count=2", "selection.m=1"])
    before = torch.get_num_threads()
    try:
        make_trainers(client_plan(experiment).training, experiment.client_ids[:1])
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("overrides", "is_at_once"),
    [
        ((), True),
        (("workload.model_bytes=4_000_000",), False),
        (("workload.train_s=0.001",), False),
        (("privacy.enabled=true",), False),
        (('clients.groups.a={count = 4, behaviours = [{kind = "gaussian-update", scale = 1.0}]}',), False),
    ],
)
def test_only_what_takes_no_time_is_on_the_event_loops_thread(overrides: tuple[str, ...], is_at_once: bool) -> None:
    text = '[selection]\nm = 2\n[privacy]\nenabled = false\n[workload]\nmodel = "synthetic"\n'
    assert takes_no_time(client_plan(parse_experiment(text, overrides))) is is_at_once


HOUR_S = 3600.0


def begin_hour(pool: Executor) -> tuple[Withdrawal, "Future[None]"]:
    """Submit a job that waits for an hour of training without computing; returns its withdrawal and its future."""
    withdrawal = Withdrawal()

    def train() -> None:
        with withdrawable(withdrawal):
            pace().during(HOUR_S, lambda: None)

    return withdrawal, pool.submit(train)


def test_who_waits_lets_others_compute() -> None:
    with TrainerPool(1) as pool:
        hours = [begin_hour(pool) for _ in range(3)]
        assert pool.submit(lambda: 7).result(20) == 7
        for withdrawal, done in hours:
            assert not done.done()
            withdrawal.set()
            with pytest.raises(Withdrawn):
                done.result(20)
        assert pool.submit(lambda: 8).result(20) == 8


async def test_clients_that_share_a_process_wait_for_their_stated_times_side_by_side() -> None:
    with TrainerPool(1) as pool:
        slow, fast = SessionRig(executor=pool), SessionRig(executor=pool)
        slow.state_time(HOUR_S)
        async with slow.running(), fast.running():
            (await slow.server.welcome()).give_job(slow.model, 1)
            assert (await (await fast.server.welcome()).ask(fast.model, 1))[0].round == 1


@pytest.mark.parametrize("trainers", [1, 3])
def test_no_more_compute_at_once_than_there_are_trainers(trainers: int) -> None:
    """Waits that are over, or of no length, do not change this."""
    computing, most, lock = 0, 0, threading.Lock()
    all_there = threading.Barrier(trainers, timeout=20)

    def compute(pace: TrainingPace) -> None:
        nonlocal computing, most
        with lock:
            computing += 1
            most = max(most, computing)
        all_there.wait()
        with lock:
            computing -= 1
        pace.wait(0.0)
        for _ in range(2):
            pace.wait(1e-6)

    with TrainerPool(trainers) as pool:
        for done in [pool.submit(lambda: compute(pace())) for _ in range(4 * trainers)]:
            done.result(20)
    assert most == trainers


def test_one_trainer_takes_jobs_in_their_order_and_goes_on_after_one_that_failed() -> None:
    seen: list[int] = []
    with TrainerPool(1) as pool:
        failing = pool.submit(lambda: 1 / 0)
        for done in [pool.submit(seen.append, number) for number in range(20)]:
            done.result(20)
        with pytest.raises(ZeroDivisionError):
            failing.result(20)
    assert seen == list(range(20))


def test_what_was_not_begun_is_cancelled_with_the_pool() -> None:
    gate, begun = threading.Event(), threading.Event()

    def compute() -> bool:
        begun.set()
        return gate.wait(20)

    pool = TrainerPool(1)
    first, second = pool.submit(compute), pool.submit(lambda: True)
    assert begun.wait(20)
    is_cancelled = threading.Event()
    second.add_done_callback(lambda _: is_cancelled.set())
    with ThreadPoolExecutor(1) as other:
        ending = other.submit(pool.shutdown)
        assert is_cancelled.wait(20)
        gate.set()
        ending.result(20)
    assert first.result(20)
    assert second.cancelled()


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
    """A process that claims the first free slot, and the client that it gets."""
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
    """A file lock belongs to an open file, so threads compete for the folder as processes do."""
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
        assert (first, last) == (CLIENTS[:2], CLIENTS[4:])


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
    with pytest.raises(ConfigError, match="cannot be written"), claimed_clients(CLIENTS, None, 1, tmp_path / "file"):
        pass
