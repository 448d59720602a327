"""A server or a client that stands still for a while: what a server missed is its own lateness, not its clients'."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from pausefl_process.events import Notice, ProgressEvent, RoundCommitted
from pausefl_process.host_monitor import HostReport
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, Vector, cut, digest, pack
from pausefl_server.records import Evaluation
from pausefl_server.rounds.evaluation import waiting_models_max
from pausefl_server.rounds.messages import Pinged
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.coordinator import CoordinatorRig, MakeRig

STALL_S = 0.5
BIG = MAX_FRAME_BYTES // 4 + 100


async def until_it_listens(r: CoordinatorRig) -> None:
    """Return once the coordinator waits for messages and has taken one; its deadline is checked after each."""
    await r.coordinator.ask(Pinged("a", 0.001))


async def test_answers_that_wait_when_the_deadline_has_passed_are_taken(rig: MakeRig) -> None:
    def stall(event: ProgressEvent) -> None:
        """Round 1 is reported when the jobs of round 2 are out."""
        if isinstance(event, RoundCommitted) and event.round == 1:
            time.sleep(STALL_S)

    async with rig(rounds=2, round_timeout_s=0.2).running() as r:
        r.on_shown = stall
        await r.join_all("ab")
        await r.played()
        assert [(record.attempt, record.misses) for record in r.store.rounds()] == [(1, ()), (1, ())]


async def test_answers_that_come_once_the_server_goes_on_are_taken(rig: MakeRig) -> None:
    """As of a process that was stopped: what clients sent meanwhile is still in its sockets."""
    async with rig(rounds=1, round_timeout_s=0.2, minimum_clients=3).running() as r:
        a, b, c = await r.join_all("abc", manual=True)
        for peer in (a, b, c):
            await peer.next_job()
        await until_it_listens(r)
        time.sleep(STALL_S)  # noqa: ASYNC251 - the event loop stands still, as with SIGSTOP
        for peer in (a, b):
            await until_it_listens(r)
            await peer.answer(1)
        await r.played()
        (record,) = r.store.rounds()
        assert [o.client_id for o in record.observations] == ["a", "b"]
        assert [(miss.client_id, miss.kind) for miss in record.misses] == [("c", "timeout")]
        assert record.misses[0].waited_s < 0.2 + 4 * STALL_S  # it is waited for once more, not for ever


async def test_a_client_that_returns_once_the_server_goes_on_ends_no_run(rig: MakeRig) -> None:
    async with rig(rounds=1, connect_timeout_s=0.2, minimum_clients=1).running() as r:
        await until_it_listens(r)
        time.sleep(STALL_S)  # noqa: ASYNC251
        await until_it_listens(r)
        await r.join("a")
        await r.played()
        assert [record.round for record in r.store.rounds()] == [1]


async def test_an_evaluator_that_is_too_slow_delays_no_round(rig: MakeRig) -> None:
    is_over = asyncio.Event()

    async def evaluate(theta: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:
        await is_over.wait()
        raise EvaluatorLost("the run is over")

    async with rig(rounds=5, round_timeout_s=5.0, evaluation_every=1, evaluate=evaluate).played_by("ab") as r:
        assert [(record.attempt, record.misses) for record in r.store.rounds()] == [(1, ())] * 5
        notices = [event.message for event in r.shown_of(Notice)]
        assert notices == ["round 3 is not evaluated, nor may later ones be: the evaluator is too slow"]
        is_over.set()


def test_waiting_models_take_a_gigabyte_at_most() -> None:
    assert [waiting_models_max(n) for n in (4, 40_000_000, 10**10)] == [256, 25, 1]


@pytest.mark.parametrize(("train_s", "round_trip_s"), [(0.5, 1.0), (4.5, 4.5), (5.5, None)])
async def test_no_honest_client_is_rejected_because_the_server_slept(
    train_s: float, round_trip_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock counts 1 s, and the client's the 4 s that it slept as well."""
    rig = ClientActorRig()
    monkeypatch.setattr(rig.watch, "report", lambda *_, **__: HostReport(suspended_s=4.0))
    async with rig.at_work():
        rig.stream.give(upload(vector(5), timing=pb.Timing(train_s=train_s))[0], after_s=1.0)
        if round_trip_s is None:
            assert "0.5 s longer than the whole exchange" in (await rig.refused()).reason
        else:
            update = await rig.updated()
            assert update.timing.round_trip_s == pytest.approx(round_trip_s)
            assert update.server_host.suspended_s == 4.0


async def test_the_last_frame_tells_how_the_host_kept_time_during_the_upload() -> None:
    async with ClientActorRig(BIG).at_work() as rig:
        vector_ = vector(BIG)
        first, _ = upload(vector_, host=pb.Host(loop_lag_s=0.5, still_before_s=2.0))
        rig.stream.give(first)
        _, frames = cut(vector_, digest(vector_))
        frame = pb.Frame(index=1, host=pb.Host(loop_lag_s=0.5, stopped_s=3.0, still_before_s=2.0))
        rig.stream.give(pack(pb.ClientMessage(frame=frame), frames[1]))
        update = await rig.updated()
        assert (update.host, update.still_before_s) == (HostReport(loop_lag_s=0.5, stopped_s=3.0), 2.0)
