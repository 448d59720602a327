"""Clients that are started separately and stay for many runs: their lifetime budget, campaigns."""

import asyncio
import hashlib
import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pausefl import compare, load
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.runtime.client import staying as staying_module
from pausefl.runtime.client.agreement import accepted, offer_of
from pausefl.runtime.client.connecting import way_of
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.staying import StayingClients, in_run, stay
from pausefl.runtime.provenance import note_start, note_unserved
from pausefl.runtime.run import run_experiment
from pausefl.runtime.standing_fleet import StandingFleet
from pausefl.studies.campaign import Planned
from pausefl.studies.playing import _place_on_a_fleet
from pausefl_client.privacy.ledger import Ledger, verified_spend
from pausefl_process.events import MetricsServed, ProgressEvent, SpentInAllRuns
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.rounds.admission import Admission
from pausefl_server.settings import PrivacySettings
from rigs.command import Background, greatest_told, kill_group, query, rounds_in, synthetic, toml_of
from rigs.comparisons import write_run
from rigs.federation import SIZE, federation, log_of
from rigs.waiting import free_port, wait_for

ONE = toml_of(
    {
        "clients.count": 1,
        "selection.m": 1,
        "latency.delay.kind": "none",
        "workload": {"model": "synthetic", "model_bytes": 4 * SIZE},
        "privacy": {"epsilon_budget": 10.0, "eta": 0.5, "unit": "vector"},
    }
)
BUDGET = Budget(10.0, 0.5)
OWN: dict[str, Any] = {"privacy": {"epsilon_budget": 10.0, "eta": 0.5, "unit": "vector"}, "metrics": {"client_port": 0}}


def served(experiment: Experiment, rounds: int) -> dict[str, Any]:
    """The settings of a federation that plays this experiment."""
    plan = client_plan(experiment)
    privacy = PrivacySettings(BUDGET, "vector", plan.schedule)
    agreed = {"agreement": plan.agreement, "offer": offer_of(experiment)}
    return {**agreed, "privacy": privacy, "rounds": rounds, "minimum_clients": 1}


def staying(
    port: int, folder: Path, lifetime: float = math.inf, own: dict[str, Any] = OWN, client_id: str = "client-000"
) -> StayingClients:
    taken: Callable[[str], Experiment] = lambda offer: accepted(offer, own)  # noqa: E731 - typed
    return StayingClients(f"127.0.0.1:{port}", [client_id], folder, way_of(own), taken, lifetime)


