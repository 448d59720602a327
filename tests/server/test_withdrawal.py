"""A job is withdrawn when its round is over. No ε is spent on it that was not spent before."""

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pausefl_client.link import Delays
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.training.trainer import TrainingOutcome
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_client.training.withdrawal import Withdrawal, Withdrawn
from pausefl_proto.budget import Release
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector, digest, pack_job
from pausefl_server.rounds.messages import Dispatch, Refusal
from pausefl_server.selection.policies.baselines import All
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.coordinator import MakeRig
from rigs.federation import BIG, PRIVATE, SIZE, clients, federation, log_of
from rigs.federation import private as ledger_of
from rigs.session import SCHEDULE, ServerEnd, SessionRig, held_back, welcomed


def withdraw(stream: ServerEnd, round: int) -> None:
    stream.say(withdraw=pb.Withdraw(round=round, attempt=1))


async def answer(stream: ServerEnd) -> tuple[int, int]:
    """(round, status) of the client's next result."""
    result = (await stream.heard()).result
    return result.round, result.status


# -- the client


async def test_what_a_job_waits_for_ends_with_its_withdrawal() -> None:
    withdrawal, never = Withdrawal(), asyncio.Event()
    for _ in range(2):  # a second call changes nothing
        asyncio.get_running_loop().call_soon(withdrawal.set)
    with pytest.raises(Withdrawn):
        await withdrawal.guard(never.wait())
    with pytest.raises(Withdrawn):  # later waits end at once
        await withdrawal.guard(never.wait())
    assert withdrawal.is_set()


