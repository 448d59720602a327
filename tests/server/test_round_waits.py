"""How long a round waits for each client, also after the server stood still; and what a missing client costs."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_process.events import Notice, ProgressEvent, RoundCommitted
from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Release
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, Vector, cut, digest, pack
from pausefl_server.clients import ClientTable
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.monitoring.metrics import make_registry
from pausefl_server.records import Evaluation, LogEvent, Miss, Observation, Ping, RoundRecord, Timing
from pausefl_server.rounds.deadline import (
    FACTOR,
    GREATEST_S,
    LEAST_S,
    QUANTILE,
    RETRY_FACTOR,
    UNSEEN_S,
    Patience,
    round_timeout_s,
)
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.evaluation import waiting_models_max
from pausefl_server.rounds.messages import Dispatch, Refusal, Update
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.selection.base import Selection
from pausefl_server.selection.policies.baselines import All
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.settings import MetricsSettings
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.command import query
from rigs.coordinator import CoordinatorRig, MakeRig, answer_of
from rigs.settings import server_settings

SENT_S, TIMEOUT_S = 10.0, 30.0

STOPPED = HostReport(stopped_s=4.0)


def open_round(time_scale: float = 1.0) -> OpenStep:
    """A round with the clients a and b."""
    job, chosen = Dispatch(1, 1, (), 0.0, ready_s=SENT_S), Selection(np.array([0, 1]))
    opened = OpenStep(1, needed=2, settings=server_settings(8, time_scale=time_scale), elapsed=Elapsed(3.0, SENT_S))
    opened.give(job, chosen, ("a", "b"), sent_s=SENT_S, timeout_s=TIMEOUT_S)
    return opened


@pytest.mark.parametrize(("is_needed", "latency_s"), [(False, 2.0), (True, 15.0)])
def test_a_round_takes_the_wait_for_the_silent_only_where_they_were_needed(is_needed: bool, latency_s: float) -> None:
    opened, table = open_round(2.0), table_of({"a": [], "b": []})
    opened.take(answer_of("a", 1, Release(), timing=Timing(4.0)), table, now_s=14.0)
    if is_needed:
        assert opened.miss_overdue(40.0) == ["b"]
    else:
        opened.end(40.0)
    record = opened.record("", 40.0, 0.0, HostReport())
    kind = "timeout" if is_needed else "unneeded"
    assert [(miss.kind, miss.waited_s, miss.latency_s) for miss in record.misses] == [(kind, 30.0, 15.0)]
    assert record.round_latency_s == latency_s


@pytest.mark.parametrize(
    ("missed", "now_s", "at_work_s"),
    [
        (OpenStep.miss_overdue, 40.0, 30 / 0.1),
        (OpenStep.end, 15.0, 13.5 + 1),
        (lambda opened, now_s: opened.fail("b", "refused", "", now_s), 15.0, 5 / 0.1),
    ],
)
def test_jobs_are_out_in_elapsed_time_until_their_answer_or_miss(
    missed: Callable[[OpenStep, float], object], now_s: float, at_work_s: float
) -> None:
    """The answer states 1 s too much of training: 3 s of it and 1 s / 0.1 of upload count, and 0.5 s on the server."""
    opened = open_round(0.1)
    answer = answer_of("a", 1, Release(), timing=Timing(4.0, train_s=4.0, upload_s=1.0), arrived_s=13.5)
    opened.take(answer, table_of({"a": [], "b": []}), now_s=14.0)
    missed(opened, now_s)
    record = opened.record("", now_s, 0.0, HostReport())
    assert [(o.handed_out_s, o.came_back_s) for o in record.observations] == [(3.0, 3 + 13.5)]
    assert record.misses[0].at_work_s == record.elapsed_s - 3.0 == pytest.approx(at_work_s)
    assert record.round_latency_s <= record.elapsed_s


def test_a_step_waits_as_long_as_its_most_patient_hand_out_and_logs_details_of_the_last_and_misses_by_client() -> None:
    opened, last = open_round(), Selection(np.array([2]), details={"tier": 1.0}, cluster_penalty_s=0.5)
    opened.give(Dispatch(1, 2, (), 0.0, SENT_S), last, ("c",), SENT_S, timeout_s=1.0)
    assert opened.due == {"a": 40.0, "b": 40.0, "c": 11.0}
    opened.miss("c", "refused", "", SENT_S)
    opened.end(SENT_S)
    opened.selection_s = 0.25
    record = opened.record("", SENT_S, 0.0, HostReport())
    assert (record.deadline_s, record.selection_s) == (TIMEOUT_S, 0.25)
    assert (record.details, record.cluster_penalty_s) == ({"tier": 1.0}, 0.5)
    assert [miss.client_id for miss in record.misses] == [*"abc"]


def test_a_job_that_was_handed_out_later_in_elapsed_time_than_it_ended_took_no_time() -> None:
    """Waits count in real time until an answer tells how long they were at the emulated scale."""
    opened = open_round(4.0)
    opened.give(Dispatch(1, 2, (), 0.0, 14.0), Selection(np.array([2])), ("c",), sent_s=14.0, timeout_s=TIMEOUT_S)
    opened.take(answer_of("a", 1, Release(), timing=Timing(4.0), arrived_s=14.0), table_of({"a": []}), now_s=14.0)
    opened.miss("c", "refused", "", 14.0)
    assert (opened.jobs["c"].elapsed_s, opened.elapsed.elapsed_s, opened.misses["c"].at_work_s) == (7.0, 4.0, 0.0)
    assert opened.elapsed.at(13.0) == 4.0, "nor does it go back"


@pytest.mark.parametrize(
    ("late_s", "host", "suspect"),
    [(1.9, HostReport(), ()), (2.1, HostReport(), ("server deadline_s",)), (1.0, STOPPED, ("server stopped_s",))],
)
def test_an_absent_servers_misses_teach_nothing(late_s: float, host: HostReport, suspect: tuple[str, ...]) -> None:
    """The monitor saw a stop, or the server passed the deadline by more than the timeout itself."""
    opened, table = open_round(), table_of({"a": [], "b": []})
    now_s = SENT_S + late_s * TIMEOUT_S
    opened.take(answer_of("a", 1, Release(), arrived_s=now_s), table, now_s)
    opened.miss("b", "timeout", "", now_s)
    record = opened.record("", now_s, 0.0, host)
    assert record.suspect == suspect
    assert [miss.teaches for miss in record.misses] == [not suspect]
    assert [o.teaches for o in record.observations] == [late_s < 2.0], "its own window is what counts"
    early = open_round()
    early.take(answer_of("a", 1, Release(), arrived_s=SENT_S + 1.0), table, now_s)
    assert early.observations["a"].teaches, "it came in time, and waited for the server"
    early.take(answer_of("b", 1, Release(), arrived_s=SENT_S + 1.0, host=STOPPED), table, now_s)
    assert early.record("", now_s, 0.0, HostReport()).suspect == ("clients stopped_s",)


def test_a_lost_client_is_waited_for_until_it_should_be_back_and_never_beyond_the_deadline() -> None:
    opened = open_round()
    opened.lost("a", 20.0, None)
    opened.lost("b", 99.0, None)
    assert opened.due == {"a": 20.0, "b": 40.0}
    opened.returned("a", 15.0)
    assert opened.due == {"a": 40.0, "b": 40.0}
    opened.lost("c", 20.0, None)
    assert "c" not in opened.due
    assert opened.miss_overdue(40.0) == ["a", "b"]
    assert [opened.misses[client_id].kind for client_id in "ab"] == ["timeout", "lost"]


@pytest.mark.parametrize(("given_s", "expected"), [([SENT_S, 15.0], (SENT_S, SENT_S)), ([SENT_S - 1], (None, 16.0))])
def test_a_round_trip_runs_from_the_first_hand_over_of_this_rounds_job(
    given_s: list[float], expected: tuple[float | None, float]
) -> None:
    opened = open_round()
    for each_s in given_s:
        opened.lost("a", 20.0, each_s)
        job = opened.returned("a", 16.0)
        assert job is not None
        assert (job.handed_over_s, job.ready_s) == expected


def test_a_server_that_stood_still_waits_for_all_once_more_and_no_further_time() -> None:
    opened = open_round()
    for breaks in range(1, 6):
        opened.lost("a", 20.0, None)
        assert (opened.returned("a", 15.0) is None) is (breaks == 5)
    assert (opened.miss_overdue(45.0), opened.misses["a"].kind) == (["a"], "lost"), "it comes and goes"
    assert opened.due == {"b": 50.0}, "as long as the server stood still"
    assert (opened.miss_overdue(60.0), opened.misses["b"].waited_s) == (["b"], 50.0)


def test_a_server_that_stood_still_takes_no_clients_time_away() -> None:
    opened = open_round()
    opened.lost("a", 20.0, None)
    assert (opened.miss_overdue(20.5), opened.due) == ([], {"a": 21.0, "b": 40.0})


Answers = Mapping[str, Sequence[float | None]]
"""Each client's round trips in order, in seconds. None: a miss."""