def get(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


async def test_a_client_plays_runs_until_its_life_is_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs at one address. The client refuses the second, whose privacy differs from its own."""
    monkeypatch.setattr(staying_module, "LONGEST_AFTER_REFUSAL_S", 0.2)
    port, ledger = free_port(), tmp_path / "ledgers/client-000.db"
    events: asyncio.Queue[ProgressEvent] = asyncio.Queue()
    lifetime = BUDGET.spent(3) + BUDGET.spent(2) + BUDGET.epsilon(3) / 2
    clients, asked = staying(port, ledger.parent, lifetime), asyncio.Queue[str]()

    def taken(offer: str) -> Experiment:
        asked.put_nowait(offer)
        return clients.experiment_of(offer)

    task = asyncio.create_task(stay(replace(clients, experiment_of=taken), events.put_nowait))
    async with asyncio.timeout(60):
        served_at = await events.get()
        assert isinstance(served_at, MetricsServed)
        base = served_at.url.removesuffix("/metrics")
        assert await asyncio.to_thread(get, base, "/healthz") == "ok\n"
        assert await asyncio.to_thread(get, base, "/readyz") == f"waits for a run at 127.0.0.1:{port}\n"
        ours, other = parse_experiment(ONE), parse_experiment(ONE, ["privacy.eta=0.1"])
        async with federation(tmp_path / "first", port=port, **served(ours, 3)) as run:
            await run.finished()
            first = await events.get()
        async with federation(tmp_path / "other", port=port, connect_timeout_s=60.0, **served(other, 3)):
            n_refused = 0
            while n_refused < 3:
                n_refused += await asked.get() == offer_of(other)
        assert log_of(tmp_path / "other") == []
        locked = {**served(ours, 3), "connect_timeout_s": 3.0, "admission": Admission(ids=frozenset())}
        async with federation(tmp_path / "locked", port=port, **locked) as run:
            with pytest.raises(ExceptionGroup):
                await run.finished()
            locked_out = await events.get()  # once, however often the client is refused
        # The end of budgets takes as long as connect_timeout_s.
        until_spent = {**served(ours, 10), "rejoin_timeout_s": 0.5, "connect_timeout_s": 5.0}
        async with federation(tmp_path / "last", port=port, **until_spent) as run:
            result = await run.finished()
            assert (result.state.round, result.outcome) == (2, "budgets_spent")
            last = await events.get()
        metrics = await asyncio.to_thread(get, base, "/metrics")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert isinstance(first, SpentInAllRuns)
    assert isinstance(locked_out, SpentInAllRuns)
    assert isinstance(last, SpentInAllRuns)
    assert (first.released, first.epsilon) == pytest.approx((3, BUDGET.spent(3)))
    assert (last.released, last.epsilon_lifetime) == (5, lifetime)
    in_the_logs = sum(o.epsilon for name in ("first", "last") for r in log_of(tmp_path / name) for o in r.observations)
    assert last.epsilon == pytest.approx(in_the_logs) == pytest.approx(verified_spend(ledger).epsilon)
    told = re.sub(r',run="[^"]*"', "", metrics)
    assert f'pausefl_host_epsilon_all_runs{{client="client-000",unit="vector"}} {last.epsilon}' in told
    refused, _ = (message for message in caplog.messages if "takes no part" in message)  # each is logged once
    assert "privacy.eta is 0.5 here, 0.1 there; to agree: --set privacy.eta=0.1" in refused


def broken(*_: object) -> None:
    raise ValueError("no such backbone")


async def test_neither_a_client_locked_out_nor_a_model_of_ones_own_ends_clients_that_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the first client's token was refused for all of its process: no other asked for the experiment."""
    port, ids, digest = free_port(), ["client-000", "client-001"], hashlib.sha256(b"client-001").digest()
    for client_id in ids:
        (tmp_path / client_id).write_text(client_id)
    of_own = {"workload": {"model": f"{__name__}:broken"}, "admission": {"token": f"{tmp_path}/{{client_id}}"}}
    clients = replace(staying(port, tmp_path, own={**OWN, **of_own}), client_ids=ids)
    task = asyncio.create_task(stay(clients, lambda _: None))
    two, admitted = served(parse_experiment(ONE, {"clients.count": 2}), 1), Admission(tokens={"client-001": digest})
    async with federation(tmp_path / "run", port=port, connect_timeout_s=2.0, admission=admitted, **two) as run:
        with pytest.raises(ExceptionGroup):  # no client came
            await run.finished()
    assert task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "takes no part: ValueError: no such backbone (" in caplog.text


async def test_no_offer_ends_clients_that_stay_or_forges_lines_of_their_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered, forged = json.loads(offer_of(parse_experiment(ONE))), "\x1b[2J\nforged line"
    changes: list[dict[str, Any]] = [{"epochs": 10**400}, {"training": {"kind": []}}, {"x" * 9999: 1}, {}]
    texts = (json.dumps({**offered, "workload": offered["workload"] | change}) for change in changes)
    offers = [pb.ExperimentOffer(experiment=text, run_id=forged) for text in texts]
    monkeypatch.setattr(staying_module, "fetch_offer", AsyncMock(side_effect=[*offers, asyncio.CancelledError]))
    monkeypatch.setattr(staying_module, "LONGEST_AFTER_REFUSAL_S", 0.0)
    monkeypatch.setattr(staying_module, "play_over_grpc", AsyncMock(side_effect=PauseflError("no server")))
    caplog.set_level("INFO", "pausefl.client")
    Ledger(tmp_path / "client-000.db", BUDGET, unit="vector").close()
    with pytest.raises(asyncio.CancelledError):
        await stay(staying(1, tmp_path), lambda _: None)
    assert [message for message in caplog.messages if not message.isprintable() or len(message) > 1200] == []
    assert sum("takes no part" in message for message in caplog.messages) == 3


@pytest.mark.parametrize(
    ("own", "lifetime", "message"),
    [
        ({"privacy": {"enabled": False}}, 5.0, "--epsilon-lifetime 5: goes with privacy.enabled = true"),
        ({"privacy": {"ledger_dir": "there"}}, math.inf, "privacy.ledger_dir = .*: goes without --stay"),
    ],
)
def test_a_life_without_a_budget_of_its_own_is_refused(own: dict[str, Any], lifetime: float, message: str) -> None:
    plan = client_plan(parse_experiment(ONE, {f"privacy.{key}": value for key, value in own["privacy"].items()}))
    with pytest.raises(ConfigError, match=message):
        in_run(plan, "run", staying(1, Path(), lifetime, own))


PRIVACY = {"epsilon_budget": 30.0, "unit": "vector"}
KEYS = {"clients.minimum": 2, "privacy": PRIVACY, "metrics.enabled": False}


@pytest.mark.slow
async def test_a_campaign_that_was_killed_goes_on_with_the_clients_that_stayed(
    tmp_path: Path, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pausefl.client")
    config = synthetic(tmp_path, rounds=12, clients=3, train_s=0.03, more=KEYS)
    port, told = free_port(), list[SpentInAllRuns]()
    folder, ledgers = tmp_path / "comparison", tmp_path / "ledgers"
    fleet = ["--fleet", f"127.0.0.1:{port}"]
    begin = ["compare", config, "--policies", "random,pause", "--run-dir", folder, *fleet]

    def note(event: Any) -> None:
        if isinstance(event, SpentInAllRuns):
            told.append(event)

    def come(client_id: str) -> "asyncio.Task[None]":
        return asyncio.create_task(stay(staying(port, ledgers, 1000.0, {"privacy": PRIVACY}, client_id), note))

    def begun() -> list[Path]:
        return sorted(folder.glob("*/run.db"))

    clients = [come("client-000"), come("client-001")]
    campaign = background(*begin)
    await asyncio.to_thread(wait_for, lambda: begun() and rounds_in(begun()[0].parent) > 4, "rounds", running=campaign)
    (first,) = (path.parent for path in begun())
    kill_group(campaign)
    committed = query(first, "SELECT round, chosen FROM rounds")
    campaign = background("compare", "--resume", folder, *fleet)
    await asyncio.to_thread(wait_for, lambda: len(begun()) == 2, "the second run", running=campaign)
    clients.append(come("client-002"))
    assert await asyncio.to_thread(campaign.wait, 100) == 0, (tmp_path / "output").read_text()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    (second,) = (path.parent for path in begun() if path.parent != first)
    assert query(first, "SELECT round, chosen FROM rounds")[: len(committed)] == committed, "nothing committed is lost"
    assert (rounds_in(first), rounds_in(second)) == (12, 12)
    summaries = {run_dir: json.loads((run_dir / "summary.json").read_text()) for run_dir in (first, second)}
    assert "client-000: all rounds done; runs that follow here: 1" in caplog.messages
    assert (summaries[first]["absent_clients"], len(summaries[first]["starts"])) == (["client-002"], 2)
    assert f"{first.name}: without client-002" in (tmp_path / "output").read_text()
    assert query(first, "SELECT DISTINCT detail FROM events WHERE kind = 'joined'") == [("127.0.0.1",)]
    for client_id in ("client-000", "client-001", "client-002"):
        path = ledgers / f"{client_id}.db"
        assert verified_spend(path).released == sum(greatest_told(run, client_id)[0] for run in (first, second))
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
    note_unserved(there)  # the results could not be written, after rounds with these clients
    fleet = StandingFleet("127.0.0.1:50051")
    assert fleet.serve(parse_experiment("")).server.port == 50051
    with pytest.raises(ConfigError, match=rf"was played by clients of this machine.* pausefl run --resume {here}$"):
        run_experiment(parse_experiment(""), here, lambda _: None, resume=True, fleet=fleet)
    on_the_fleet = rf"pausefl run --resume {there} --fleet 0\.0\.0\.0:50051$"
    with pytest.raises(ConfigError, match=rf"there: was served to clients elsewhere.* {on_the_fleet}"):
        run_experiment(parse_experiment(""), there, lambda _: None, resume=True)