async def test_a_guard_passes_on_what_it_waits_for_in_the_same_task_and_its_own_cancellation() -> None:
    async def task() -> object:
        return asyncio.current_task()

    async def fail() -> None:
        raise TimeoutError("the link's own")

    assert await Withdrawal().guard(task()) is asyncio.current_task()
    with pytest.raises(TimeoutError, match="the link's own"):
        await Withdrawal().guard(fail())
    waiting = asyncio.ensure_future(Withdrawal().guard(asyncio.Event().wait()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_job_that_waits_for_another_is_dropped_unpaid(tmp_path: Path) -> None:
    async with held_back(ledger_in=tmp_path) as (rig, stream):
        for t in (1, 2, 3):
            stream.give_job(rig.model, t, SCHEDULE)
        withdraw(stream, 2)
        await stream.all_read()
        rig.trainer.gate.set()
        answers = [await answer(stream) for _ in range(3)]
    assert answers == [(1, pb.STATUS_OK), (2, pb.STATUS_WITHDRAWN), (3, pb.STATUS_OK)]
    assert (rig.trainer.rounds, rig.ledger.spent.released) == ([1, 3], 2)


@pytest.mark.parametrize(("size", "down_s"), [(6, 3600.0), (BIG, 0.0)], ids=["held by the link", "still arriving"])
async def test_a_job_without_its_whole_model_is_dropped_at_once(tmp_path: Path, size: int, down_s: float) -> None:
    delays = iter([Delays(down_s), Delays()])
    async with welcomed(size=size, ledger_in=tmp_path, delays=lambda _: next(delays)) as (rig, stream):
        stream.give(pack_job(1, 1, rig.model, digest(rig.model), SCHEDULE)[0])
        withdraw(stream, 1)
        assert await answer(stream) == (1, pb.STATUS_WITHDRAWN)
        stream.give_job(rig.model, 2, SCHEDULE)
        assert await answer(stream) == (2, pb.STATUS_OK)
    assert (rig.trainer.rounds, rig.ledger.spent.released) == ([2], 1)


async def test_training_that_ends_after_its_job_was_withdrawn_is_not_paid_for(tmp_path: Path) -> None:
    async with held_back(ledger_in=tmp_path) as (rig, stream):
        stream.give_job(rig.model, 1, SCHEDULE)
        await asyncio.to_thread(rig.trainer.begun.wait, 20)
        withdraw(stream, 1)
        await stream.all_read()
        rig.trainer.gate.set()
        assert await answer(stream) == (1, pb.STATUS_WITHDRAWN)
        assert rig.ledger.spent.released == 0
        stream.give_job(rig.model, 1, SCHEDULE)  # a restarted server asks for the same job again
        assert await answer(stream) == (1, pb.STATUS_OK)
    assert rig.ledger.spent.released == 1


@pytest.mark.parametrize("is_ended", [False, True], ids=["withdrawn", "ended"])
async def test_the_stated_time_of_a_job_ends_with_it(is_ended: bool) -> None:
    """The job is withdrawn, or the whole client is told to end. The rest of the hour is not waited for."""
    with ThreadPoolExecutor(1) as executor:
        rig = SessionRig(executor=executor)
        rig.state_time(3600.0)
        async with rig.running() as session:
            stream = await rig.server.welcome()
            stream.give_job(rig.model, 1)
            await asyncio.to_thread(rig.trainer.begun.wait, 20)
            if is_ended:
                session.cancel()
            else:
                withdraw(stream, 1)
                assert await answer(stream) == (1, pb.STATUS_WITHDRAWN)
        await asyncio.to_thread(executor.submit(lambda: None).result, 20)


@pytest.mark.parametrize("is_withdrawn", [False, True])
async def test_the_work_of_a_broken_stream_ends_before_the_next_job_begins(is_withdrawn: bool) -> None:
    """Even with two threads for trainers: a client has one trainer, one ledger and one state."""
    async with held_back(threads=2) as (rig, broken):
        broken.give_job(rig.model, 1)
        await asyncio.to_thread(rig.trainer.begun.wait, 20)
        broken.give(None)
        stream = await rig.server.welcome()
        rig.trainer.begun.clear()
        stream.give_job(rig.model, 2)
        assert not await asyncio.to_thread(rig.trainer.begun.wait, 0.2)
        if is_withdrawn:
            withdraw(stream, 2)
            assert await answer(stream) == (2, pb.STATUS_WITHDRAWN)
            stream.give_job(rig.model, 3)
        rig.trainer.gate.set()
        assert (await stream.upload())[0].round == (3 if is_withdrawn else 2)
    assert rig.trainer.rounds == [1, 3 if is_withdrawn else 2]


async def test_an_update_that_is_paid_for_is_sent_all_the_same(tmp_path: Path) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, stream):
        stream.give_job(rig.model, 1, SCHEDULE)
        assert await answer(stream) == (1, pb.STATUS_OK)
        withdraw(stream, 1)
        stream.give_job(rig.model, 1, SCHEDULE)  # its answer was lost on the way
        assert await answer(stream) == (1, pb.STATUS_OK)
    assert (rig.trainer.rounds, rig.ledger.spent.released) == ([1], 1)
    rig.ledger.close()
    async with welcomed(ledger_in=tmp_path, delays=lambda _: Delays(down_s=3600.0)) as (again, stream):  # restarted
        stream.give_job(again.model, 1, SCHEDULE)
        withdraw(stream, 1)
        assert await answer(stream) == (1, pb.STATUS_OK)
    assert (again.trainer.rounds, again.ledger.spent.released) == ([], 1)


@pytest.mark.parametrize("size", [6, BIG], ids=["held by the link", "still arriving"])
@pytest.mark.parametrize("is_charged", [True, False])
async def test_work_of_a_broken_stream_is_sent_if_it_was_paid_for(tmp_path: Path, size: int, is_charged: bool) -> None:
    """The job is given again, and withdrawn before its model has arrived. The hello did not count its release."""
    delays = iter([Delays(), Delays(down_s=3600.0), Delays()])
    with ThreadPoolExecutor(1) as executor:
        rig = SessionRig(ledger_in=tmp_path, executor=executor, size=size, delays=lambda _: next(delays))
        rig.trainer.gate.clear()
        async with rig.welcomed() as broken:
            broken.give_job(rig.model, 1, SCHEDULE)
            await asyncio.to_thread(rig.trainer.begun.wait, 20)
            broken.give(None)
            stream = await rig.server.welcome()
            stream.give(pack_job(1, 1, rig.model, digest(rig.model), SCHEDULE)[0])
            if is_charged:
                rig.trainer.gate.set()
                await asyncio.to_thread(executor.submit(lambda: None).result, 20)
            withdraw(stream, 1)
            stream.give_job(rig.model, 2, SCHEDULE)  # at once: the round before it is committed
            if not is_charged:
                await stream.all_read()
                rig.trainer.gate.set()
            assert await answer(stream) == (1, pb.STATUS_OK if is_charged else pb.STATUS_WITHDRAWN)
            while (await answer(stream))[0] != 2:  # after the frames of a big update
                continue
    assert rig.ledger.spent.released == 1 + is_charged


class Remembering(SyntheticTrainer):
    """Remembers the rounds it was trained in. A withdrawn job stops its training half-way."""

    def __init__(self) -> None:
        super().__init__(4, seed=1, client_id="a", train_s=30.0)
        self.seen = b""

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        self.seen += bytes([round])
        return super().train(theta, round=round)

    def state(self) -> bytes:
        return self.seen

    def restore(self, state: bytes) -> None:
        self.seen = state


def test_a_training_that_is_broken_off_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = Remembering()
    states = TrainerStates(trainer, tmp_path / "a")
    for t in (1, 2):
        states.recall(ReleaseKey("run", t, 1, "model"))
        trainer.seen += bytes([t])
        states.keep(ReleaseKey("run", t, 1, "model"))
    states.recall(ReleaseKey("run", 3, 1, "model"))
    trainer.seen += bytes([3])
    states.undo()
    assert trainer.seen == bytes([1, 2])


# -- its actor on the server


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_withdrawn_job_keeps_no_model_and_is_not_sent_if_it_waits_for_its_turn(is_sent: bool) -> None:
    """A client that takes nothing would otherwise hold a model for each of its last rounds."""

    class Messages(list[bytes]):
        """A list to which weak references are possible."""

    async with ClientActorRig().running() as r:
        model = np.zeros(r.size, np.float32)
        messages = Messages(pack_job(1, 1, model, digest(model)))
        is_there = weakref.ref(messages)
        r.actor.offer(Dispatch(1, 1, messages, 0.0, r.clock()))
        del messages
        if is_sent:
            await r.stream.heard_bytes()
        r.actor.offer(pb.Withdraw(round=1, attempt=1))
        if is_sent:
            await r.dispatch(round=2)
        gc.collect()
        assert is_there() is None
        assert pb.ServerMessage.FromString(await r.stream.heard_bytes()).WhichOneof("kind") == "withdraw"
        if is_sent:
            for round_ in (1, 2):  # the first one's ε may have been spent before
                r.answer(round_)
                await r.updated()
        else:
            assert r.stream.is_silent()
        await r.accepts_the_next_job()


async def test_a_late_update_that_arrives_damaged_is_over_and_its_release_counts() -> None:
    """It cannot be requested again: a withdrawn job is not sent again."""
    async with ClientActorRig().running() as r:
        await r.dispatch(round=1)
        r.actor.offer(pb.Withdraw(round=1, attempt=1))
        r.stream.give(upload(vector(6), release=pb.Release(participation=3, epsilon=0.5, epsilon_spent=1.5))[0])
        refusal = await r.refused()
        assert (refusal.round, refusal.release) == (1, Release(3, 0.5, 1.5))
        await r.actor.ask(pb.Ping())  # is sent, since the client owes nothing
        kinds = [pb.ServerMessage.FromString(await r.stream.heard_bytes()).WhichOneof("kind") for _ in range(3)]
        assert kinds == ["job", "withdraw", "ping"]


async def test_dropping_a_job_of_an_earlier_stream_leaves_the_job_at_hand_alone() -> None:
    async with ClientActorRig().running() as r:
        r.actor.offer(pb.Withdraw(round=1, attempt=1))  # said to a client that is back
        await r.dispatch(round=2)
        r.say(result=pb.Result(round=1, attempt=1, status=pb.STATUS_WITHDRAWN))
        assert await r.told() == Refusal("client-1", 1, 1, "withdrawn", "dropped its job of round 1 unpaid")
        r.answer(round=2)
        await r.updated()


# -- the coordinator


async def test_a_job_is_withdrawn_when_its_round_ends_or_its_client_comes_back_later(rig: MakeRig) -> None:
    async with rig(All(3), rounds=2, minimum_clients=3, round_timeout_s=0.25, rejoin_timeout_s=0.0).playing() as r:
        a, b, c = await r.join_all("abc", manual=True)
        await c.next_job()
        await r.lose(c)
        await a.play(1)
        await b.next_job()
        await a.next_job()  # round 2: b missed the first
        back = await r.join("c")
        await a.answer(2)
        await r.coordinator.tell(Refusal("b", 1, 1, "withdrawn", "dropped its job"))
    assert (1, 1) in b.withdrawn
    assert (back.withdrawn, a.withdrawn) == ([(1, 1)], [])
    assert ("withdrawn", "b") in r.events()


# -- both, over gRPC


async def test_a_slow_client_neither_works_off_old_jobs_nor_pays_for_them(tmp_path: Path) -> None:
    rounds, slow = 6, Remembering()
    privacy = {client_id: ledger_of(tmp_path, client_id) for client_id in "ab"}
    settings = {"rounds": rounds, "round_timeout_s": 0.4, "minimum_clients": 2, "rest_rounds_max": 0}
    async with federation(tmp_path / "run", All(2), privacy=PRIVATE, **settings) as run, clients(threads=2) as some:
        some.start("a", await run.port, privacy=privacy["a"])
        slow.manifest = SyntheticTrainer(SIZE, seed=1, client_id="b").manifest
        some.start("b", await run.port, privacy=privacy["b"], trainer=slow)
        await run.finished()
    records = log_of(tmp_path / "run")
    assert [[o.client_id for o in record.observations] for record in records] == [["a"]] * rounds
    assert (privacy["a"].ledger.spent.released, privacy["b"].ledger.spent.released) == (rounds, 0)
    withdrawn = [e for record in records for e in record.events if e.kind == "withdrawn"]
    assert len(withdrawn) >= rounds - 2, "each job was dropped while the next round was played"
    assert np.all(np.diff(list(slow.seen)) > 0)
