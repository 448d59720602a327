"""Many clients in one process: how they are shared out, what they share, and what waiting for each other costs."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import trainer_pool
from rigs.command import played, query, synthetic


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
        # The last of the 20 that share a trainer waits for the 19 before it.
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
            assert executor.submit(threading.get_ident).result() != threading.get_ident()
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
    experiment = parse_experiment(
        '[selection]\nm = 2\n[privacy]\nenabled = false\n[workload]\nmodel = "synthetic"\n', overrides
    )
    with trainer_pool(client_plan(experiment)) as pool:
        assert (pool is None) is is_at_once
        assert pool is None or pool.submit(threading.get_ident).result() != threading.get_ident()