def table_of(answers: Answers) -> ClientTable:
    table = ClientTable()
    table.apply_events([LogEvent("joined", client_id, n_examples=1) for client_id in answers], 1)
    for t in range(1, 1 + max(map(len, answers.values()))):
        taken = {c: seconds[t - 1] for c, seconds in answers.items() if t <= len(seconds)}
        seen = tuple(Observation(c, Timing(s), s, 1, 0, 0.0, 0.0) for c, s in taken.items() if s is not None)
        misses = tuple(Miss(c, "timeout", 1.0, 1.0) for c, s in taken.items() if s is None)
        table.apply_round(RoundRecord(t, 1, tuple(taken), None, seen, (), 1.0, misses=misses))
    return table


def deadline_s(answers: Answers, failed_attempts: int = 0, **changes: float) -> float:
    table, settings = table_of(answers), server_settings(1, round_timeout_s=None, **changes)
    return round_timeout_s(settings, table, np.arange(len(answers)), failed_attempts)


DEADLINES: dict[str, tuple[Answers, dict[str, float], float]] = {
    "never seen": ({"a": [], "b": [0.1]}, {}, UNSEEN_S),
    "one outlier": ({"a": [5.0] * 14 + [100.0]}, {}, FACTOR * 5.0),
    "two outliers of sixteen": ({"a": [100.0] + [5.0] * 14 + [100.0]}, {}, FACTOR * 100.0),
    "after a miss": ({"a": [0.1, None]}, {}, UNSEEN_S),
    "back after a miss": ({"a": [0.1, None, 0.1]}, {}, LEAST_S),
    "sixteen answers between misses": ({"a": [50.0, 50.0, *[5.0, None] * 16, 5.0]}, {}, FACTOR * 5.0),
    "slow, then a miss": ({"a": [50.0, None]}, {}, FACTOR * 50.0),
    "another attempt": ({"a": []}, {"failed_attempts": 1}, RETRY_FACTOR * UNSEEN_S),
    "another attempt with a fast client": ({"a": [0.1]}, {"failed_attempts": 1}, RETRY_FACTOR * LEAST_S),
    "many attempts": ({"a": []}, {"failed_attempts": 9}, GREATEST_S),
    "more attempts than floats hold": ({"a": []}, {"failed_attempts": 10**6}, GREATEST_S),
    "the cap": ({"a": [1e4]}, {}, GREATEST_S),
    "stretched": ({"a": []}, {"time_scale": 4.0}, 4 * UNSEEN_S),
    "the stretched cap": ({"a": [1e4]}, {"time_scale": 4.0}, 4 * GREATEST_S),
    "not shrunk": ({"a": []}, {"time_scale": 0.1}, UNSEEN_S),
}


