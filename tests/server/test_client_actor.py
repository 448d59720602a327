"""One client's actor on the server: exact timings, pings, and checks. No message of the client ends the actor."""

import asyncio
import math
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pausefl
from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Budget, Release
from pausefl_proto.errors import DamageError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, Vector, cut, digest, pack_job, unpack
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.records import Ping
from pausefl_server.rounds.membership import PingSchedule
from pausefl_server.rounds.messages import Refusal
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.command import query
from rigs.experiments import small

BIG = MAX_FRAME_BYTES // 4 + 100
GOODBYE = pb.ClientMessage(goodbye=pb.Goodbye(reason="battery low")).SerializeToString()


async def test_the_round_trip_runs_from_the_first_frame_handed_over_to_the_last_received() -> None:
    rig = ClientActorRig(BIG)
    rig.stream.write_s = 0.25  # each of the model's two frames takes this long to hand over
    parts = {"download_s": 0.25, "injected_down_s": 0.5, "queue_s": 0.125, "train_s": 2.0, "privatise_s": 0.0625}
    timing = pb.Timing(**parts, injected_up_s=1.0, drawn_down_s=0.5, drawn_up_s=1.0)
    release = pb.Release(participation=4, epsilon=0.5, epsilon_spent=1.5)  # of an earlier stream's job, and this one's
    labels = {f"label_{c}": 1.0 for c in range(9)}
    messages = upload(vector(BIG), timing=timing, release=release, loss=0.75, statistics=labels)
    async with rig.at_work():
        rig.stream.give(messages[0], after_s=4.0)
        rig.stream.give(messages[1], after_s=0.5)
        update = await rig.updated()
    t = update.timing
    assert (t.round_trip_s, t.upload_s) == (0.25 + 0.25 + 4.0 + 0.5, 0.5)
    assert {name: getattr(t, name) for name in (*parts, "injected_up_s")} == {**parts, "injected_up_s": 1.0}
    assert (t.device_s, t.communication_s, t.propagation_s) == (2.1875, 2.8125, 0.5625)
    assert (update.drawn_down_s, update.drawn_up_s, update.loss) == (0.5, 1.0, 0.75)
    assert (update.client_id, update.round, update.attempt) == ("client-1", 1, 1)
    assert (update.release, update.vector.tobytes()) == (Release(4, 0.5, 1.5), vector(BIG).tobytes())
    assert [*update.statistics] == [*labels], "sorted, so that a repeated run has the same log"
    model = np.zeros(BIG, np.float32)
    assert update.bytes_down == sum(map(len, pack_job(1, 1, model, digest(model)))), "as they travel"
    assert update.bytes_up == sum(map(len, messages))


async def test_a_job_that_is_given_again_is_timed_from_its_first_hand_over_to_the_arrival_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientActorRig()

    def report(since_s: float, compute_s: float) -> HostReport:
        rig.clock.advance(1.0)
        return HostReport(loop_lag_s=since_s)

    monkeypatch.setattr(rig.watch, "report", report)
    began_s = rig.clock()
    rig.clock.advance(4.0)
    async with rig.running():
        await rig.dispatch(handed_over_s=began_s)
        rig.answer(after_s=2.0)
        update = await rig.updated()
    assert (update.timing.round_trip_s, update.timing.reconnect_s) == (6.0, 4.0)
    assert update.server_host.loop_lag_s == began_s, "the host is watched as long"


async def test_time_between_jobs_belongs_to_no_exchange() -> None:
    async with ClientActorRig().running() as rig:
        for t in (1, 2):
            rig.clock.advance(100.0)
            await rig.dispatch(round=t)
            rig.answer(t, after_s=0.5)
            assert (await rig.updated()).timing.round_trip_s == 0.5


