"""What a chosen client that gives no update costs: in the coordinator's log, and over real gRPC."""

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from pausefl_server.model.aggregation import Aggregation
from pausefl_server.monitoring.metrics import make_registry
from pausefl_server.records import LogEvent, Timing
from pausefl_server.rounds.messages import Refusal, Update, Withdraw
from pausefl_server.selection.policies.everyone import All
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.settings import MetricsSettings
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.coordinator import MakeRig

# --- a client's actor


async def test_a_late_update_is_taken_once_and_of_the_latest_jobs_alone() -> None:
    async with ClientActorRig().running() as r:
        for t in range(1, 71):
            await r.dispatch(round=t)
            r.actor.offer(Withdraw(t, 1))
        await r.dispatch(round=71)
        for t in (70, 70, 1):
            r.stream.give(upload(vector(5), round=t)[0])
        update = await r.updated()
        assert update.round == 70
        assert [(await r.refused()).round for _ in range(2)] == [70, 1]


# --- the coordinator


async def test_every_chosen_client_is_an_observation_or_a_miss(rig: MakeRig, tmp_path: Path) -> None:
    impatient = {"rounds": 1, "round_timeout_s": 0.05, "rejoin_timeout_s": 0.0}
    async with rig(All(4), minimum_clients=4, **impatient).running("a") as r:
        _, c, d = await r.join_all("bcd", manual=True)
        await c.next_job()
        await r.coordinator.tell(Refusal("c", 1, 1, "refused", "out of memory"))
        await r.lose(d)
        await r.played()
        (record,) = r.store.rounds()
        assert [o.client_id for o in record.observations] == ["a"]
        missed = [("b", "timeout"), ("c", "refused"), ("d", "lost")]
        assert [(miss.client_id, miss.kind) for miss in record.misses] == missed
        assert r.coordinator.state.table.measured.tolist() == [1, 1, 1, 1]
        assert r.coordinator.state.table.missed.tolist() == [0, 1, 1, 1]
        columns = "round_latency_s, measured_latency_s, misses, is_censored"
        with closing(sqlite3.connect(tmp_path / "run.db")) as database:
            (found,) = database.execute(f"SELECT {columns} FROM round_latency").fetchall()
        assert found == (record.round_latency_s, record.measured_latency_s, 3, record.is_censored)
        shown = make_registry(r.telemetry, MetricsSettings()).get_sample_value
        assert shown("pausefl_missed_jobs_total", {"kind": "lost"}) == 1
        assert shown("pausefl_missed_jobs_total", {"kind": "rejected"}) == 0
        assert shown("pausefl_measured_latency_seconds") == record.measured_latency_s
        assert shown("pausefl_censored_rounds_total") == record.is_censored


async def test_a_round_with_a_miss_takes_at_least_what_was_waited_for(rig: MakeRig) -> None:
    async with rig(rounds=1, round_timeout_s=1.5, time_scale=0.5).running("a") as r:
        await r.join("b", manual=True)
        await r.played()
        for record in r.store.rounds():
            (miss,) = record.misses
            assert 1.5 <= miss.waited_s < 15
            assert miss.latency_s == miss.waited_s / 0.5  # at the emulated scale
            assert record.round_latency_s == miss.latency_s
            assert record.measured_latency_s < miss.latency_s
            assert record.is_censored


async def test_an_answer_of_a_client_that_returned_counts_from_the_first_hand_over(rig: MakeRig) -> None:
    async with rig(rounds=1).running("a") as r:
        b = await r.join("b", manual=True)
        job = await b.next_job()
        await r.lose(b, handed_over_s=job.ready_s + 0.25)
        again = await r.join("b", manual=True)
        sent_again = await again.next_job()
        await again.answer(1)
        await r.played()
        assert (job.handed_over_s, sent_again.handed_over_s) == (None, job.ready_s + 0.25)
        assert sent_again.ready_s == job.ready_s


async def test_a_resting_client_is_left_out_until_its_rest_is_over(rig: MakeRig) -> None:
    async with rig(rounds=8, round_timeout_s=0.05, policy=Pause(1), minimum_clients=3).running("ab") as r:
        silent = await r.join("c", manual=True)
        await r.played()
        asked = [t.round for record in r.store.rounds() for t in record.attempts if "c" in t.chosen]
        assert silent.jobs.qsize() == len(asked)
        assert 1 <= len(asked) <= 4
        gaps = [later - earlier for earlier, later in pairwise(asked)]
        assert all(gap > 2**k for k, gap in enumerate(gaps))


async def test_a_device_time_that_leaves_less_than_the_wire_takes_is_cut(rig: MakeRig) -> None:
    overstated = Timing(1.0, train_s=0.875, upload_s=0.25)
    async with rig(rounds=2, signal="communication").running("a") as r:
        b = await r.join("b", manual=True)
        for t in (1, 2):
            await b.play(t, timing=overstated)
        await r.played()
        first = r.store.rounds()[0]
        assert {o.client_id: o.latency_s for o in first.observations}["b"] == pytest.approx(0.25)
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
