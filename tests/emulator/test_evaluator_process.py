"""The evaluator: its model and results, and its process, which is started, lost, and found again."""

import asyncio
import dataclasses
import json
import math
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.runtime.evaluator.model import Evaluator
from pausefl.runtime.evaluator.plan import evaluator_plan
from pausefl.runtime.evaluator.process import find_evaluator, serve_evaluator
from pausefl_client.data.datasets import load_dataset
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_proto.errors import ConfigError, EvaluatorLost, EvaluatorStuck
from pausefl_proto.wire import Vector
from pausefl_server.records import Split
from pausefl_server.storage.store import Store
from rigs.authority import Authority
from rigs.own_models import evaluator_of
from rigs.refusals import refused
from rigs.waiting import free_port

# `pausefl`, which at its end reports whether torch was imported.
SCRIPT = """
import json, sys
from pausefl.cli import main
try:
    main()
finally:
    print(json.dumps({"kind": "ended", "torch": "torch" in sys.modules}), flush=True)
"""
PAUSEFL = [sys.executable, "-c", SCRIPT]

LEARNING = """
experiment.rounds = 1000000
clients = { count = 1, connect_timeout_s = 60.0 }
selection = { policy = "random", m = 1 }
privacy.enabled = false
latency.delay.kind = "none"
workload.batch_size = 1200
evaluation = { every = 20, subset = 100 }
"""


class Process:
    """A running `pausefl` command and the events it prints."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [*PAUSEFL, *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def event(self, kind: str, containing: str = "") -> dict[str, Any]:
        """The next event of this kind whose message contains the text."""
        while (event := self._events.get(timeout=60)) is not None:
            if event["kind"] == kind and containing in event.get("message", ""):
                return event
        raise AssertionError(f"it ended without {kind} {containing!r}")

    def left(self) -> list[dict[str, Any]]:
        """All remaining events, until the process ends."""
        return list(iter(lambda: self._events.get(timeout=60), None))

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._events.put(json.loads(line))
        self._events.put(None)


@pytest.fixture
def start(tmp_path: Path, authority: Authority) -> Iterator[Callable[..., Process]]:
    """Starts `pausefl COMMAND learning.toml ...` with a certificate. After the test, all are killed."""
    (tmp_path / "learning.toml").write_text(LEARNING)
    started: list[Process] = []

    def begin(command: str, *arguments: object) -> Process:
        files = dataclasses.asdict(authority.certify(command))
        tls = [f"--set=tls.{name}={path}" for name, path in files.items()]
        started.append(Process(tmp_path, command, "learning.toml", *tls, *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.process.kill()
        process.process.wait()


def serve(experiment: Experiment) -> None:
    """Serve an experiment's evaluator, as the command does."""
    serve_evaluator(evaluator_plan(experiment), lambda _: pytest.fail("it serves"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluation.port={taken}", "evaluation.port = {taken}: cannot listen on 127.0.0.1:{taken} (Address already"),
        ("workload.model=synthetic", 'workload.model = "synthetic": learns nothing that an evaluator could evaluate'),
        ("evaluation.host=0.0.0.0", 'evaluation.host = "0.0.0.0": other machines can reach it; set [tls] with a ca'),
        ("tls.ca=ca.pem", 'tls.ca = "ca.pem": a side that listens needs tls.certificate and tls.key as well'),
    ],
)
def test_what_keeps_an_evaluator_from_serving(override: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda _: 0)  # keeps this process's priority: it has more tests to run
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        experiment = parse_experiment(LEARNING, [override.format(taken=port)])
        with refused(message.format(taken=port)):
            serve(experiment)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"torch: not installed; pip install .pausefl\[evaluator\]"):
        serve(parse_experiment(LEARNING))


MOVING = """
from torch import nn

class Moving(nn.Linear):
    mean = hash("a text") % 997 / 997

    def __init__(self, shape, classes):
        super().__init__(64, classes)

    def forward(self, x):
        if self.training:
            self.mean = x.detach().mean() + 0.1
        return super().forward(x.flatten(1) - self.mean)
"""


@pytest.mark.end_to_end
async def test_the_servers_own_evaluator_is_started_again(own_module: Callable[[str, str], Path]) -> None:
    own_module("moving", MOVING)
    said: list[str] = []  # by each process
    changes = {"evaluation.answer_timeout_s": 20.0, "workload.model": "moving:Moving"}
    plan = evaluator_plan(parse_experiment(LEARNING, changes))
    async with asyncio.timeout(120), find_evaluator(plan, said.append) as evaluator:
        theta_0 = (await evaluator.initial()).theta_0
        assert os.environ.get("PYTHONHASHSEED") != "0"  # each evaluator has one order of sets, and a server its own
        before = await evaluator.evaluate(theta_0, subset=True, patient=False)
        for inputs, expected in (("- self.mean", nullcontext()), ("* 9.0", refused("another model", EvaluatorLost))):
            own_module("moving", MOVING.replace("- self.mean", inputs))
            (process,) = multiprocessing.active_children()
            process.kill()
            process.join()
            with expected:
                assert await evaluator.evaluate(theta_0, subset=True, patient=False) == before
    assert not multiprocessing.active_children()
    doubt = "attributes, or buffers with persistent=False, that do not travel"
    assert [text.partition("training changes ")[2] for text in said] == [doubt] * 2