async def test_it_says_what_the_coordinator_wants_said_in_order() -> None:
    async with ClientActorRig().running() as rig:
        await rig.actor.tell(pb.Ack(round=4, attempt=2))
        await rig.dispatch(round=5)
        await rig.actor.ask(pb.Goodbye(reason="come back", final=False))
        said = [pb.ServerMessage.FromString(unpack(await rig.stream.heard_bytes())[0]) for _ in range(3)]
        assert rig.actor.stopped
    assert (said[0].ack.round, said[0].ack.attempt) == (4, 2)
    assert said[1].job.round == 5
    assert (said[2].goodbye.reason, said[2].goodbye.final) == ("come back", False)


@pytest.mark.parametrize(("last", "reason"), [(None, "its stream ended"), (GOODBYE, "battery low")])
async def test_why_a_client_left_is_known(last: bytes | None, reason: str) -> None:
    async with ClientActorRig().running() as rig:
        rig.stream.give(last)
        assert rig.reason is not None
        assert await rig.reason == reason


async def test_a_client_that_cannot_says_so_and_is_not_counted_as_wrong() -> None:
    async with ClientActorRig().running() as rig:
        for t, status in enumerate((pb.STATUS_FAILED, pb.STATUS_BUDGET_EXHAUSTED), start=1):
            await rig.dispatch(round=t)
            rig.say(result=pb.Result(round=t, attempt=1, status=status, reason="=sorry"))
            refusal = await rig.refused()
            kind = "exhausted" if status == pb.STATUS_BUDGET_EXHAUSTED else "refused"
            assert (refusal.round, refusal.reason, refusal.kind) == (t, "sorry", kind)
        await rig.accepts_the_next_job()


@pytest.mark.parametrize(("afforded", "is_believed"), [(3, True), (4, False), (None, False)])
async def test_a_budget_is_spent_only_where_its_schedule_bears_it_out(afforded: int | None, is_believed: bool) -> None:
    """The hello counts two releases and one more may be under way: at most three when the first job arrives."""
    plain = Budget(10.0, 0.1)
    budget = Budget(10.0, 0.1, plain.epsilon(afforded)) if afforded else plain
    async with ClientActorRig(budget=budget).at_work() as rig:
        rig.say(result=pb.Result(round=1, attempt=1, status=pb.STATUS_BUDGET_EXHAUSTED, reason="spent"))
        refusal = await rig.refused()
        assert refusal.kind == ("exhausted" if is_believed else "rejected")
        assert ("affords more" in refusal.reason) == (not is_believed)
        await rig.accepts_the_next_job()


def test_a_budget_is_spent_where_its_floor_or_its_noise_allows_no_more() -> None:
    budget = Budget(10.0, 0.1)
    assert [budget.may_be_spent(n) for n in (0, 200, 210, 1000)] == [False, False, True, True]
    with_floor = Budget(10.0, 0.1, budget.epsilon(3))
    assert [with_floor.may_be_spent(n) for n in (1, 2, 3, 4)] == [False, False, True, True]


# -- rejected answers: name -> (what the client sends instead of a valid answer, the reason given)

NOT_FINITE = [math.nan, math.inf, -math.inf]
IMPOSSIBLE = [*NOT_FINITE, -1.0, 1.7e308]  # in seconds; sums of the last one would be infinite


def with_value(value: float) -> Vector:
    damaged = vector(5)
    damaged[3] = value
    return damaged


def timed(**parts: float) -> bytes:
    return upload(vector(5), timing=pb.Timing(**parts))[0]


DAMAGED = {
    "too small": (upload(vector(4))[0], "announces 16 bytes, the model has 20"),
    "too large": (upload(vector(6))[0], "announces 24 bytes, the model has 20"),
    "nothing announced": (upload(vector(5), update=pb.Vector())[0], "announces 0 bytes"),
    "payload missing": (unpack(upload(vector(5))[0])[0], "frame 0 has 0 bytes"),
    "wrong checksum": (
        upload(vector(5), update=cut(vector(5), digest(with_value(0.0)))[0])[0],
        "checksum does not match",
    ),
    "another round": (upload(vector(5), round=2)[0], "answered round 2 attempt 1, which it was not asked for"),
    "another attempt": (upload(vector(5), attempt=2)[0], "answered round 1 attempt 2, which it was not asked for"),
}