@pytest.mark.parametrize("what", DEADLINES)
def test_a_deadline_is_that_of_the_slowest_clients_usual_round_trips(what: str) -> None:
    answers, changes, expected_s = DEADLINES[what]
    assert deadline_s(answers, **changes) == expected_s  # type: ignore[arg-type]  # of several types


def test_clients_that_are_not_chosen_move_no_deadline() -> None:
    table, settings = table_of({"a": [0.1], "b": [20.0], "c": [5.0]}), server_settings(1, round_timeout_s=None)
    assert round_timeout_s(settings, table, np.array([0, 2])) == FACTOR * 5.0


@given(st.lists(st.lists(st.floats(1e-6, 99), min_size=1, max_size=40), min_size=1, max_size=8), st.integers(0, 2))
def test_the_rule_is_the_documented_formula(seconds: list[list[float]], failed: int) -> None:
    found = deadline_s({f"c{k}": list(of_client) for k, of_client in enumerate(seconds)}, failed_attempts=failed)
    last = [sorted(of_client[-16:]) for of_client in seconds]
    quantiles = [of_client[math.ceil(QUANTILE * len(of_client)) - 1] for of_client in last]
    assert found == pytest.approx(min(GREATEST_S, RETRY_FACTOR**failed * max(LEAST_S, FACTOR * max(quantiles))))