@asynccontextmanager
async def stopped_evaluator(answer_s: float) -> AsyncIterator[tuple[Any, Vector, Any]]:
    """A server's own evaluator, θ_0, and the evaluator's process, which is suspended (SIGSTOP)."""
    plan = evaluator_plan(parse_experiment(LEARNING, {"evaluation.answer_timeout_s": answer_s}))
    async with asyncio.timeout(60), find_evaluator(plan, print) as evaluator:
        theta_0 = (await evaluator.initial()).theta_0
        (process,) = multiprocessing.active_children()
        os.kill(process.pid or 0, signal.SIGSTOP)
        yield evaluator, theta_0, process


@pytest.mark.slow
@pytest.mark.end_to_end
async def test_the_servers_own_evaluator_is_ended_where_it_does_not_answer() -> None:
    """It may be stuck, so its process is ended, and the next evaluation starts another."""
    async with stopped_evaluator(answer_s=4.0) as (evaluator, theta_0, _):
        with pytest.raises(EvaluatorStuck, match=r"evaluation\.answer_timeout_s = 4: the evaluator took longer"):
            await evaluator.evaluate(theta_0, subset=True, patient=True)
        assert not multiprocessing.active_children()
        assert len((await evaluator.evaluate(theta_0, subset=True, patient=True)).evaluations) == 2


@pytest.mark.slow
@pytest.mark.end_to_end
async def test_the_servers_own_evaluator_is_started_again_for_the_last_model() -> None:
    """The process is killed while it evaluates. The model is evaluated all the same."""
    async with stopped_evaluator(answer_s=20.0) as (evaluator, theta_0, process):
        asked = asyncio.ensure_future(evaluator.evaluate(theta_0, subset=True, patient=True))
        done, _ = await asyncio.wait([asked], timeout=0.2)
        assert not done
        process.kill()
        assert len(await asked) == 2


@pytest.mark.end_to_end
@pytest.mark.slow
def test_a_run_outlives_its_evaluator(start: Callable[..., Process], tmp_path: Path) -> None:
    """The evaluator starts after the server, is killed with kill -9, and comes back. All use mutual TLS."""
    port, metrics_port = free_port(), free_port()
    options = ["--set", f"evaluation.address=localhost:{port}", "--set", f"metrics.port={metrics_port}"]
    server = start("server", "--run-dir", "run", *options)
    server.event("notice", f"waiting up to 60 s for the evaluator at localhost:{port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/healthz", timeout=10) as healthy:
        assert healthy.read() == b"ok\n"
    with pytest.raises(urllib.error.HTTPError) as waits:
        urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/readyz", timeout=10)
    assert waits.value.read() == b"waits for the evaluator\n"
    evaluator = start("evaluator", "--set", f"evaluation.port={port}", "--set", "evaluation.metrics_port=0")
    with urllib.request.urlopen(evaluator.event("metrics")["url"], timeout=10) as scraped:
        told = scraped.read()
    assert b"process_resident_memory_bytes" in told
    assert b"pausefl_certificate_remaining_seconds" in told
    address = f"127.0.0.1:{server.event('ready')['port']}"
    client = start("client", "--server", address, "--client-id", "client-000")
    assert server.event("evaluation")["accuracy"] >= 0
    os.kill(evaluator.process.pid, signal.SIGKILL)
    server.event("notice", "accuracy is missing until the evaluator is back")
    lost_after = server.event("round")["round"]
    while server.event("round")["round"] < lost_after + 50:
        pass
    again = start("evaluator", "--set", f"evaluation.port={port}")
    server.event("notice", "the evaluator is back")
    os.kill(server.process.pid, signal.SIGTERM)
    *last, ended = server.left()
    assert not [event for event in last if event["kind"] == "notice"]
    assert ended == {"kind": "ended", "torch": False}
    assert server.process.wait(60) == 130
    assert client.process.wait(60) == 0
    os.kill(again.process.pid, signal.SIGTERM)
    assert again.process.wait(60) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["final_accuracy"] > 0
    store = Store(tmp_path / "run/run.db")
    evaluated = {t for t, _ in store.evaluations()}
    store.close()
    assert set(range(20, max(evaluated), 20)) - evaluated, "some rounds went without"


