"""A client's session on a fake stream: jobs, timings, kept bytes, and reconnecting after a broken stream."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import pytest

from pausefl_client.jobs import AnsweredJob, Withdrawals
from pausefl_client.link import Delays
from pausefl_client.training.withdrawal import Withdrawal
from pausefl_process.host_monitor import HostReport, HostWatch
from pausefl_proto.budget import Budget
from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, Manifest, encode, unpack
from rigs.clock import Clock
from rigs.session import BUDGET, SCHEDULE, SessionRig, held_back, private, welcomed
from rigs.waiting import wait_for

Given = ParamSpec("Given")
Result = TypeVar("Result")


@pytest.mark.parametrize("is_private", [True, False])
async def test_a_hello_says_who_it_is_and_what_it_has_spent_where_it_has_a_ledger(
    tmp_path: Path, is_private: bool
) -> None:
    rig = SessionRig(ledger_in=tmp_path if is_private else None)
    async with rig.running():
        hello = (await (await rig.server.accept()).heard()).hello
    assert (hello.protocol_version, hello.client_id, hello.n_examples) == (PROTOCOL_VERSION, "client-007", 42)
    assert Manifest.from_message(hello.manifest) == rig.trainer.manifest
    expected = pb.Ledger(schedule=SCHEDULE, at_work=pb.Work()) if is_private else pb.Ledger()
    assert (hello.HasField("ledger"), hello.ledger) == (is_private, expected)


async def test_every_part_of_an_exchange_is_timed_where_it_happens(tmp_path: Path) -> None:
    clock, size = Clock(), MAX_FRAME_BYTES // 4 + 1
    privacy = private(tmp_path, clock, privatise_s=0.125)

    class Slow(ThreadPoolExecutor):
        """An executor whose work waits for its thread, and whose results wait for the event loop."""

        def submit(self, work: Callable[Given, Result], /, *given: Given.args, **more: Given.kwargs) -> Future[Result]:
            def between_waits() -> Result:
                clock.advance(0.25)
                result = work(*given, **more)
                clock.advance(0.5)
                return result

            return super().submit(between_waits)

    with Slow(1) as executor:
        async with welcomed(size=size, train_s=2.0, privacy=privacy, executor=executor, clock=clock) as (rig, stream):
            result, _ = await stream.ask(rig.model, schedule=SCHEDULE, gap_s=0.5)
    t = result.timing
    assert (t.download_s, t.queue_s, t.train_s, t.privatise_s) == (0.5, 0.75, 2.0, 0.125)
    assert (t.injected_down_s, t.injected_up_s, t.drawn_down_s, t.drawn_up_s) == (0.0, 0.0, 0.0, 0.0)
    (job,) = rig.answered
    assert (job.client_id, job.status, job.result.round, job.result.timing) == ("client-007", "ok", 1, t)


class AlwaysStill(HostWatch):
    """A host that stood still whenever it was not observed. It keeps how long a time each report is of."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.asked: list[tuple[float, float]] = []

    def report(self, since_s: float, compute_s: float) -> HostReport:
        self.asked.append((self.clock() - since_s, compute_s))
        return HostReport()

    def stood_still_s(self, since_s: float, until_s: float) -> float:
        return until_s - since_s