def test_a_wait_that_ends_late_goes_on_once_for_as_long_as_it_was_late_and_no_longer_than_it_was() -> None:
    patience = Patience(10.0, now_s=100.0)
    assert [patience.left_s(now_s) for now_s in (104.0, 113.0, 114.0, 116.0, 119.0)] == [6.0, 3.0, 2.0, 0.0, -3.0]
    assert Patience(1.0, now_s=0.0).left_s(60.0) == 1.0
    assert Patience(1.0, now_s=0.0).left_s(1.2) == 0.0, "so late is every wait on a busy machine"


# -- in a run


async def test_a_stop_before_a_job_counts_where_its_client_waits_longer_than_usual(rig: MakeRig) -> None:
    """The residuals are 3.0, 3.16 and 8 s. An answer that a stop touched does not change what is usual."""
    async with rig(All(1), rounds=3, minimum_clients=1).playing() as r:
        a = await r.join("a", manual=True)
        for round_, residual_s, still_s in ((1, 3.0, 0.0), (2, 3.16, 5.0), (3, 8.0, 5.0)):
            await a.play(round_, timing=Timing(1.0 + residual_s, train_s=1.0), still_before_s=still_s)
    stopped_s = [o.host.stopped_s for record in r.store.rounds() for o in record.observations]
    assert stopped_s == [0.0, 0.0, 5.0]
    assert r.coordinator.state.usual_propagation_s == pytest.approx({"a": 3.02})


@pytest.mark.parametrize(("timeout_s", "deadlines_s"), [(None, [UNSEEN_S, LEAST_S]), (7.5, [7.5, 7.5])])
async def test_a_round_waits_as_the_rule_says(rig: MakeRig, timeout_s: float | None, deadlines_s: list[float]) -> None:
    async with rig(rounds=2, round_timeout_s=timeout_s).played_by("ab") as r:
        assert [record.deadline_s for record in r.store.rounds()] == deadlines_s


STALL_S = 0.5
BIG = MAX_FRAME_BYTES // 4 + 100


async def until_it_listens(r: CoordinatorRig) -> None:
    """Return once the coordinator waits for messages and has taken one; its deadline is checked after each."""
    await r.coordinator.ask(Ping("a", 0.001))


async def test_answers_that_wait_when_the_deadline_has_passed_are_taken(rig: MakeRig) -> None:
    def stall(event: ProgressEvent) -> None:
        """Round 1 is reported when the jobs of round 2 are out."""
        if isinstance(event, RoundCommitted) and event.round == 1:
            time.sleep(STALL_S)

    async with rig(rounds=2, round_timeout_s=0.2).playing() as r:
        r.on_shown = stall
        await r.join_all("ab")
    assert [(record.attempt, record.misses) for record in r.store.rounds()] == [(1, ()), (1, ())]