@pytest.mark.parametrize("what", DAMAGED)
async def test_a_damaged_answer_is_asked_for_again_by_the_same_job(what: str) -> None:
    data, _ = DAMAGED[what]
    async with ClientActorRig().at_work() as rig:
        job = await rig.stream.heard_bytes()
        rig.stream.give(data, after_s=1.0)
        assert await rig.stream.heard_bytes() == job
        rig.answer(after_s=1.0)
        update = await rig.updated()
        # An exchange's stopwatch never restarts. The time before the second hand-over is not the link's.
        assert (update.timing.round_trip_s, update.bytes_down) == (2.0, 2 * len(job))
        assert (update.timing.reconnect_s, update.timing.propagation_s, update.timing.server_wait_s) == (1.0, 1.0, 0.0)
    assert rig.coordinator.told.empty()


@pytest.mark.parametrize("what", DAMAGED)
async def test_an_answer_that_is_always_damaged_is_rejected_in_the_end(what: str) -> None:
    data, reason = DAMAGED[what]
    async with ClientActorRig().at_work() as rig:
        for _ in range(4):
            await rig.stream.heard_bytes()
            rig.stream.give(data)
        refusal = await rig.refused()
        assert (refusal.round, refusal.kind) == (1, "rejected")
        assert reason in refusal.reason
        await rig.accepts_the_next_job()


REJECTED = {
    "more releases than can be": (
        upload(vector(5), release=pb.Release(participation=5, epsilon=1.0, epsilon_spent=5.0))[0],
        "counts 5 releases, at most 4 are possible since its hello",
    ),
    **{f"{value} in it": (upload(with_value(value))[0], "not finite") for value in NOT_FINITE},
    **{f"a duration of {v}": (timed(queue_s=v), "queue_s = ") for v in (*IMPOSSIBLE, 1e8)},
    **{f"a drawn delay of {v}": (timed(drawn_up_s=v), "drawn_up_s = ") for v in (*IMPOSSIBLE, 1e8)},
    **{f"a host's lag of {v}": (upload(vector(5), host=pb.Host(loop_lag_s=v))[0], "loop_lag_s = ") for v in IMPOSSIBLE},
    "parts beyond the whole": (timed(train_s=1.0, download_s=1.5), "1.5 s longer than the whole exchange"),
    "too many statistics": (
        upload(vector(5), statistics={str(k): 1.0 for k in range(1025)})[0],
        "more than 1024 labels",
    ),
    "a statistic of too long a name": (upload(vector(5), statistics={"label_0" + 60 * "0": 1.0})[0], "too long names"),
    **{f"a statistic of {v}": (upload(vector(5), statistics={"label_0": v})[0], "label_0") for v in (math.nan, 1e308)},
}


@pytest.mark.parametrize("what", REJECTED)
async def test_a_wrong_answer_is_rejected_with_a_reason_and_the_actor_goes_on(what: str) -> None:
    data, reason = REJECTED[what]
    async with ClientActorRig().at_work() as rig:
        rig.stream.give(data, after_s=1.0)
        refusal = await rig.refused()
        assert (refusal.client_id, refusal.kind) == ("client-1", "rejected")
        assert refusal.release == Release(), "what cannot be is not believed"
        assert reason in refusal.reason
        await rig.accepts_the_next_job()
    assert rig.coordinator.told.empty()


@pytest.mark.parametrize("epsilon", [0.0, -1.0])
async def test_an_epsilon_from_which_no_noise_follows_is_left_to_the_coordinator(epsilon: float) -> None:
    async with ClientActorRig(norm_bound=NormBound("vector", 1.0)).at_work() as rig:
        rig.answer(release=pb.Release(participation=3, epsilon=epsilon))
        update = await rig.updated()
        assert update.release.epsilon == epsilon