async def test_stops_before_a_job_are_told_back_to_when_the_last_one_came_and_those_since_with_each_report() -> None:
    """While the host stood still during the last job, this job may have arrived too, and waited."""
    rig = SessionRig(size=MAX_FRAME_BYTES // 4 + 1, train_s=2.0)
    rig.session._host = replace(rig.session._host, monitor=(watch := AlwaysStill(rig.clock)))
    async with rig.welcomed() as stream:
        for round_, before_s in ((1, 0.0), (2, 2.5), (3, 2.5)):
            result, _ = await stream.ask(rig.model, round=round_, gap_s=0.5)
            assert result.host.still_before_s == before_s
    assert watch.asked == [(2.5, 2.0)] * 6, "with the update's first and last frame"


async def test_injected_delays_are_reported_as_measured_and_as_drawn() -> None:
    tick_s = 3 * 2**-14
    async with welcomed(train_s=2.0, delays=lambda t: Delays(2**-11, 2**-10 / t)) as (rig, stream):
        time_passes = asyncio.ensure_future(let_time_pass(rig.clock, tick_s))
        for round_ in (1, 2):
            stream.give_job(rig.model, round_)
        timing, after = [(await stream.upload())[0].timing for _ in range(2)]
        time_passes.cancel()
    assert (timing.drawn_down_s, timing.drawn_up_s) == (2**-11, 2**-10)
    assert 2**-11 < timing.injected_down_s <= 2**-11 + 4 * tick_s
    assert 2**-10 < timing.injected_up_s <= 2**-10 + 4 * tick_s
    assert (after.drawn_down_s, after.drawn_up_s) == (2**-10, 2**-11), "the update before leaves the link first"
    async with welcomed() as (rig, stream):
        now_s = rig.clock()
        rig.session._held_from_s, rig.session._held_until_s = now_s - 1.0, now_s + 0.25
        result, _ = await stream.ask(rig.model)
    assert result.timing.drawn_down_s == 0.25, "what was left of it when the model came"


async def let_time_pass(clock: Clock, tick_s: float) -> None:
    while True:
        clock.advance(tick_s)
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 6, MAX_FRAME_BYTES // 4 + 1, MAX_FRAME_BYTES // 2 + 7])
async def test_an_update_of_any_size_arrives_whole(size: int) -> None:
    async with welcomed(size=size) as (rig, stream):
        result, update = await stream.ask(rig.model, round=3)
    assert (result.round, result.attempt, result.status) == (3, 1, pb.STATUS_OK)
    assert update == np.random.default_rng(1).standard_normal(size, np.float32).tobytes()
    assert not result.HasField("release")


@pytest.mark.parametrize("told_to", [True, False])
async def test_a_loss_is_told_only_by_a_client_that_discloses_it(told_to: bool) -> None:
    async with welcomed(discloses_loss=told_to) as (rig, stream):
        result, _ = await stream.ask(rig.model)
    assert (result.HasField("loss"), result.loss) == (told_to, 0.25 if told_to else 0.0)


async def test_a_ping_is_answered_while_the_trainer_works() -> None:
    async with held_back() as (rig, stream):
        stream.give_job(rig.model)
        stream.say(ping=pb.Ping(nonce=99))
        assert (await stream.heard()).pong.nonce == 99
        assert stream.is_silent()
        rig.trainer.gate.set()
        assert (await stream.upload())[0].round == 1


async def test_asked_again_after_a_broken_line_it_sends_the_same_bytes_and_charges_once(tmp_path: Path) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, first):
        result, update = await first.ask(rig.model, schedule=SCHEDULE)
        first.give(OSError("the line broke"))
        second = await rig.server.welcome()
        again, same = await second.ask(rig.model, schedule=SCHEDULE)
        _, once_more = await second.ask(rig.model, schedule=SCHEDULE)  # its upload arrived damaged
        other, _ = await second.ask(rig.model + 1, schedule=SCHEDULE)  # another model for the same round
    assert update == same == once_more
    assert (again.update, again.release) == (result.update, result.release)
    assert (result.release.participation, result.release.epsilon) == (1, BUDGET.epsilon(1))
    assert (other.release.participation, rig.ledger.spent.released, rig.trainer.rounds) == (2, 2, [1, 1])
    # Training and noise belong to the earlier exchange.
    assert (again.timing.train_s, again.timing.privatise_s, result.resent, again.resent) == (0.0, 0.0, False, True)
    assert [job.status for job in rig.answered] == ["ok", "resent", "resent", "ok"]


