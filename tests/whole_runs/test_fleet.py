"""Campaigns on clients that come from outside and stay: runs in a drawn order, a kill, a client that comes late."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pausefl import compare, load
from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.agreement import accepted
from pausefl.runtime.client.connecting import way_of
from pausefl.runtime.client.staying import StayingClients, stay
from pausefl.runtime.fleet import SILENT
from pausefl.runtime.provenance import note_start
from pausefl.runtime.run import run_experiment
from pausefl.runtime.standing_fleet import StandingFleet
from pausefl.studies.campaign import Planned
from pausefl.studies.playing import _place_on_a_fleet
from pausefl_client.privacy.ledger import verified_spend
from pausefl_process.events import SpentInAllRuns
from pausefl_proto.errors import ConfigError
from rigs.command import Background, kill_group, query, rounds_in, synthetic
from rigs.comparisons import write_run
from rigs.ports import free_port
from rigs.waiting import wait_for

PRIVACY = {"epsilon_budget": 30.0, "unit": "vector"}
KEYS = {"clients.minimum": 2, "privacy": PRIVACY, "metrics.enabled": False}
OWN: dict[str, Any] = {"privacy": PRIVACY}


def staying(client_id: str, port: int, ledgers: Path) -> StayingClients:
    return StayingClients(
        *(f"127.0.0.1:{port}", [client_id], ledgers, way_of(OWN)), lambda offer: accepted(offer, OWN), 1000.0
    )


def released_in_the_logs(folder: Path, client_id: str) -> dict[str, int]:
    """By run: how many of a client's releases the server has heard of, used or not."""
    counted = {}
    for run_dir in sorted(path for path in folder.iterdir() if (path / "run.db").exists()):
        told = f"SELECT participation FROM observations WHERE client_id = '{client_id}'"
        told += f" UNION ALL SELECT released FROM events WHERE client_id = '{client_id}'"
        ((most,),) = query(run_dir, f"SELECT max(participation) FROM ({told})")
        ((run_id,),) = query(run_dir, "SELECT value FROM meta WHERE key = 'run_id'")
        counted[str(run_id)] = int(most or 0)
    return counted


@pytest.mark.slow
async def test_a_campaign_that_was_killed_goes_on_with_the_clients_that_stayed(
    tmp_path: Path, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pausefl.client")
    config = synthetic(tmp_path, rounds=12, clients=3, train_s=0.03, more=KEYS)
    port, folder, told = free_port(), tmp_path / "comparison", list[SpentInAllRuns]()
    fleet = ["--fleet", f"127.0.0.1:{port}"]
    begin = ["compare", config, "--policies", "random,pause", "--run-dir", folder, *fleet]

    def note(event: Any) -> None:
        if isinstance(event, SpentInAllRuns):
            told.append(event)

    def come(client_id: str) -> "asyncio.Task[None]":
        return asyncio.create_task(stay(staying(client_id, port, tmp_path / "ledgers"), note))

    def played() -> list[Path]:
        return sorted(folder.glob("*/run.db"))

    clients = [come("client-000"), come("client-001")]
    campaign = background(*begin)
    await asyncio.to_thread(
        wait_for, lambda: played() and rounds_in(played()[0].parent) >= 5, "rounds", running=campaign
    )
    (first,) = (path.parent for path in played())
    kill_group(campaign)
    committed = query(first, "SELECT round, chosen FROM rounds")
    campaign = background("compare", "--resume", folder, *fleet)
    await asyncio.to_thread(wait_for, lambda: len(played()) == 2, "the second run", running=campaign)
    clients.append(come("client-002"))
    assert await asyncio.to_thread(campaign.wait, 100) == 0, (tmp_path / "output").read_text()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    (second,) = (path.parent for path in played() if path.parent != first)
    assert query(first, "SELECT round, chosen FROM rounds")[: len(committed)] == committed, "nothing committed is lost"
    assert (rounds_in(first), rounds_in(second)) == (12, 12)
    summaries = {run_dir: json.loads((run_dir / "summary.json").read_text()) for run_dir in (first, second)}
    assert "client-000: all rounds done; runs that follow here: 1" in caplog.messages
    assert summaries[first]["absent_clients"] == ["client-002"]
    assert len(summaries[first]["starts"]) == 2
    assert f"{first.name}: without client-002" in (tmp_path / "output").read_text()
    assert query(first, "SELECT DISTINCT detail FROM events WHERE kind = 'joined'") == [("127.0.0.1",)]
    for client_id in ("client-000", "client-001", "client-002"):
        counted = released_in_the_logs(folder, client_id)
        path = tmp_path / "ledgers" / f"{client_id}.db"
        assert verified_spend(path).released == sum(counted.values())
        assert [e.epsilon for e in told if e.client_id == client_id][-1] == verified_spend(path).epsilon


def test_the_order_on_a_fleet_is_drawn_within_a_seed() -> None:
    experiments = [parse_experiment("", [f"experiment.seed={seed}"]) for seed in range(1, 9)]
    drawn = []
    for experiment in experiments:
        runs = [Planned(f"{policy}-seed{experiment.experiment.seed}", experiment) for policy in ("a", "b", "c")]
        drawn += sorted(runs, key=_place_on_a_fleet)
    assert drawn == sorted(drawn, key=_place_on_a_fleet), "seed by seed"
    assert len({tuple(run.name[0] for run in drawn[i : i + 3]) for i in range(0, 24, 3)}) > 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("experiment.clock=virtual", r'^experiment\.clock = "virtual": .*; --fleet takes "real"'),
        ("latency.injection=netem", r'^latency\.injection = "netem": .*; --fleet takes "link"'),
    ],
)
def test_what_no_fleet_can_play_is_refused_before_all_is_written(tmp_path: Path, change: str, message: str) -> None:
    experiment = load("demo", [change])
    with pytest.raises(ConfigError, match=message):
        compare(experiment, ["random"], folder=tmp_path / "c", fleet="127.0.0.1:50051")
    with pytest.raises(ConfigError, match=r"^--fleet nowhere: must be HOST:PORT"):
        compare(experiment, ["random"], folder=tmp_path / "c", fleet="nowhere")
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_with_the_clients_that_hold_its_ledgers(tmp_path: Path) -> None:
    here, there = write_run(tmp_path / "here", "random", 1), write_run(tmp_path / "there", "random", 1)
    note_start(there, served=True, fleet="0.0.0.0:50051")
    fleet = StandingFleet("127.0.0.1:50051")
    with pytest.raises(
        ConfigError, match=rf"here: was played by clients of this machine.* pausefl run --resume {here}$"
    ):
        run_experiment(parse_experiment(""), here, SILENT, resume=True, fleet=fleet)
    on_the_fleet = rf"pausefl run --resume {there} --fleet 0\.0\.0\.0:50051$"
    with pytest.raises(ConfigError, match=rf"there: was served to clients elsewhere.* {on_the_fleet}"):
        run_experiment(parse_experiment(""), there, SILENT, resume=True)
