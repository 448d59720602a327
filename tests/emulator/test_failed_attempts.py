"""Rounds without an answer, trainings that give no numbers, models that diverge, and bounds on clients' statements."""

import asyncio
import dataclasses
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pausefl
from pausefl.results.tally import RunTally
from pausefl_offline.replay import check_same, choices_on
from pausefl_process.events import Notice, ProgressEvent
from pausefl_proto.errors import PauseflError
from pausefl_server.clients import ClientTable
from pausefl_server.model.aggregation import Aggregation, capped_shares
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.records import Evaluation, LogEvent, Miss, Split
from pausefl_server.rounds.deadline import LEAST_S, RETRY_FACTOR, UNSEEN_S
from pausefl_server.rounds.messages import Refusal
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.baselines import All, Random
from pausefl_server.selection.terms import generalisation
from pausefl_server.storage.store import Store
from rigs.coordinator import BUDGET, CoordinatorRig, FakePeer, MakeRig, update_of
from rigs.log import observation, record
from rigs.policies import FirstTwice, Play, context_of, every_policy, policy_of
from rigs.settings import server_settings

RANDOM: dict[str, Any] = {"rounds": 1, "minimum_clients": 3, "rounds_without_update_max": 5}
"""One round, in which one of three clients is asked."""


async def next_asked(r: CoordinatorRig) -> FakePeer:
    return await asyncio.wait_for(r.asked.get(), 20)


async def refuse(r: CoordinatorRig, peer: FakePeer) -> int:
    """Answer the next job without an update; returns the job's attempt."""
    job = await peer.next_job()
    await r.coordinator.tell(Refusal(peer.client_id, job.round, job.attempt, "refused", "out of memory"))
    return job.attempt


async def test_a_round_without_an_answer_is_tried_again_with_other_clients_and_so_replayed(rig: MakeRig) -> None:
    async with rig(Random(1), **RANDOM).running() as r:
        await r.join_all("abc", manual=True)
        for _ in range(2):
            await refuse(r, await next_asked(r))
        last = await next_asked(r)
        job = await last.next_job()
        await last.answer(job.round, attempt=job.attempt)
        await r.played()
        (played,) = r.store.rounds()
        assert [attempt.attempt for attempt in played.attempts] == [1, 2, 3]
        assert {c for attempt in played.attempts for c in attempt.chosen} == set("abc"), "each was asked once"
        assert played.failed_attempts[0].model_digest != played.model_digest
        assert (r.telemetry.now.failed_attempts, r.telemetry.now.missed) == (2, {"refused": 2})
        assert (r.coordinator.outcome, r.coordinator.state.round) == ("completed", 1)
    choices = choices_on([played], Random(1), r.settings)
    assert [(choice.round, choice.attempt) for choice in choices] == [(1, 1), (1, 2), (1, 3)]
    check_same(choices)
    first, *more = played.failed_attempts
    other = next(c for c in "abc" if c not in first.chosen)
    changed = replace(played, failed_attempts=(replace(first, chosen=(other,)), *more))
    with pytest.raises(PauseflError, match="round 1, attempt 1: the policy chooses"):
        check_same(choices_on([changed], Random(1), r.settings))


async def test_the_wait_of_a_failed_attempt_is_part_of_the_total(rig: MakeRig) -> None:
    async with rig(All(1), rounds=1, minimum_clients=1, round_timeout_s=0.25, time_scale=0.01).running() as r:
        a = await r.join("a", manual=True)
        await a.next_job()  # and never answers
        await r.until_noticed("at round 1, within 0.")  # real seconds
        await a.answer(1, attempt=(await a.next_job()).attempt)
        await r.played()
        (played,) = r.store.rounds()
        (failed,) = played.failed_attempts
        assert failed.round_latency_s >= 25
        assert r.coordinator.state.total_latency_s == failed.round_latency_s + played.round_latency_s


async def test_a_round_after_failed_attempts_waits_no_longer_than_one_without(rig: MakeRig) -> None:
    async with rig(All(1), rounds=2, minimum_clients=1, round_timeout_s=None).running() as r:
        a = await r.join("a", manual=True)
        await refuse(r, a)
        for number, attempt in ((1, 2), (2, 1)):
            await a.play(number, attempt=attempt)
        await r.played()
        first, second = r.store.rounds()
        waits_s = [attempt.deadline_s for attempt in (*first.attempts, *second.attempts)]
        assert waits_s == [UNSEEN_S, RETRY_FACTOR * UNSEEN_S, LEAST_S]