async def test_a_line_that_breaks_in_the_middle_of_an_upload_costs_nothing_more(tmp_path: Path) -> None:
    async with welcomed(size=MAX_FRAME_BYTES // 2 + 7, ledger_in=tmp_path) as (rig, first):
        first.writes_until_break = 2  # the header with frame 0, and frame 1; frame 2 is lost
        first.give_job(rig.model, schedule=SCHEDULE)
        lost = pb.ClientMessage.FromString(unpack(await first.heard_bytes())[0]).result
        await first.heard_bytes()
        first.give(OSError("the line broke"))
        second = await rig.server.welcome()
        again, _ = await second.ask(rig.model, schedule=SCHEDULE)  # the rig checks every byte against the digest
    assert (again.update, rig.ledger.spent.released) == (lost.update, 1)


async def test_a_line_that_breaks_while_it_trains_does_not_train_twice(tmp_path: Path) -> None:
    async with held_back(ledger_in=tmp_path) as (rig, first):
        stream = first
        for _ in range(2):
            stream.give_job(rig.model, schedule=SCHEDULE)
            await stream.all_read()  # so the job was accepted before the stream breaks
            stream.give(None)
            stream = await rig.server.welcome()
            assert rig.server.hello.ledger.at_work.round == 1, "its ledger will count one release more"
        stream.give_job(rig.model, schedule=SCHEDULE)
        rig.trainer.gate.set()
        result, _ = await stream.upload()
        stream.give(None)
        await rig.server.welcome()
        assert rig.server.hello.ledger.at_work.round == 0, "its ledger counts that release now"
    assert (result.status, rig.trainer.rounds, rig.ledger.spent.released) == (pb.STATUS_OK, [1], 1)


@pytest.mark.parametrize(("round", "attempt"), [(1, 1), (2, 1), (1, 2), (0, 0)])
async def test_an_update_is_forgotten_once_it_is_acknowledged(round: int, attempt: int) -> None:
    async with welcomed() as (rig, stream):
        _, update = await stream.ask(rig.model)
        stream.say(ack=pb.Ack(round=round, attempt=attempt))
        is_forgotten = (await stream.ask(rig.model))[1] != update
    assert is_forgotten == ((round, attempt) == (1, 1))
    assert rig.trainer.rounds == [1] * (1 + is_forgotten)


@pytest.mark.parametrize(("run_id", "fate"), [("run", "settled"), ("another", "written off")])
async def test_a_later_rounds_job_acknowledges_the_rounds_before_in_its_run(
    run_id: str, fate: str, tmp_path: Path
) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, stream):
        await stream.ask(rig.model, 1, SCHEDULE)
        stream.give(None)
        await (await rig.server.welcome(run_id)).ask(rig.model, 2, SCHEDULE)
        assert rig.ledger._db.execute("SELECT fate FROM releases").fetchall() == [(fate,), ("open",)]


async def test_a_spent_budget_is_said_and_the_client_stays(tmp_path: Path) -> None:
    privacy = private(tmp_path, Clock(), Budget(10.0, 0.5, epsilon_floor=BUDGET.epsilon(1)))
    async with welcomed(privacy=privacy) as (rig, stream):
        assert (await stream.ask(rig.model, round=1, schedule=SCHEDULE))[0].status == pb.STATUS_OK
        for round_ in (2, 3):
            refusal = await stream.refusal(rig.model, round_, SCHEDULE)
            assert (refusal.round, refusal.status) == (round_, pb.STATUS_BUDGET_EXHAUSTED)
            assert refusal.reason == "its privacy budget allows no further release"
            assert rig.answered[-1] == AnsweredJob("client-007", "budget_exhausted", refusal)
        await stream.all_read()
    assert (rig.ledger.spent.released, rig.trainer.rounds) == (1, [1]), "no training without a budget for it"


@pytest.mark.parametrize("error", [PauseflError("no data"), ValueError("a bug"), OSError("disk"), StopIteration("end")])
async def test_a_trainer_that_fails_fails_its_job_and_not_the_client(error: Exception) -> None:
    rig = SessionRig()
    rig.trainer.fails_in = {1: error}
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model)
        assert (refusal.round, refusal.status) == (1, pb.STATUS_FAILED)
        assert str(error) in refusal.reason
        assert (await stream.ask(rig.model, round=2))[0].round == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_an_update_that_is_not_finite_is_refused_before_the_charge(
    value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = SessionRig(ledger_in=tmp_path)
    rig.trainer.first_value = {1: value}
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model, 1, SCHEDULE)
        assert (refusal.round, refusal.status) == (1, pb.STATUS_FAILED)
        assert refusal.reason == "it failed at the job; its own log says why"
        assert rig.ledger.spent.released == 0
        assert (await stream.ask(rig.model, round=2, schedule=SCHEDULE))[0].release.participation == 1
    assert [job.status for job in rig.answered] == ["not_finite", "ok"]
    assert "client-007: round 1 failed: its update holds values that are not finite" in caplog.text