DIGITS = load_dataset("digits", seed=1)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return evaluator_of(subset=100)


def always(label: int, evaluator: Evaluator) -> np.ndarray:
    """θ of a model that gives `label` a logit of 5 and every other label 0, for any input."""
    theta = np.zeros_like(evaluator.initial.theta_0)
    evaluator.initial.manifest.split(theta)[evaluator.initial.manifest.tensors[-1].name][label] = 5.0
    return theta


@pytest.mark.parametrize("split", ["validation", "test"])
def test_accuracy_and_loss_over_all_of_a_split(evaluator: Evaluator, split: Split) -> None:
    examples = DIGITS.test if split == "test" else DIGITS.validation
    share = float(np.mean(examples.labels == 3))
    found = evaluator.evaluate(always(3, evaluator), [split], subset=False).evaluations[0]
    assert (found.split, found.subset, found.n_examples, found.accuracy) == (split, False, len(examples), share)
    # Cross-entropy of logits (5, 0, …, 0): log(e⁵ + 9) less the logit of the right label.
    assert found.loss == pytest.approx(np.log(np.exp(5) + 9) - 5 * share, rel=1e-5)


def share_of(label: int, evaluator: Evaluator) -> float:
    """The share of a label in the test set's subset."""
    return evaluator.evaluate(always(label, evaluator), ["test"], subset=True).evaluations[0].accuracy


def test_the_subset_is_fixed_and_a_part(evaluator: Evaluator) -> None:
    counts = [share_of(k, evaluator) * 100 for k in range(10)]
    assert sum(counts) == pytest.approx(100)
    whole = np.bincount(DIGITS.test.labels, minlength=10)
    assert all(0 < part < all_ for part, all_ in zip(counts, whole, strict=True))
    same = evaluator_of(subset=100)
    assert [share_of(k, same) * 100 for k in range(10)] == counts
    theta = np.zeros(2778, np.float32)
    (whole_split,), _ = evaluator_of().evaluate(theta, ["validation"], subset=True)
    assert (whole_split.n_examples, whole_split.subset) == (297, True), "that of a small split is all of it"


def drawing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.FractionalMaxPool2d(2, 4), nn.Flatten(), nn.Linear(16, classes))  # evaluations draw, too


@pytest.mark.parametrize("model", ["mlp", f"{__name__}:drawing"])
def test_a_new_thread_evaluates_as_one_that_has_computed_before(model: str) -> None:
    torch.set_num_threads(1)  # in this thread, as in an evaluator
    evaluator = evaluator_of(model=model, subset=10)
    theta = np.random.default_rng(1).normal(0, 1, evaluator.initial.theta_0.size).astype(np.float32)
    here = evaluator.evaluate(theta, ["test"], subset=True).evaluations[0]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(evaluator.evaluate, theta, ["test"], subset=True).result().evaluations[0] == here


class Repeated(nn.Module):
    """Repeats its inputs 2**20 times, as a view: as many bytes as layers of language models or of large images."""

    at_once: ClassVar[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.at_once.append(len(x))
        return x[None].expand(2**20, *x.shape)


class Wide(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.wide, self.outputs = Repeated(), nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.outputs(self.wide(x[:, 0, 0, :1])[0].expand(-1, 64))
        return y


def test_a_model_with_large_layers_is_evaluated_a_few_examples_at_a_time() -> None:
    evaluator = evaluator_of(model=f"{__name__}:{Wide.__name__}")
    evaluator.rehearse(parse_experiment("").workload)
    Repeated.at_once.clear()
    (found,), _ = evaluator.evaluate(evaluator.initial.theta_0, ["test"], subset=False)
    assert Repeated.at_once == [32] * 9 + [12]  # of 4 MiB each
    assert found.n_examples == 300


def test_theta_0_depends_on_the_seed_alone_and_diverged_models_are_evaluated(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(np.full(2778, np.nan, np.float32), ["test"], subset=False).evaluations[0]
    assert evaluation.loss == np.inf
    assert 0 <= evaluation.accuracy < 0.3
    with pytest.raises(ValueError, match="2778"):
        evaluator.evaluate(np.zeros(3, np.float32), ["test"], subset=True).evaluations[0]
    assert np.array_equal(evaluator.initial.theta_0, ModelVector(build_model("mlp", (1, 8, 8), 10, 1)).values())
    assert evaluator.initial.theta_0.shape == (evaluator.initial.manifest.size,) == (2778,)
    assert not np.array_equal(evaluator.initial.theta_0, evaluator_of(seed=2).initial.theta_0)