async def test_a_run_that_no_client_answers_fails_without_a_round(rig: MakeRig) -> None:
    patience = {"round_timeout_s": 0.02, "rounds_without_update_max": 2}
    async with rig(All(1), rounds=1, minimum_clients=1, **patience).running() as r:
        await r.join("a", manual=True)
        await r.played()
        assert (r.coordinator.outcome, r.store.rounds()) == ("failed", [])
        why = "no client gave an update in 2 attempts in a row; the last one, a: gave no answer in time"
        assert r.coordinator.stopped_because == why
        assert [(a.attempt, a.chosen) for a in r.store.log().failed_attempts()] == [(1, ("a",)), (2, ("a",))]


async def test_an_answer_to_an_earlier_attempt_is_not_taken_for_one_to_this(rig: MakeRig) -> None:
    async with rig(All(1), rounds=1, minimum_clients=1, round_timeout_s=0.25).running() as r:
        a = await r.join_and_work("a")
        job = await a.next_job()
        assert (job.round, job.attempt) == (1, 2)
        await a.answer(1, attempt=1)
        await a.answer(1, attempt=2)
        await r.played()
        (played,) = r.store.rounds()
        assert (played.attempt, [o.participation for o in played.observations]) == (2, [2])
        assert r.spent("a")[0] == 2, "both are spent"


async def test_a_run_killed_between_two_attempts_goes_on_with_the_next(tmp_path: Path, rig: MakeRig) -> None:
    """Except for the clients' joins and leaves, the log equals that of an uninterrupted run."""
    async with rig(Random(1), **RANDOM).running() as r:
        await r.join_all("abc", manual=True)
        first = await next_asked(r)
        await refuse(r, first)
        second = await next_asked(r)  # its job is out when the run is killed
    with closing(Store(tmp_path / "run.db")) as store:
        assert store.attempts() == {1: 2}
        assert [a.chosen for a in store.log().failed_attempts()] == [(first.client_id,)]
    async with rig(Random(1), **RANDOM).running() as r:
        await r.join_all("abc", manual=True)
        again = await next_asked(r)
        assert (again.client_id, (await again.next_job()).attempt) == (second.client_id, 2)
        await again.answer(1, attempt=2)
        await r.played()
        (played,) = r.store.rounds()
        assert [a.chosen for a in played.attempts] == [(first.client_id,), (second.client_id,)]


def test_going_back_over_failed_attempts_keeps_their_number_and_what_was_spent(tmp_path: Path) -> None:
    spent, left = LogEvent("reconciled", "a", epsilon_spent=1.0, released=1), LogEvent("left", "a")
    failed = record(2, chosen=("a",), events=(spent,), misses=(Miss("a", "timeout", 1.0, 1.0),))
    with closing(Store(tmp_path / "run.db")) as store:
        store.commit_round(record(1, observation("a")))
        store.save_failed_attempt(failed)
        store.save_late_events(2, [left])
        assert (store.log().failed_attempts(), store.late_events(), store.attempts()) == ([failed], [left], {2: 2})
        store.commit_round(record(2, observation("a"), attempt=2, events=(left,)))
        assert store.rounds()[1].failed_attempts == (failed,)
        assert store.log().failed_attempts() == []
        store.go_back_to(1)
        assert (store.log().failed_attempts(), store.attempts()) == ([], {2: 3})
        assert spent in store.late_events()
        store.save_failed_attempt(replace(failed, attempt=3))
        assert store.attempts() == {2: 4}
    Store(tmp_path / "run.db").close()  # this verifies the seals


def test_what_clients_said_of_failed_jobs_is_told_and_no_other_reason() -> None:
    reasons = {"a": ("refused", "out of memory"), "b": ("timeout", "gave no answer in time"), "c": ("unneeded", "")}
    misses = tuple(Miss(c, kind, 1.0, 1.0, reason=reason) for c, (kind, reason) in reasons.items())  # type: ignore[arg-type]  # one of its names
    failed = record(1, chosen=tuple(reasons), misses=misses)
    tally = RunTally([replace(failed, attempt=2, failed_attempts=(failed,))], [replace(failed, round=2)])
    assert tally.failures == [{"reason": "out of memory", "jobs": 3}]
    assert (tally.missed_jobs, tally.unneeded_jobs) == ({"refused": 3, "timeout": 3}, 3)
    assert tally.failed_attempts == 2
    most = tally.unanswered.releases_at_most(ClientTable(), BUDGET)
    assert most == {"b": 3, "c": 3}


def test_the_first_loss_that_is_not_finite_is_noticed() -> None:
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8), said.append)
    splits: tuple[Split, ...] = ("validation", "test")
    for t, loss in ((1, 2.3), (2, math.inf), (3, math.inf)):
        for split in splits:
            reporter.evaluated(t, Evaluation(split, subset=True, n_examples=10, accuracy=0.1, loss=loss))
    notices = [event.message for event in said if isinstance(event, Notice)]
    assert notices == ["the model after round 2 has diverged: its validation loss is not finite"]