@pytest.mark.parametrize("error", [OverflowError("math range error"), SystemExit("bye")])
async def test_a_link_that_fails_fails_its_job_and_not_the_client(error: BaseException) -> None:
    def draw(round: int) -> Delays:
        if round == 1:
            raise error
        return Delays()

    async with welcomed(delays=draw) as (rig, stream):
        refusal = await stream.refusal(rig.model)
        assert (refusal.round, refusal.status) == (1, pb.STATUS_FAILED)
        said = f"{type(error).__name__}: {error}"
        assert re.fullmatch(rf"{said} \(.*test_session\.py:\d+\)", refusal.reason)
        assert (await stream.ask(rig.model, round=2))[0].round == 2


@pytest.mark.parametrize("how", ["goodbye", "closed", "broken"])
async def test_it_comes_back_until_it_is_dismissed(how: str) -> None:
    rig = SessionRig()
    async with rig.running() as task:
        for _ in range(3):
            stream = await rig.server.welcome()
            if how == "goodbye":
                stream.say(goodbye=pb.Goodbye(reason="restarting", final=False))
            else:
                stream.give(None if how == "closed" else OSError("reset"))
        last = await rig.server.welcome()
        last.writes_until_break = 0  # as once the server has ended, which has said goodbye before
        last.give_job(rig.model)
        await asyncio.to_thread(wait_for, lambda: rig.trainer.rounds, "the job")
        last.say(goodbye=pb.Goodbye(reason="enough", final=True))
        assert await asyncio.wait_for(task, 20) == "enough"
    assert rig.server.closed == 4


NOT_YET = pb.ServerMessage(goodbye=pb.Goodbye(reason="not yet"))
TORN_REFUSAL = encode(pb.ServerMessage(goodbye=pb.Goodbye(reason="unknown client", final=True)))[:-1]


@pytest.mark.parametrize("answer", [None, NOT_YET.SerializeToString(), OSError("reset"), b"\xff\xff\xff", TORN_REFUSAL])
async def test_a_server_that_is_not_ready_or_not_understood_is_asked_again(answer: bytes | OSError | None) -> None:
    rig = SessionRig()
    async with rig.running():
        (await rig.server.accept()).give(answer)
        assert (await (await rig.server.welcome()).ask(rig.model))[0].status == pb.STATUS_OK


@pytest.mark.parametrize("how", ["closed", "broken"])
async def test_patience_counts_from_the_last_contact_however_long_that_lasted(how: str) -> None:
    """A client must not give up at once because its last stream lasted an hour."""
    rig = SessionRig()
    began_s = rig.clock()
    async with rig.running() as task:
        (await rig.server.welcome()).give(None if how == "closed" else OSError("reset"), after_s=3600.0)
        again = await rig.server.welcome()
        rig.server.unreachable = True
        again.give(OSError("reset"))
        with pytest.raises(PauseflError, match="cannot be reached"):
            await asyncio.wait_for(task, 20)
    assert 3660 < rig.clock() - began_s < 3663


async def test_cancelling_it_closes_its_stream() -> None:
    rig = SessionRig()
    async with rig.running():
        await rig.server.welcome()
    assert rig.server.opened == rig.server.closed == 1


def test_a_job_that_is_given_again_is_withdrawn_only_if_that_is_said_again() -> None:
    withdrawals, job, said = Withdrawals(), pb.Job(round=1, attempt=1), pb.Withdraw(round=1, attempt=1)
    first = withdrawals.begin(job)
    assert withdrawals.begin(job) is first, "on another stream: it is the same job"
    withdrawals.withdraw(said)
    again = withdrawals.begin(job)
    assert (first.is_set(), again.is_set()) == (True, False)
    withdrawals.withdraw(said)
    assert again.is_set()


def test_of_nine_jobs_the_first_is_forgotten() -> None:
    withdrawals = Withdrawals()
    jobs = [withdrawals.begin(pb.Job(round=t, attempt=1)) for t in range(1, 10)]
    for t in range(1, 10):
        withdrawals.withdraw(pb.Withdraw(round=t, attempt=1))
    assert [job.is_set() for job in jobs] == [False] + [True] * 8


@pytest.mark.parametrize("is_withdrawn_before", [True, False])
def test_a_trainer_hears_of_a_withdrawal_that_came_before_it_asked_as_well(is_withdrawn_before: bool) -> None:
    withdrawal, heard = Withdrawal(), list[str]()
    if is_withdrawn_before:
        withdrawal.set()
    with withdrawal.telling(lambda: heard.append("withdrawn")):
        withdrawal.set()
        assert heard == ["withdrawn"]
