"""Processes: the plans they get, and several clients in one process, where the end of one ends no other."""

import asyncio
import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from pausefl.bench.images import random_images
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.results.labels import label_counts
from pausefl.runtime.client.links import make_links
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import _run_session, make_trainers, run_clients_over_grpc
from pausefl.runtime.client.torch_trainers import take_first_steps
from pausefl.runtime.evaluator.model import Evaluator
from pausefl.runtime.evaluator.plan import EvaluatorPlan, evaluator_plan
from pausefl.runtime.forks import forked_client, forked_run
from pausefl.runtime.plan import plan_of
from pausefl.runtime.processes.lifetime import start
from pausefl.runtime.processes.resources import own_device
from pausefl.studies.simulation.outputs import setting_of
from pausefl_client.reconnection import Reconnection
from pausefl_client.registries import TRAINING_METHODS
from pausefl_client.training.torch_trainer import LocalData
from pausefl_proto.errors import PauseflError
from rigs.batched import ADAM, CPU, network
from rigs.clock import Clock
from rigs.command import python
from rigs.federation import SIZE, federation, hello, log_of, raw_stream
from rigs.forked import MODULES, tell_variable
from rigs.places import TESTS
from rigs.session import SCHEDULE, SessionRig, private

EXPERIMENT = """
clients.count = 4
clients.groups = { first = { count = 3 }, second = { count = 1, join_round = 3 } }
selection = { policy = "fastest", m = 2 }
latency.delay = { kind = "gamma", shape = 2.0, mean_s = 0.2 }
evaluation.subset = 50
"""


@pytest.mark.parametrize("model", ["synthetic", "mlp"])
def test_plans_travel_and_hold_no_experiment(model: str) -> None:
    experiment = parse_experiment(EXPERIMENT, [f"workload.model={model}"])
    plan = plan_of(experiment, "run")
    plans: list[Any] = [plan.server, plan.clients]
    if model != "synthetic":
        plans.append(evaluator_plan(experiment))
    for plan in plans:
        sent = pickle.dumps(plan)
        assert b"pausefl.experiment.experiment" not in sent
        assert type(pickle.loads(sent)) is type(plan)


def test_the_server_is_told_what_its_experiment_says_and_agrees_with_the_evaluator() -> None:
    experiment = parse_experiment(EXPERIMENT, ["workload.model=synthetic", "workload.model_bytes=400"])
    plan = pickle.loads(pickle.dumps(plan_of(experiment, "run").server))
    assert plan.model.size == 100
    assert plan.settings.expected is not None
    assert plan.settings.expected(1) < plan.settings.expected(3) == set(experiment.client_ids)
    assert plan.oracle is not None
    assert plan.oracle.mean_latency_s == pytest.approx(dict.fromkeys(experiment.client_ids, 0.2))
    unaware = parse_experiment(EXPERIMENT, ["selection.policy=random"])
    assert plan_of(unaware, "run").server.oracle is None, "only policies that need them are told the true laws"
    learning = parse_experiment(EXPERIMENT)
    model = plan_of(learning, "run").server.model
    assert isinstance(model, EvaluatorPlan)
    assert model.subject == evaluator_plan(learning).subject
    other = parse_experiment(EXPERIMENT, ["evaluation.subset=51"])
    assert evaluator_plan(other).subject != model.subject


# -- seeds of parts: the split, the first model and the latencies

TEXT = """
clients.count = 3
selection.m = 2
workload.examples = 300
latency.delay = { kind = "lognormal", mean_s = 0.1, sd_s = 0.05 }
"""


def experiment(**seeds: int) -> Experiment:
    return parse_experiment(TEXT, {f"experiment.{name}": seed for name, seed in seeds.items()})


def drawn(asked: Experiment) -> dict[str, list[Any]]:
    """The values that each part of a run draws."""
    plan, evaluated = client_plan(asked), evaluator_plan(asked)
    labels = label_counts(asked)
    assert labels is not None
    evaluator = Evaluator(evaluated)
    links = make_links(plan.latency, plan.links, asked.client_ids, plan.latency_seed)
    delays = [links[client_id].draw(number).down_s for client_id in asked.client_ids for number in (1, 2)]
    simulated = next(iter(setting_of(asked).latencies_s(2)))
    return {
        "split": [counts.tolist() for counts in labels.values()],
        "model": evaluator.initial.theta_0[:50].tolist(),
        "latency": [*delays, *simulated.ravel().tolist()],
    }


