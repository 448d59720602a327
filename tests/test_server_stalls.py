"""A server that stands still for a while: what it missed is its own lateness, not its clients'."""

import asyncio
import time
from collections.abc import Sequence

from pausefl_process.events import Notice, ProgressEvent, RoundCommitted
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.wire import Vector
from pausefl_server.records import Evaluation
from pausefl_server.rounds.evaluation import waiting_models_max
from pausefl_server.rounds.messages import Pinged
from rigs.coordinator import CoordinatorRig, MakeRig

STALL_S = 0.5


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
        for c in "ab":
            await r.join(c)
        await r.played()
        assert [(record.attempt, record.misses) for record in r.store.rounds()] == [(1, ()), (1, ())]


async def test_answers_that_come_once_the_server_goes_on_are_taken(rig: MakeRig) -> None:
    """As of a process that was stopped: what clients sent meanwhile is still in its sockets."""
    async with rig(rounds=1, round_timeout_s=0.2, minimum_clients=3).running() as r:
        a, b, c = [await r.join(c, manual=True) for c in "abc"]
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

    async with rig(rounds=5, round_timeout_s=5.0, evaluation_every=1, evaluate=evaluate).running() as r:
        for c in "ab":
            await r.join(c)
        await r.played()
        assert [(record.attempt, record.misses) for record in r.store.rounds()] == [(1, ())] * 5
        notices = [event.message for event in r.shown_of(Notice)]
        assert notices == ["round 3 is not evaluated, nor may later ones be: the evaluator is too slow"]
        is_over.set()


def test_waiting_models_take_a_gigabyte_at_most() -> None:
    assert [waiting_models_max(n) for n in (4, 40_000_000, 10**10)] == [256, 25, 1]
