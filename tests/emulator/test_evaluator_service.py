"""The evaluator as a service: θ_0 and evaluations over real gRPC, and what happens when it does not answer."""

import asyncio
import math
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from pausefl.certificates import make_certificates
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.tables import EvaluationTable
from pausefl.runtime.evaluator import transport
from pausefl.runtime.evaluator.plan import Evaluated, InitialModel, ModelRest, StoredTensor, evaluator_plan
from pausefl.runtime.evaluator.transport import EvaluatorServer, RemoteEvaluator
from pausefl_proto import endpoint
from pausefl_proto.errors import ConfigError, EvaluatorLost, EvaluatorStuck
from pausefl_proto.tls import Tls
from pausefl_proto.v1 import evaluation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, Manifest, TensorSpec, Vector
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.records import Evaluation, Split
from pausefl_server.rounds.evaluation import Evaluate, EvaluateModel, EvaluatorActor
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import StoreActor
from rigs.authority import Authority
from rigs.waiting import free_port

PLAN = evaluator_plan(parse_experiment("", {"server.dead_after_s": 60.0}))
BIG = MAX_FRAME_BYTES // 4 * 5 // 2  # two and a half frames
REST = ModelRest(
    (StoredTensor("mask", "BOOL", (2, 1), b"\1\0"), StoredTensor("table", "I64", (BIG // 2,), bytes(BIG * 4))),
    {"again": "a"},
    Manifest((TensorSpec("running_mean", (1,)),)),
)


class Summing:
    """An evaluator whose result is the model's first value and its sum."""

    def __init__(self, size: int = 3, probe: tuple[float, ...] = ()) -> None:
        manifest = Manifest((TensorSpec("a", (1,)), TensorSpec("b" * (1 + size // 10), (size - 1,))), probe=probe)
        self.initial = InitialModel(manifest, np.arange(size, dtype=np.float32), REST)

    def evaluate(self, theta: Vector, splits: Sequence[Split], *, subset: bool) -> Evaluated:
        first = float(theta[0])
        rated = (Evaluation(split, subset, theta.size, first, float(theta.sum()), "first value") for split in splits)
        return Evaluated(tuple(rated), theta + 1)


class Stuck(Summing):
    """An evaluator that begins an evaluation and does not finish it before `freed` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.freed = threading.Event(), threading.Event()

    def evaluate(self, theta: Vector, splits: Sequence[Split], *, subset: bool) -> Evaluated:
        self.begun.set()
        self.freed.wait()
        return super().evaluate(theta, splits, subset=subset)


@asynccontextmanager
async def serving(
    port: int = 0, size: int = 3, tls: Tls | None = None, evaluator: Summing | None = None
) -> AsyncIterator[str]:
    """Yields the address of a running evaluator."""
    server = EvaluatorServer(evaluator or Summing(size), replace(PLAN, tls=tls))
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1', port)}"
    finally:
        await server.stop()


class Said(list[str]):
    """The messages shown to the user."""

    def __init__(self) -> None:
        self.anything = asyncio.Event()

    def __call__(self, message: str) -> None:
        self.append(message)
        self.anything.set()


@asynccontextmanager
async def asking(
    address: str,
    seed: int = PLAN.seed,
    tls: Tls | None = None,
    patience_s: float = 20.0,
    said: Said | None = None,
    answer_s: float = 20.0,
) -> AsyncIterator[RemoteEvaluator]:
    where = EvaluationTable(address=address, connect_timeout_s=patience_s, answer_timeout_s=answer_s)
    plan = replace(PLAN, seed=seed, evaluation=where, tls=tls)
    async with aclosing(RemoteEvaluator(plan, Said() if said is None else said)) as remote, asyncio.timeout(30):
        yield remote


@pytest.mark.parametrize("size", [3, BIG])
async def test_the_first_model_and_evaluations_of_later_ones(size: int) -> None:
    async with serving(size=size) as address, asking(address) as remote:
        manifest, theta_0, rest = await remote.initial()
        assert (manifest, theta_0.size, rest) == (Summing(size).initial.manifest, size, REST)
        assert np.array_equal(theta_0, Summing(size).initial.theta_0)
        theta = np.full(size, 0.5, np.float32)
        for subset in (True, False):
            expected = [Evaluation(split, subset, size, 0.5, size / 2) for split in ("validation", "test")]
            evaluations, statistics = await remote.evaluate(theta, subset=subset, patient=False)
            assert list(evaluations) == expected
            assert statistics is not None
            assert np.array_equal(statistics, theta + 1)
            assert {e.metric for e in evaluations} == {"first value"}


async def test_both_sides_bear_silence_for_as_long_as_the_experiment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_options", options := Mock(wraps=endpoint._options))
    async with serving() as address, asking(address) as remote:
        await remote.initial()
    assert [call.args for call in options.call_args_list] == [(60.0,), (60.0,)]


async def test_both_sides_must_mean_the_same_workload() -> None:
    async with serving() as address, asking(address, seed=2) as remote:
        told = rf'evaluation\.address = "{address}": the evaluator there evaluates .*"seed": 1.* about .*"seed": 2'
        with pytest.raises(ConfigError, match=told):
            await remote.initial()
        with pytest.raises(EvaluatorLost, match=r'evaluates .*"seed": 1'):
            await remote.evaluate(np.zeros(3, np.float32), subset=True, patient=False)
    async with asking(f"127.0.0.1:{(port := free_port())}") as remote:
        async with serving(port, evaluator=Summing(probe=(1.0,))):
            theta_0 = (await remote.initial()).theta_0
        async with serving(port, evaluator=Summing(probe=(2.0,))):  # it came back with another version of own code
            with pytest.raises(EvaluatorLost, match=r"there has other data.* 2 at the evaluator, 1 in the run"):
                await remote.evaluate(theta_0, subset=True, patient=False)


def part_of(**subject: Any) -> bytes:
    return pb.ModelPart(evaluate=pb.Evaluate(subject=pb.Subject(**subject))).SerializeToString()


NO_MODELS = {
    "bytes": b"\xff\xff\xff",
    "nothing": b"",
    "another version": part_of(protocol_version=PROTOCOL_VERSION + 1),
    "no model": part_of(protocol_version=PROTOCOL_VERSION, workload=PLAN.subject),
}


@pytest.mark.parametrize("part", NO_MODELS.values(), ids=NO_MODELS)
async def test_what_is_no_model_is_refused_and_the_next_is_evaluated(part: bytes) -> None:
    async with serving() as address, asking(address) as remote:
        async with grpc.aio.insecure_channel(address) as channel:
            method = "/pausefl.v1.Evaluator/Evaluate"
            evaluate: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await evaluate(iter([part]))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(EvaluatorLost, match="announces 8 bytes, the model has 12"):
            await remote.evaluate(np.zeros(2, np.float32), subset=True, patient=False)
        assert len((await remote.evaluate(np.zeros(3, np.float32), subset=True, patient=False)).evaluations) == 2


RATED: Any = {"split": "test", "subset": True, "n_examples": 3, "accuracy": 0.5, "loss": 1.0}
LIES: Any = ({"n_examples": 1 << 63}, {"accuracy": math.nan}, {"accuracy": 2.0}, {"loss": math.nan}, {"subset": False})
NO_ANSWERS = (b"\xff", *(pb.Evaluations(evaluations=[RATED | lie]).SerializeToString() for lie in LIES))


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_an_answer_that_the_log_cannot_hold_is_lost(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvaluatorServer, "_evaluate", lambda *_: answer)
    async with serving() as address, asking(address) as remote:
        with pytest.raises(EvaluatorLost, match=r"finds|no message"):
            await remote.evaluate(np.zeros(3, np.float32), subset=True, patient=False)


async def test_a_server_takes_renewed_certificates(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """Once the server kept its first certificates: when the evaluator's were renewed, no accuracy came any more."""
    mine = Tls(*(str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt")))
    theta = np.ones(3, np.float32)

    def renew(files: Tls) -> None:
        for name in ("certificate", "key", "ca"):
            shutil.copy(getattr(files, name), getattr(mine, name))

    renew(authority.certify("server"))
    async with AsyncExitStack() as first:
        address = await first.enter_async_context(serving(tls=authority.certify("evaluator")))
        async with asking(address, tls=mine, said=(said := Said())) as remote:
            await remote.evaluate(theta, subset=True, patient=False)
            await first.aclose()
            async with serving(int(address.rpartition(":")[2]), tls=stranger.certify("evaluator")):
                shutil.copy(mine.ca, mine.key)  # the files are being replaced
                asked = asyncio.create_task(remote.evaluate(theta, subset=True, patient=True))
                await said.anything.wait()
                renew(stranger.certify("server"))
                assert await asked


async def test_a_certificate_of_strangers_or_for_clients_alone_evaluates_nothing(
    stranger: Authority, tmp_path: Path
) -> None:
    """Hundreds hold such certificates. None of them may learn what models do, or keep the evaluator busy."""
    make_certificates(tmp_path, ["127.0.0.1"], ["client-000"])
    server, client = (
        Tls(f"{tmp_path}/{name}.pem", f"{tmp_path}/{name}.key", f"{tmp_path}/ca.pem")
        for name in ("server", "clients/client-000")
    )
    async with serving(tls=server) as address:
        async with asking(address, tls=client) as remote:
            with pytest.raises(ConfigError, match=r"the evaluator there serves servers, .* is a client's$"):
                await remote.initial()
            with pytest.raises(EvaluatorLost, match=r"serves servers"):
                await remote.evaluate(np.zeros(3, np.float32), subset=True, patient=False)
        async with asking(address, tls=Tls(ca=stranger.ca)) as remote:
            with pytest.raises(ConfigError, match=r"tls\.ca = .* does not vouch"):
                await remote.initial()
        async with asking(address, tls=server) as remote:
            assert (await remote.initial()).manifest.size == 3


async def test_only_so_many_models_wait_for_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waiting model takes memory."""
    monkeypatch.setattr(transport, "_MOST_CALLS", 1)
    monkeypatch.setattr(transport, "_ASK_AGAIN_S", 0.01)
    theta, stuck, said = np.zeros(3, np.float32), Stuck(), Said()
    async with serving(evaluator=stuck) as address, asking(address) as one, asking(address, said=said) as other:
        first = asyncio.ensure_future(one.evaluate(theta, subset=True, patient=False))
        await asyncio.to_thread(stuck.begun.wait)
        with pytest.raises(EvaluatorLost, match=r"has 1 of 1 models to evaluate"):
            await other.evaluate(theta, subset=True, patient=False)
        assert not said
        last = asyncio.ensure_future(other.evaluate(theta, subset=True, patient=True))
        await said.anything.wait()
        stuck.freed.set()
        assert [len(await evaluated) for evaluated in (first, last)] == [2, 2]


@pytest.mark.realtime  # the timeout of 0.5 s holds for the last answer, too
async def test_an_evaluator_that_does_not_answer_is_given_up_without_a_model_behind_until_it_does() -> None:
    """The connection is alive, so keepalive finds nothing wrong."""
    theta, stuck = np.zeros(3, np.float32), Stuck()
    server = EvaluatorServer(stuck, PLAN)
    try:
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        async with asking(address, answer_s=0.5) as remote:
            for patient in (True, False, False):
                with pytest.raises(EvaluatorStuck, match=r"answer_timeout_s = 0\.5: the evaluator took longer"):
                    await remote.evaluate(theta, subset=True, patient=patient)
            assert server._thread._work_queue.qsize() == 0
            stuck.freed.set()
            assert len((await remote.evaluate(theta, subset=True, patient=False)).evaluations) == 2
    finally:
        await server.stop()


async def test_an_evaluator_that_never_comes_up_or_stays_full_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_ASK_AGAIN_S", 0.01)
    async with asking("127.0.0.1:1", patience_s=0.1) as remote:
        with pytest.raises(EvaluatorLost, match=r'127\.0\.0\.1:1": the evaluator there does not answer \(.*refused'):
            await remote.initial()
    monkeypatch.setattr(transport, "_MOST_CALLS", 0)
    async with serving() as address, asking(address, patience_s=0.05) as remote:
        with pytest.raises(EvaluatorLost, match=r"there does not answer \(it has 0 of 0 models to evaluate already\)$"):
            await remote.initial()


async def test_only_the_patient_wait_for_an_evaluator_that_comes_up_late_or_is_lost() -> None:
    theta, said, address = np.zeros(3, np.float32), Said(), f"127.0.0.1:{(port := free_port())}"
    async with asking(address, said=said) as remote:
        for ask in (remote.initial, partial(remote.evaluate, theta, subset=False, patient=True)):
            with pytest.raises(EvaluatorLost, match=f"the evaluator at {address} does not answer"):
                await remote.evaluate(theta, subset=True, patient=False)
            assert not said
            asked = asyncio.ensure_future(ask())
            await said.anything.wait()
            assert said.pop().startswith(f"waiting up to 20 s for the evaluator at {address}: ")
            said.anything.clear()
            async with serving(port):
                assert await asked
                assert len((await remote.evaluate(theta, subset=True, patient=False)).evaluations) == 2


@asynccontextmanager
async def evaluating(
    folder: Path, evaluate: EvaluateModel, told: RunObserver | None = None
) -> AsyncIterator[tuple[EvaluatorActor, Store]]:
    """An actor that evaluates models by `evaluate`, and the store that keeps its evaluations."""
    with closing(Store(folder / "run.db")) as store, closing(Checkpoint(folder / "checkpoints")) as checkpoint:
        keeper = StoreActor(store, checkpoint)
        evaluator = EvaluatorActor(evaluate, keeper, told or RunObserver())
        async with asyncio.TaskGroup() as group:
            for actor in (keeper, evaluator):
                group.create_task(actor.run())
            yield evaluator, store
            evaluator.stop()
            keeper.stop()


async def test_models_that_wait_for_a_stuck_evaluator_are_not_evaluated(tmp_path: Path) -> None:
    """Each would take the whole timeout, and the run's end would wait for all. Their callers get an answer."""
    asked, is_stuck = list[float](), asyncio.Event()

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        asked.append(float(theta[0]))
        await is_stuck.wait()
        raise EvaluatorStuck("no answer")

    async with evaluating(tmp_path, evaluate) as (evaluator, _):
        for t in range(1, 6):
            evaluator.consider(t, np.array([t], np.float32))
        last = asyncio.ensure_future(evaluator.ask(Evaluate(9, np.array([9], np.float32), subset=True)))
        await asyncio.sleep(0)
        is_stuck.set()
        assert await last == ()
    assert asked == [1, 9]


async def test_a_round_without_its_evaluation_is_reported_once(tmp_path: Path) -> None:
    is_there, told = True, list[str]()

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        if not is_there:
            raise EvaluatorLost("nobody answers")
        return (Evaluation("validation", subset, 1, float(theta[0]), 0.0),)

    class Listener(RunObserver):
        def noticed(self, message: str, topic: str = "") -> None:
            told.append(message)

    async with evaluating(tmp_path, evaluate, Listener()) as (evaluator, store):
        for t, is_there in enumerate((True, False, False, True, False, True), 1):
            theta = np.array([t / 10], np.float32)
            assert len(await evaluator.ask(Evaluate(t, theta, subset=True))) == is_there
        assert [t for t, _ in store.evaluations()] == [1, 4, 6]
    assert evaluator.best is not None
    assert evaluator.best.round == 6
    lost = "accuracy is missing until the evaluator is back: nobody answers"
    found = "the evaluator is back: accuracy goes on with round"
    assert told == [lost, f"{found} 4", lost, f"{found} 6"]