BROKEN_SENSOR = """
import numpy as np
from pausefl_client.data.datasets import Dataset, Examples

def make(seed):
    inputs = np.random.default_rng(1).standard_normal((300, 8)).astype(np.float32)
    labels = inputs[:, :3].argmax(1).astype(np.int64)
    owners = np.array(["kiln", "mill", "oven", "pump"])[np.arange(300) % 4]
    inputs[:200][owners[:200] == "oven"] = np.nan
    parts = [Examples(inputs[s], labels[s], owners[s]) for s in (slice(200), slice(200, 250), slice(250, 300))]
    return Dataset("broken sensor", *parts, classes=3)
"""


@pytest.mark.usefixtures("quickly_written")
@pytest.mark.parametrize("private", [True, False])
def test_a_client_whose_training_gives_no_numbers_refuses_its_jobs_and_spends_nothing(
    private: bool, tmp_path: Path, own_module: Callable[[str, str], Path]
) -> None:
    own_module("broken_sensor", BROKEN_SENSOR)
    settings = {
        "experiment.rounds": 3, "experiment.clock": "virtual", "experiment.python_path": [str(tmp_path)],
        "clients.count": 4, "selection.m": 4, "selection.policy": "random", "server.rest_rounds_max": 0,
        "workload.dataset": "broken_sensor:make", "workload.model": "mlp", "workload.partition": "by-client",
        "workload.step_s": 0.001, "privacy.clip": 1.0, "privacy.enabled": private,
    }  # fmt: skip
    run_dir = tmp_path / "run"
    summary = pausefl.run(pausefl.load("demo", settings), run_dir, progress=False).summary
    assert (summary["missed_jobs"], summary["rejected_updates"]) == ({"refused": 3}, 0)
    assert [failure["jobs"] for failure in summary["failures"]] == [3]
    assert ("not finite" in summary["failures"][0]["reason"]) == (not private)
    assert (run_dir / "server.log").read_text().count("failed: its update holds values that are not finite") == 3
    with closing(sqlite3.connect(run_dir / "run.db")) as database:
        answered = {client_id for (client_id,) in database.execute("SELECT DISTINCT client_id FROM observations")}
        owners = dict(database.execute("SELECT client_id, owner FROM owners"))
    assert len(answered) == 3
    assert sorted(owners.values()) == ["kiln", "mill", "oven", "pump"]
    assert {client_id for client_id, owner in owners.items() if owner != "oven"} == answered
    assert "oven" in (run_dir / "report.html").read_text("utf-8")


def table_of(sizes: dict[str, int], examples_max: int | None = None) -> ClientTable:
    table = ClientTable(1, examples_max=examples_max)
    table.apply_events([LogEvent("joined", i, n_examples=n) for i, n in sizes.items()], round=1)
    return table


def test_a_stated_size_counts_up_to_the_cap_or_without_one_to_five_times_the_median() -> None:
    table = table_of({"a": 100, "b": 10**9}, examples_max=500)
    assert (table.n_examples.tolist(), table.stated_examples.tolist()) == ([100, 500], [100, 10**9])
    table = table_of({"a": 100, "b": 10**9})
    assert table.n_examples.tolist() == [100, 500]
    table.apply_events([LogEvent("joined", "c", n_examples=300)], round=2)
    assert table.n_examples.tolist() == [100, 1500, 300]
    table.apply_events([LogEvent("left", "c")], round=3)
    assert table.n_examples.tolist() == [100, 500, 300], "the median of those that are there"


def test_an_overstated_size_buys_neither_every_round_nor_the_average() -> None:
    play = Play(policy_of("pause", m=5), [f"client-{k:02}" for k in range(30)])
    play.table.apply_events([LogEvent("joined", "client-00", n_examples=10**9)], round=1)
    play.rounds(60)
    assert play.table.chosen[play.table.row_of["client-00"]] < 50
    assert (play.table.n_examples / play.table.n_examples.sum()).max() < 0.2


def test_no_share_in_g_or_of_the_average_exceeds_the_greatest_weight_share() -> None:
    table = table_of({"a": 900, "b": 100}, examples_max=900)
    context = context_of(table, 1, weight_share_max=0.6)
    assert generalisation(context, table.eligible(), 1, 2.0) == pytest.approx([0.6**2, 0.1**2])
    assert capped_shares(np.array([6.0, 3.0, 1.0]), 0.5) == pytest.approx([0.5, 0.375, 0.125])
    assert capped_shares(np.array([6.0, 3.0, 1.0]), 1.0) == pytest.approx([0.6, 0.3, 0.1])
    assert capped_shares(np.array([6.0, 3.0]), 0.4) == pytest.approx([0.5, 0.5])