@pytest.mark.parametrize(
    ("times", "size", "train_s"), [(1, 5, -1.0), (4, 6, 0.0), (2, 5, 0.0)], ids=["a bad timing", "damaged", "once more"]
)
async def test_a_rejection_names_the_attempt_that_was_answered(times: int, size: int, train_s: float) -> None:
    """With the number of another attempt, the round would wait until its deadline."""
    async with ClientActorRig().running() as rig:
        await rig.dispatch(round=3, attempt=2)
        for _ in range(times):
            rig.stream.give(upload(vector(size), round=3, attempt=2, timing=pb.Timing(train_s=train_s))[0])
        while not isinstance(refusal := await rig.told(), Refusal):
            pass
    assert (refusal.round, refusal.attempt, refusal.kind) == (3, 2, "rejected")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff", "no message"),
        (b"\x7a\xff", "no message"),
        (b"", "unexpected message"),
        (pb.ClientMessage(hello=pb.Hello(client_id="client-1")).SerializeToString(), "unexpected message (hello)"),
    ],
)
async def test_what_makes_no_sense_ends_the_stream(data: bytes, reason: str) -> None:
    rig = ClientActorRig()
    rig.stream.give(data)
    with pytest.raises(DamageError, match=re.escape(reason)):
        await rig.actor.listen()


@pytest.mark.parametrize(
    ("whole_s", "parts_s", "is_taken"),
    [
        (1.0, {"train_s": 1.0005}, True),
        (86_400.0, {"download_s": 3e4, "injected_down_s": 3e4, "train_s": 80.0, "injected_up_s": 26_400.0}, True),
        (600.0, {"train_s": 650.0}, True),
        (600.0, {"train_s": 670.0}, False),
    ],
)
async def test_parts_exceed_the_whole_as_far_as_clocks_disagree(
    whole_s: float, parts_s: dict[str, float], is_taken: bool
) -> None:
    """Two clocks are read at different instants. One may be slewed by a twelfth, and drift besides."""
    async with ClientActorRig().at_work() as rig:
        rig.answer(after_s=whole_s, timing=pb.Timing(**parts_s))
        if is_taken:
            assert (await rig.updated()).timing.train_s == parts_s["train_s"]
        else:
            assert "s longer than the whole exchange" in (await rig.refused()).reason


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_same_answer_twice_is_rejected_the_second_time(is_late: bool) -> None:
    async with ClientActorRig().at_work() as rig:
        if is_late:
            rig.actor.offer(pb.Withdraw(round=1, attempt=1))
            await rig.dispatch(round=2)
        for _ in range(2):
            rig.answer(release=pb.Release(participation=1, epsilon=2.0, epsilon_spent=2.0))
        await rig.updated()
        refusal = await rig.refused()
    assert (refusal.kind, refusal.release) == ("rejected", Release(1, 2.0, 2.0)), "spent all the same"


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_job_that_was_answered_cannot_be_dropped_unpaid_as_well(is_late: bool) -> None:
    async with ClientActorRig().at_work() as rig:
        for is_before in (True, False):
            if is_before == is_late:
                assert rig.actor.offer(pb.Withdraw(round=1, attempt=1))
            if is_before:
                rig.answer()
                await rig.updated()
        rig.say(result=pb.Result(round=1, attempt=1, status=pb.STATUS_WITHDRAWN))
        refusal = await rig.refused()
        assert (refusal.kind, refusal.round) == ("rejected", 1)
        await rig.accepts_the_next_job()


async def test_a_late_answer_to_an_earlier_round_leaves_the_job_at_hand_alone() -> None:
    async with ClientActorRig().running() as rig:
        for round_ in range(1, 11):
            await rig.dispatch(round_)
        for round_ in range(1, 11):
            rig.answer(round_)
        assert [(await rig.refused()).round for _ in range(9)] == [*range(1, 10)], "nobody has to rest for being late"
        assert (await rig.updated()).round == 10


