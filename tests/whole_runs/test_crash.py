"""kill -9 of either side at any instant never under-counts: both ledgers against the bytes that really left.

Twenty kills here; `make test-crash` plays 200 (PAUSEFL_KILLS=200). A kill does not test fsync: test_ledger.py and
test_release.py check that fsync is called before the first byte leaves.
"""

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.experiment.experiment import Experiment, parse_experiment, with_values
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_client_process
from pausefl.runtime.plan import plan_of
from pausefl.runtime.server.process import serve_run, work_for_fleet
from pausefl_process.events import Ready
from pausefl_proto.wire import digest
from rigs.command import greatest_told, toml_of
from rigs.log import query
from rigs.wiretap import Wiretap

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("PAUSEFL_KILLS", "14"))
EXPERIMENT = {
    "experiment.rounds": 1_000_000,
    "clients": {"count": 3, "connect_timeout_s": 60.0},
    "selection": {"policy": "random", "m": 2},
    "privacy": {"epsilon_budget": 1000.0, "eta": 0.0001},
    "latency.delay.kind": "none",
    "workload.model": "synthetic",
    "server.rejoin_timeout_s": 0.3,
    "asynchronous": {"concurrency": 3, "buffer": 2},
    "metrics.enabled": False,
}
SIZES = [pytest.param((20_000, "rounds"), id="one frame, kept on disk"), pytest.param((1_200_000, "rounds"), id="two")]
STEPS = [
    pytest.param((20_000, "asynchronous"), id="asynchronous"),
    pytest.param((20_000, "fedat"), id="fedat", marks=pytest.mark.slow),
]
TIERS = {
    "server.mode": "asynchronous",
    "asynchronous": {"concurrency": 3, "buffer": 1, "rule": "fedat"},
    "selection": {"policy": "fedat", "fedat": {"tiers": 3}},
}
PATIENCE_S = 60.0
SERVER = "server"


class ProcessFederation:
    """A server and three clients, a process each, with a tap between them. Each process that is killed is restarted."""

    def __init__(self, experiment: Experiment, folder: Path, wiretap: Wiretap) -> None:
        self.experiment = experiment
        self._folder = folder
        self._wiretap = wiretap
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pausefl.runtime.client.process", "pausefl.runtime.server.process"])
        self._processes: dict[str, Any] = {}
        self._listening = threading.Event()

    def start(self, name: str) -> None:
        """Start a client, or the server, which resumes the run; returns when the server listens."""
        if name == SERVER:
            self._listening.clear()
            ours, theirs = self._context.Pipe()
            plan = plan_of(self.experiment, self._folder.name).server
            self._start(name, work_for_fleet, partial(serve_run, plan, self._folder), self._folder, theirs)
            theirs.close()
            threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
            assert self._listening.wait(PATIENCE_S), "the server did not come up"
        else:
            address = f"127.0.0.1:{self._wiretap.port}"
            self._start(name, run_client_process, client_plan(self.experiment), [name], address, self._folder)

    def kill(self, name: str) -> None:
        """Kill a process by SIGKILL, and wait for its end."""
        self._processes[name].kill()
        self._processes[name].join()

    def finish(self, rounds: int) -> None:
        """Start the server to play up to this round, and wait until all processes have ended with status 0."""
        self.experiment = with_values(self.experiment, "experiment", rounds=rounds)
        self.start(SERVER)
        for process in self._processes.values():
            process.join(PATIENCE_S)
        said = [path.read_text("utf-8")[-1000:] for path in self._folder.glob("*.log")]
        assert {process.exitcode for process in self._processes.values()} == {0}, said

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()

    def _start(self, name: str, function: Any, *arguments: Any) -> None:
        self._processes[name] = self._context.Process(target=function, args=arguments, name=name)
        self._processes[name].start()

    def _listen(self, events: "Connection[Any, Any]") -> None:
        """Read the server's events: it would block if the pipe were full."""
        try:
            while True:
                event = events.recv()
                if isinstance(event, Ready):
                    self._wiretap.upstream = f"127.0.0.1:{event.port}"
                    self._listening.set()
        except (EOFError, OSError):
            events.close()


