"""Clients that outlive runs take part in one after the other, with a budget for each and one for their life."""

import asyncio
import math
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.agreement import accepted, offer_of
from pausefl.runtime.client.connecting import way_of
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.staying import StayingClients, in_run, stay
from pausefl_client.privacy.ledger import verified_spend
from pausefl_process.events import MetricsServed, ProgressEvent, SpentInAllRuns
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_server.settings import PrivacySettings
from rigs.command import toml_of
from rigs.federation import SIZE, federation, log_of
from rigs.ports import free_port

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
    """What a federation is given so that it plays this experiment."""
    plan = client_plan(experiment)
    privacy = PrivacySettings(BUDGET, "vector", plan.schedule)
    agreed = {"agreement": plan.agreement, "offer": offer_of(experiment)}
    return {**agreed, "privacy": privacy, "rounds": rounds, "minimum_clients": 1}


def staying(port: int, folder: Path, lifetime: float = math.inf, own: dict[str, Any] = OWN) -> StayingClients:
    taken: Callable[[str], Experiment] = lambda offer: accepted(offer, own)  # noqa: E731
    return StayingClients(f"127.0.0.1:{port}", ["client-000"], folder, way_of(own), taken, lifetime)


def get(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


async def test_a_client_plays_runs_until_its_life_is_spent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three runs at one address. The client refuses the second, whose privacy is not its own."""
    port, ledger = free_port(), tmp_path / "ledgers/client-000.db"
    events: asyncio.Queue[ProgressEvent] = asyncio.Queue()
    lifetime = BUDGET.spent(3) + BUDGET.spent(2) + BUDGET.epsilon(3) / 2
    task = asyncio.create_task(stay(staying(port, ledger.parent, lifetime), events.put_nowait))
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
        async with federation(tmp_path / "other", port=port, connect_timeout_s=2.0, **served(other, 3)) as run:
            with pytest.raises(ExceptionGroup):  # nobody came
                await run.finished()
        async with federation(tmp_path / "last", port=port, rejoin_timeout_s=0.5, **served(ours, 10)) as run:
            assert (await run.finished()).state.round == 2
            last = await events.get()
        metrics = await asyncio.to_thread(get, base, "/metrics")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert isinstance(first, SpentInAllRuns)
    assert isinstance(last, SpentInAllRuns)
    assert first.released == 3
    assert first.epsilon == pytest.approx(BUDGET.spent(3))
    assert (last.released, last.epsilon_lifetime) == (5, lifetime)
    in_the_logs = sum(o.epsilon for name in ("first", "last") for r in log_of(tmp_path / name) for o in r.observations)
    assert last.epsilon == pytest.approx(in_the_logs) == pytest.approx(verified_spend(ledger).epsilon)
    told = re.sub(r',run="[^"]*"', "", metrics)
    assert f'pausefl_host_epsilon_all_runs{{client="client-000",unit="vector"}} {last.epsilon}' in told
    refused = [r.getMessage() for r in caplog.records if "takes no part" in r.getMessage()]
    assert len(refused) == 1, "it says once what it does not take over, however often it is offered"
    assert "privacy.eta is 0.5 here, 0.1 there; to agree: --set privacy.eta=0.1" in refused[0]


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