async def test_answers_that_come_once_the_server_goes_on_are_taken(rig: MakeRig) -> None:
    """As after a stop of the process: what clients sent meanwhile is still in its sockets."""
    async with rig(rounds=1, round_timeout_s=0.2, minimum_clients=3).playing() as r:
        a, b, c = await r.join_all("abc", manual=True)
        for peer in (a, b, c):
            await peer.next_job()
        await until_it_listens(r)
        time.sleep(STALL_S)  # noqa: ASYNC251 - the event loop stands still, as with SIGSTOP
        for peer in (a, b):
            await until_it_listens(r)
            await peer.answer(1)
    (record,) = r.store.rounds()
    assert [o.client_id for o in record.observations] == ["a", "b"]
    assert [(miss.client_id, miss.kind) for miss in record.misses] == [("c", "timeout")]
    assert record.misses[0].waited_s < 0.2 + 4 * STALL_S  # it is waited for once more, not for ever


async def test_a_client_that_returns_once_the_server_goes_on_ends_no_run(rig: MakeRig) -> None:
    async with rig(rounds=1, connect_timeout_s=0.2, minimum_clients=1).playing() as r:
        await until_it_listens(r)
        time.sleep(STALL_S)  # noqa: ASYNC251 - the loop stands still
        await until_it_listens(r)
        await r.join("a")
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