@pytest.mark.parametrize("loss", [*NOT_FINITE, 1.7e308, -1.7e308])
async def test_a_loss_that_is_no_number_is_as_good_as_none(loss: float) -> None:
    """Such a loss comes from a training that diverged. Its clipped update may still be valid."""
    async with ClientActorRig().at_work() as rig:
        rig.answer(loss=loss)
        assert (await rig.updated()).loss is None


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_arbitrary_bytes_end_the_stream_or_leave_it_alone(messages: list[bytes]) -> None:
    async def scenario() -> None:
        rig = ClientActorRig()
        running = asyncio.ensure_future(rig.coordinator.run())
        writing = asyncio.ensure_future(rig.actor.run())
        await rig.dispatch()
        for data in (*messages, None):
            rig.stream.give(data)
        with suppress(DamageError):
            await rig.actor.listen()
        rig.actor.stop()
        rig.coordinator.stop()
        await asyncio.gather(running, writing)

    asyncio.run(scenario())


def begun(pings_per_s: float, client_ids: str) -> PingSchedule:
    """A ping schedule at time 0, with these clients."""
    schedule = PingSchedule(pings_per_s)
    for client_id in client_ids:
        schedule.join(client_id)
    assert schedule.take_due(0.0, ()) == []
    return schedule


def test_everybody_is_pinged_in_turn_at_the_rate_asked_for_and_a_long_pause_earns_a_seconds_worth() -> None:
    assert [begun(rate, "abcdef").take_due(3600.0, ()) for rate in (0.0, 2.0)] == [[], ["a", "b"]]
    schedule = begun(4.0, "abc")
    assert schedule.take_due(0.5, ()) == ["a", "b"]
    assert schedule.take_due(0.6, ()) == []
    assert schedule.take_due(0.75, ()) == ["c"]
    assert sum(len(schedule.take_due(1.0 + 0.01 * i, ())) for i in range(1000)) == pytest.approx(40, abs=1)


def test_the_busy_stay_first_in_line_and_the_gone_are_not_pinged() -> None:
    schedule = begun(1.0, "abc")
    assert schedule.take_due(1.0, {"a"}) == ["b"]
    schedule.leave("c")
    assert schedule.take_due(2.0, ()) == ["a"]
    assert schedule.take_due(3.0, {"a", "b"}) == []
    assert schedule.take_due(4.0, ()) == ["b"]


async def test_a_ping_is_timed_and_one_that_a_job_overtook_is_not() -> None:
    rig = ClientActorRig(size=1)

    async def pinged() -> int:
        await rig.actor.tell(pb.Ping())
        return pb.ServerMessage.FromString(await rig.stream.heard_bytes()).ping.nonce

    async with rig.running():
        rig.say(pong=pb.Pong(nonce=0))  # nobody was pinged
        nonce = await pinged()
        rig.clock.advance(0.25)
        rig.say(pong=pb.Pong(nonce=nonce + 1))  # answers no ping
        for _ in range(2):  # the first answers
            rig.say(pong=pb.Pong(nonce=nonce))
        nonce = await pinged()
        await rig.dispatch()
        await rig.stream.heard_bytes()
        rig.say(pong=pb.Pong(nonce=nonce))
        await rig.actor.ask(pb.Ping())  # at work: not sent
    assert rig.stream.is_silent()
    assert await rig.told() == Ping("client-1", 0.25)
    assert rig.coordinator.told.empty()


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
def test_clients_that_were_not_chosen_have_a_baseline(tmp_path: Path) -> None:
    keys = {"selection.m": 1, "experiment.rounds": 12, "latency.time_scale": 0.1, "server.pings_per_s": 50.0}
    pausefl.run(small({"experiment.clock": "real", **keys}), tmp_path / "run", progress=False)
    baseline = query(tmp_path / "run", "SELECT client_id, pings, ping_min_s FROM ping_baseline")
    ((wall_clock_s,),) = query(tmp_path / "run", "SELECT max(wall_clock_s) FROM rounds")
    assert {client_id for client_id, *_ in baseline} == {f"client-{k:03}" for k in range(4)}
    assert sum(pings for _, pings, _ in baseline) <= 50 * (wall_clock_s + 1)
    assert all(0 < ping_s < 0.05 for *_, ping_s in baseline)