@pytest.mark.parametrize("part", ["split", "model", "latency"])
def test_a_part_with_a_seed_of_its_own_is_all_that_changes(part: str) -> None:
    before, after = drawn(experiment(seed=1)), drawn(experiment(seed=1, **{f"{part}_seed": 0}))
    assert {name for name, values in before.items() if values != after[name]} == {part}


def test_a_part_without_a_seed_of_its_own_follows_the_runs() -> None:
    before, after = drawn(experiment(seed=1)), drawn(experiment(seed=2))
    assert {name for name, values in before.items() if np.array_equal(values, after[name])} == set()
    pinned = drawn(experiment(seed=2, split_seed=1, model_seed=1, latency_seed=1))
    assert pinned == before


TWO = f"""
clients = {{ count = 2, connect_timeout_s = 0.2 }}
selection.m = 1
privacy.enabled = false
latency.delay.kind = "none"
[workload]
model = "synthetic"
model_bytes = {4 * SIZE}
"""


async def test_a_refused_client_is_told_at_the_end_and_the_others_go_on(tmp_path: Path) -> None:
    async with federation(tmp_path, rounds=10, round_timeout_s=0.2, rejoin_timeout_s=0.0) as run:
        async with raw_stream(port := await run.port) as call:
            await call.write(hello("client-000"))
            await call.read()  # from here on its id is taken
            both = ["client-000", "client-001"]
            with pytest.raises(PauseflError, match="client id 'client-000' is connected already"):
                async with asyncio.timeout(30):
                    plan = client_plan(parse_experiment(TWO))
                    await run_clients_over_grpc(plan, both, f"127.0.0.1:{port}", tmp_path / "ledgers")
        assert (await run.finished()).state.round == 10
    assert "client-001" in {o.client_id for record in log_of(tmp_path) for o in record.observations}


