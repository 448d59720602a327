"""kill -9 of either side at any instant never under-counts: both ledgers against the bytes that really left.

Twenty kills here; `make test-crash` (PAUSEFL_KILLS=200) does more of the same. A kill does not test fsync: that the
disk was asked, before the first byte left, is tested in test_ledger.py and test_release.py.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl_proto.wire import digest
from rigs.command import greatest_told, toml_of
from rigs.log import query
from rigs.process_federation import SERVER, ProcessFederation
from rigs.wiretap import Wiretap

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("PAUSEFL_KILLS", "20"))
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
STEPS = [pytest.param((20_000, "asynchronous"), id="asynchronous")]


@pytest.fixture
def federation(request: pytest.FixtureRequest, tmp_path: Path, wiretap: Wiretap) -> Iterator[ProcessFederation]:
    (tmp_path / "run").mkdir()
    model_bytes, mode = request.param
    keys = {**EXPERIMENT, "server.mode": mode, "workload.model_bytes": model_bytes}
    experiment = parse_experiment(toml_of(keys))
    federation = ProcessFederation(experiment, tmp_path / "run", wiretap)
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
        time.sleep(rng.uniform(0.0, 0.003))  # not a wait: anywhere between two messages
        federation.kill(victim)
        federation.start(victim)
    # In peace: what is on its way is reconciled.
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
    twice = "SELECT client_id, participation FROM observations GROUP BY 1, 2 HAVING count(*) > 1"
    assert query(run_db, twice) == []


@pytest.mark.parametrize("federation", SIZES, indirect=True)
def test_a_torn_model_costs_another_attempt(federation: ProcessFederation, tmp_path: Path, wiretap: Wiretap) -> None:
    """Its clients have answered the first attempt, and forgotten the bytes: they release afresh, and are charged."""
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
        ledger = tmp_path / f"run/ledgers/{client_id}.db"
        spent = query(ledger, "SELECT max(participation) FROM releases")
        assert spent == [greatest_told(run_db.parent, client_id)[:1]]