def test_the_summary_lists_who_was_capped_and_how_often() -> None:
    told = ("a", "device time", 1), ("a", "device time", 1), ("b", "weight in the average", 1), ("c", "device time", 0)
    events = [LogEvent("capped", client_id, what, count=count) for client_id, what, count in told]
    capped = RunTally((), late_events=events).capped(table_of({"a": 100, "b": 10**9}))
    assert capped == {"a": {"device time": 2}, "b": {"stated examples": 10**9, "weight in the average": 1}}
    assert RunTally(()).capped(table_of({"a": 100, "b": 300})) == {}


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=12), st.floats(0.01, 1))
def test_capped_shares_are_shares(weights: list[float], share_max: float) -> None:
    shares = capped_shares(np.array(weights), share_max)
    assert shares.sum() == pytest.approx(1)
    assert shares.max() <= max(share_max, 1 / len(weights)) + 1e-9
    assert (np.diff(shares[np.argsort(weights)]) >= -1e-9).all()


async def test_a_client_drawn_twice_has_no_greater_share_than_the_limit(rig: MakeRig) -> None:
    rule = Aggregation(weight_share_max=0.4)
    async with rig(FirstTwice(3), rounds=1, minimum_clients=3, privacy=None, aggregation=rule).running() as r:
        await r.join_all("abc")
        await r.played()
        mean = 0.4 * update_of("a", 1) + 0.3 * update_of("b", 1) + 0.3 * update_of("c", 1)
        np.testing.assert_allclose(r.coordinator.model.theta - r.theta_0, mean, atol=1e-6)
        assert r.events() == [("capped", "a")]


async def test_a_late_update_adds_nothing_to_its_clients_greatest_share(rig: MakeRig) -> None:
    changes = {"quorum": 0.5, "keeps_late_updates": True, "aggregation": Aggregation(weight_share_max=0.5)}
    async with rig(All(2), rounds=2, privacy=None, **changes).running() as r:
        a, b = await r.join("a", manual=True), await r.join("b", manual=True)
        await b.next_job()
        await a.play(1)
        await a.next_job()
        before = r.coordinator.model.theta
        r.coordinator.offer(b.update(1, b.release()))
        r.coordinator.offer(b.update(2, b.release()))
        r.coordinator.offer(a.update(2, a.release()))
        await r.played()
        mean = 0.25 * update_of("b", 2) + 0.25 * update_of("b", 1) / math.sqrt(2)
        assert len(r.store.rounds()[1].observations) == 2
        np.testing.assert_allclose(r.coordinator.model.theta - before, 0.5 * update_of("a", 2) + mean, atol=1e-6)


async def test_a_client_states_label_counts_and_none_of_the_policys_statistics(rig: MakeRig) -> None:
    async with rig(All(1), rounds=1, minimum_clients=1, privacy=None, disclosed=frozenset({"labels"})).running() as r:
        a = await r.join("a", manual=True)
        await a.play(1, statistics={"label_0": 3.0, "label_1": 7.0, "cosine": 1e9, "drift": 0.0})
        await r.played()
        ((only,),) = [each.observations for each in r.store.rounds()]
    assert only.statistics == {"label_0": 3.0, "label_1": 7.0}


def test_stated_label_counts_and_losses_count_up_to_a_bound_and_no_count_below_0() -> None:
    """A count below 0 would reduce the counts of other labels."""
    table = table_of({"a": 100})
    stated = observation("a", loss=-1e12, statistics={"label_0": -5.0, "label_1": 1e12, "label_2": 7.0})
    table.apply_round(record(1, stated))
    assert (table.label_counts[0].tolist(), table.last_loss.tolist()) == ([0.0, 1e9, 7.0], [-1e9])


@every_policy
def test_a_policy_goes_on_whatever_its_log_holds(case: str) -> None:
    """Logs of earlier versions may hold losses and label counts whose products and sums are infinite."""
    play = Play(policy_of(case)).rounds(6)
    last = play.records[-1]
    great = dict.fromkeys(("label_0", "label_1"), 1.7e308)
    stated = [dataclasses.replace(o, loss=1.7e308, statistics=great) for o in last.observations[:2]]
    last = dataclasses.replace(last, observations=(*stated, *last.observations[2:]))
    play.table.apply_round(last)
    play.state = play.policy.observe(play.state, seen_by_policy(last), play.table)
    play.rounds(6)