@pytest.mark.parametrize(("train_s", "round_trip_s"), [(0.5, 1.0), (4.5, 4.5), (6.5, None)])
async def test_no_honest_client_is_rejected_because_the_server_slept(
    train_s: float, round_trip_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's clock counts 1 s. The client's clock also counts the 4 s that the server slept."""
    rig = ClientActorRig()
    monkeypatch.setattr(rig.watch, "report", lambda *_, **__: HostReport(suspended_s=4.0))
    async with rig.at_work():
        rig.stream.give(upload(vector(5), timing=pb.Timing(train_s=train_s))[0], after_s=1.0)
        if round_trip_s is None:
            assert "1.5 s longer than the whole exchange" in (await rig.refused()).reason
        else:
            update = await rig.updated()
            assert update.timing.round_trip_s == pytest.approx(round_trip_s)
            assert update.server_host.suspended_s == 4.0


async def test_the_last_frame_tells_how_the_host_kept_time_during_the_upload() -> None:
    async with ClientActorRig(BIG).at_work() as rig:
        vector_ = vector(BIG)
        first, _ = upload(vector_, host=pb.Host(loop_lag_s=0.5, still_before_s=2.0), resent=True)
        rig.stream.give(first)
        _, frames = cut(vector_, digest(vector_))
        frame = pb.Frame(index=1, host=pb.Host(loop_lag_s=0.5, stopped_s=3.0, still_before_s=2.0))
        rig.stream.give(pack(pb.ClientMessage(frame=frame), frames[1]))
        update = await rig.updated()
        assert (update.host, update.still_before_s) == (HostReport(loop_lag_s=0.5, stopped_s=3.0), 2.0)
        assert update.is_resent


# --- a client's actor


async def test_a_late_update_is_taken_once_and_of_the_latest_jobs_alone() -> None:
    async with ClientActorRig().running() as r:
        for t in range(1, 71):
            await r.dispatch(round=t)
            for _ in range(2):  # said twice
                r.actor.offer(pb.Withdraw(round=t, attempt=1))
        await r.dispatch(round=71)
        for t in (70, 70, 1, 71):
            r.answer(t)
        assert (await r.updated()).round == 70, "although the next job is out"
        assert [(await r.refused()).round for _ in range(2)] == [70, 1]
        assert (await r.updated()).round == 71


# --- the coordinator


async def test_every_chosen_client_is_an_observation_or_a_miss(rig: MakeRig, tmp_path: Path) -> None:
    impatient = {"rounds": 1, "round_timeout_s": 0.05, "rejoin_timeout_s": 0.0}
    async with rig(All(4), minimum_clients=4, **impatient).playing("a") as r:
        _, c, d = await r.join_all("bcd", manual=True)
        await c.next_job()
        await r.coordinator.tell(Refusal("c", 1, 1, "refused", "out of memory"))
        await r.lose(d)
    (record,) = r.store.rounds()
    assert [o.client_id for o in record.observations] == ["a"]
    assert [(m.client_id, m.kind) for m in record.misses] == [("b", "timeout"), ("c", "refused"), ("d", "lost")]
    assert r.coordinator.state.table.measured.tolist() == [1, 1, 1, 1]
    assert r.coordinator.state.table.missed.tolist() == [0, 1, 1, 1]
    columns = "round_latency_s, measured_latency_s, misses, is_censored"
    (found,) = query(tmp_path, f"SELECT {columns} FROM round_latency")
    assert found == (record.round_latency_s, record.measured_latency_s, 3, record.is_censored)
    shown = make_registry(r.telemetry, MetricsSettings()).get_sample_value
    assert shown("pausefl_missed_jobs_total", {"kind": "lost"}) == 1
    assert shown("pausefl_missed_jobs_total", {"kind": "rejected"}) == 0
    assert shown("pausefl_measured_latency_seconds") == record.measured_latency_s
    assert shown("pausefl_censored_rounds_total") == record.is_censored


async def test_a_round_with_a_miss_takes_at_least_what_was_waited_for(rig: MakeRig) -> None:
    async with rig(rounds=1, round_timeout_s=1.5, time_scale=0.5).playing("a") as r:
        await r.join("b", manual=True)
    for record in r.store.rounds():
        (miss,) = record.misses
        assert 1.5 <= miss.waited_s < 15
        assert record.round_latency_s == miss.latency_s == miss.waited_s / 0.5  # at the emulated scale
        assert record.measured_latency_s < miss.latency_s
        assert record.is_censored


async def test_a_resting_client_is_left_out_until_its_rest_is_over(rig: MakeRig) -> None:
    async with rig(rounds=8, round_timeout_s=0.05, policy=Pause(1), minimum_clients=3).playing("ab") as r:
        silent = await r.join("c", manual=True)
    asked = [t.round for record in r.store.rounds() for t in record.attempts if "c" in t.chosen]
    assert silent.jobs.qsize() == len(asked)
    assert 1 <= len(asked) <= 4
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert all(gap > 2**k for k, gap in enumerate(gaps))


async def test_a_device_time_that_leaves_less_than_the_wire_takes_is_cut(rig: MakeRig) -> None:
    overstated = Timing(1.0, train_s=0.875, upload_s=0.25)
    async with rig(rounds=2, signal="communication").playing("a") as r:
        b = await r.join("b", manual=True)
        for t in (1, 2):
            await b.play(t, timing=overstated)
    assert {o.client_id: o.latency_s for o in r.store.rounds()[0].observations}["b"] == pytest.approx(0.25)
    capped = [e for record in r.store.rounds() for e in record.events if e.kind == "capped"]
    assert capped == [LogEvent("capped", "b", "device time")]


async def test_a_weight_above_its_share_is_cut_and_noted(rig: MakeRig) -> None:
    async with rig(rounds=2, aggregation=Aggregation(weight_share_max=0.6)).played_by("ab") as r:  # 10 and 30 examples
        capped = [e for record in r.store.rounds() for e in record.events if e.kind == "capped"]
        assert capped == [LogEvent("capped", "b", "weight in the average")]


# --- the client's actor


async def test_a_lost_stream_is_part_of_the_round_trip() -> None:
    first, second = ClientActorRig(), ClientActorRig()
    async with first.running():
        first.clock.advance(1.0)
        await first.dispatch()
        handed_over_s = first.actor.handed_over_s
    assert handed_over_s == 101.0  # the rig's clock begins at 100
    second.clock.advance(4.0)
    async with second.running():
        second.stream.write_s = 0.0
        await second.dispatch(handed_over_s=handed_over_s)
        assert second.actor.handed_over_s == 101.0  # also if this stream breaks as well
        second.stream.give(upload(vector(5))[0], after_s=0.5)
        update = await second.told()
    assert isinstance(update, Update)
    t = update.timing
    assert (t.round_trip_s, t.reconnect_s) == (3.5, 3.0)
    parts_s = t.reconnect_s + t.download_s + t.injected_down_s + t.device_s + t.injected_up_s + t.upload_s
    assert parts_s + t.propagation_s == t.round_trip_s
    assert second.actor.handed_over_s is None