@pytest.fixture
def federation(request: pytest.FixtureRequest, tmp_path: Path, wiretap: Wiretap) -> Iterator[ProcessFederation]:
    (tmp_path / "run").mkdir()
    model_bytes, mode = request.param
    keys = {**EXPERIMENT, **(TIERS if mode == "fedat" else {"server.mode": mode}), "workload.model_bytes": model_bytes}
    federation = ProcessFederation(parse_experiment(toml_of(keys)), tmp_path / "run", wiretap)
    yield federation
    federation.end()


@pytest.mark.parametrize("federation", [*SIZES, *STEPS], indirect=True)
def test_no_kill_at_any_instant_under_counts(federation: ProcessFederation, tmp_path: Path, wiretap: Wiretap) -> None:
    everybody = [SERVER, *federation.experiment.client_ids]
    rng = random.Random(1)
    for name in everybody:
        federation.start(name)
    for _ in range(KILLS // 2):
        victim = rng.choice(everybody)
        wiretap.wait_for(rng.randint(1, 12))
        time.sleep(rng.uniform(0.0, 0.003))  # so that the kill can strike anywhere between two messages
        federation.kill(victim)
        federation.start(victim)
    # A last part without kills, in which all releases on their way are reconciled.
    run_db = tmp_path / "run/run.db"
    wiretap.wait_for(20)
    federation.kill(SERVER)
    federation.finish(query(run_db, "SELECT max(round) FROM rounds")[0][0] + 5)

    left = wiretap.updates()
    for client_id in federation.experiment.client_ids:
        ledger = tmp_path / f"run/ledgers/{client_id}.db"
        charged = dict(query(ledger, "SELECT participation, update_digest FROM releases"))
        assert list(charged) == list(range(1, len(charged) + 1))
        assert len(left[client_id]) > 0
        for result, data in left[client_id]:
            assert charged[result.release.participation] == result.update.digest
            if len(data) == result.update.size_bytes:
                assert digest(np.frombuffer(data, "<f4")) == result.update.digest
        spent = query(ledger, "SELECT max(participation), max(epsilon_spent) FROM releases")
        assert spent == [greatest_told(run_db.parent, client_id)]
    assert query(run_db, "SELECT client_id, participation FROM observations GROUP BY 1, 2 HAVING count(*) > 1") == []


@pytest.mark.parametrize("federation", SIZES, indirect=True)
def test_a_torn_model_costs_another_attempt(federation: ProcessFederation, tmp_path: Path, wiretap: Wiretap) -> None:
    """The clients have answered the first attempt and dropped its bytes: they release anew, and are charged again."""
    run_db = tmp_path / "run/run.db"
    for name in (SERVER, *federation.experiment.client_ids):
        federation.start(name)
    wiretap.wait_for(60)
    federation.kill(SERVER)
    ((torn,),) = query(run_db, "SELECT max(round) FROM rounds")
    slot = tmp_path / f"run/checkpoints/slot-{torn % 2}.f32"
    slot.write_bytes(slot.read_bytes()[:-4])
    federation.finish(torn + 3)
    played = "SELECT attempt, count(*) FROM rounds JOIN observations USING (round) WHERE round = ? GROUP BY 1"
    assert query(run_db, played.replace("?", str(torn))) == [(2, 2)]
    assert query(run_db, played.replace("?", str(torn + 1))) == [(1, 2)]
    for client_id in federation.experiment.client_ids:
        spent = query(tmp_path / f"run/ledgers/{client_id}.db", "SELECT max(participation) FROM releases")
        assert spent == [greatest_told(run_db.parent, client_id)[:1]]