class Refused:
    """A session that is refused some times, and then ends."""

    is_connected = False

    def __init__(self, times: int) -> None:
        self.left = times

    async def run(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise PauseflError("refused")
        return "all rounds done"


async def test_a_refused_client_tries_again_while_others_may_yet_be_welcomed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while none is connected, as after the server's restart. Its refusal is logged once, over several runs."""
    out, told = dict[str, PauseflError | None](), dict[str, str]()
    sessions: dict[str, Any] = {"a": Refused(2), "b": Refused(0)}
    alone: dict[str, Any] = {"b": Refused(1)}
    async with asyncio.timeout(20):
        await _run_session("a", sessions, out, told, set())
        sessions["b"].is_connected, sessions["a"].left, out["b"] = True, 2, PauseflError("refused before")
        await _run_session("a", sessions, out, told, set())
        assert (out["a"], caplog.messages.count("a: refused")) == (None, 1)
        await _run_session("b", alone, out, told, set())
    assert str(out["b"]) == "refused"
    monkeypatch.setattr(Reconnection, "wait", lambda *_: asyncio.Event().wait())
    waits, sessions["a"].left, sessions["b"].is_connected = set[Any](), 1, True
    async with asyncio.timeout(20):
        await asyncio.gather(*(_run_session(client_id, sessions, out, told, waits) for client_id in "ab"))


TRAINS_NICELY = f"""
import asyncio, os, threading
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.client import process
from pausefl.runtime.client.plan import client_plan

plan = client_plan(parse_experiment('''{TWO}train_s = 0.1'''))
niceness = os.nice(15)
if os.getuid() == 0:
    os.setuid(65534)  # root may lower a niceness
async def train(plan, client_ids, ledgers, platform, *_):
    with platform.executor as pool:
        print(pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result() == niceness)
process.run_clients = train
asyncio.run(process.play_over_grpc(plan, [], "", None, None))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_clients_that_are_nicer_than_training_is_can_train() -> None:
    assert python("-c", TRAINS_NICELY) == "True\n"


class CountingExecutor(ThreadPoolExecutor):
    """An executor of one thread that releases a semaphore for each submitted job."""

    def __init__(self) -> None:
        super().__init__(1)
        self.submitted = asyncio.Semaphore(0)

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.submitted.release()
        return super().submit(*args, **kwargs)


async def test_clients_that_are_ended_neither_train_nor_pay_for_what_nobody_waits_for(tmp_path: Path) -> None:
    clock, executor = Clock(), CountingExecutor()
    privacies = [private(tmp_path / name, clock) for name in ("trains", "waits")]
    trains, waits = (SessionRig(privacy=p, executor=executor, clock=clock) for p in privacies)
    trains.trainer.gate.clear()
    async with trains.running(), waits.running():
        for rig in (trains, waits):
            (await rig.server.welcome()).give_job(rig.model, 1, SCHEDULE)
            await executor.submitted.acquire()
            await asyncio.to_thread(trains.trainer.begun.wait, 20)
    trains.trainer.gate.set()
    executor.shutdown()
    assert (trains.trainer.rounds, waits.trainer.rounds) == ([1], [])
    assert [p.ledger.spent.released for p in privacies] == [0, 0]


# -- forking: imports are shared, noise is not

THREE = 'clients.count = 3\nselection.m = 1\nworkload.model = "synthetic"'


@pytest.mark.end_to_end
@pytest.mark.parametrize(("forked", "processes"), [(forked_client, 3), (forked_run, 2)], ids=["client", "run"])
def test_a_process_is_forked_with_imports_and_own_noise(forked: Callable[..., BaseProcess], processes: int) -> None:
    """Client, key and process image are the same: only the operating system's entropy makes the draws differ."""
    told = json.loads(python("-m", "rigs.forked", forked.__name__, str(processes), THREE, cwd=TESTS))
    loaded, noise = zip(*told, strict=True)
    assert loaded == (list(MODULES),) * processes
    assert len(set(map(tuple, noise))) == processes


@pytest.mark.end_to_end
def test_a_forked_process_has_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it had the environment of the fork server's start."""
    monkeypatch.delenv("PAUSEFL_DATA", raising=False)
    assert variable_of_a_client() is None
    monkeypatch.setenv("PAUSEFL_DATA", "elsewhere")
    assert variable_of_a_client() == "elsewhere"


def variable_of_a_client() -> str | None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = forked_client("told", tell_variable, theirs, "PAUSEFL_DATA", needs_torch=False)
    start(process)
    found: str | None = ours.recv()
    process.join()
    return found


FROZEN = """
class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")

kept = Cycle()
import pausefl.runtime.client.torch_trainers
"""


def test_what_was_frozen_for_forks_is_collected_at_the_end() -> None:
    """Otherwise libraries that count their objects, such as triton, report leaks at the end."""
    assert python("-c", FROZEN) == "collected\n"


@pytest.mark.parametrize("method", ["plain", "scaffold"])
def test_first_steps_are_of_a_model_of_its_own(method: str) -> None:
    """The first steps take a model alone, even if the method's vector holds more than a model."""
    model, steps = network(), 0

    def count(module: nn.Module, *_: object) -> None:
        nonlocal steps
        steps += module is model

    data = LocalData(random_images(1, "test", 20, (1, 8, 8)), 10)
    random = torch.get_rng_state()
    with register_module_forward_hook(count):  # a hook of the model itself is unknown code, which may draw
        take_first_steps(model, data, ADAM, CPU, TRAINING_METHODS[method]())
    assert steps == 2
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(("device", "hidden"), [("cpu", ""), ("auto", None)])
def test_clients_on_a_processor_hide_gpus(device: str, hidden: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a step of torch's Adam would initialise CUDA."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    own_device.cache_clear()
    plan = client_plan(load_experiment("demo", [f'workload.device="{device}"'])).training
    make_trainers(plan, plan.client_ids[:1])
    assert os.environ.pop("CUDA_VISIBLE_DEVICES", None) == hidden


@pytest.mark.parametrize(
    ("visible", "device", "process", "seen"),
    [("", "auto", 3, "1"), ("4,GPU-5", "cuda", 1, "GPU-5"), ("4,GPU-5", "cuda:1", 2, "GPU-5"), ("4,5", "cpu", 1, "")],
)
def test_a_process_sees_its_own_device_alone(
    visible: str, device: str, process: int, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated calls give the same device. `device_count` is patched: no machine with two devices is at hand."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    own_device.cache_clear()
    named = {own_device(device, process) for _ in range(2)}
    assert named == {device.partition(":")[0]}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
