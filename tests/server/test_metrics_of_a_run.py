"""Metrics as a run goes on: without privacy, resumed, with many clients, at its end; and what the run leaves open."""

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pausefl_proto.errors import PauseflError
from pausefl_server.monitoring.snapshot import Curve
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Evaluation, LogEvent, Miss, RoundRecord
from pausefl_server.selection.policies.baselines import All
from pausefl_server.service import RunResult, count_held, left_over
from pausefl_server.settings import MetricsSettings, PrivacySettings
from pausefl_server.state import RunState, replay
from pausefl_server.storage.store import Store
from rigs.federation import clients, federation
from rigs.telemetry import BUDGET, SIZE, TAU_MIN_S, commit, observation, play, private, records, registry_of
from rigs.waiting import wait_for

MakeTelemetry = Callable[..., Telemetry]


def test_a_vectors_epsilon_stands_once_and_noise_that_can_be_drawn_again_is_not_private(
    make_telemetry: MakeTelemetry,
) -> None:
    telemetry = make_telemetry(PrivacySettings(BUDGET, "vector", "agreed", reproducible_noise=True), SIZE)
    play(telemetry)
    value = registry_of(telemetry).get_sample_value
    assert [value("pausefl_epsilon_budget", {"unit": unit}) for unit in ("vector", "coordinate")] == [10.0, None]
    assert value("pausefl_private") == 0


def test_without_privacy_no_epsilon_is_shown_and_in_rounds_no_staleness(make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(None, SIZE)
    play(telemetry, private=False)
    registry = registry_of(telemetry)
    assert {len(m.samples) for m in registry.collect() if "epsilon" in m.name} == {0}
    names = ("private", "round", "places", "staleness_steps_total")
    assert [registry.get_sample_value(f"pausefl_{name}") for name in names] == [0, 3, 3, None]


def test_a_client_whose_budget_allows_no_further_release_has_none_of_it_next(make_telemetry: MakeTelemetry) -> None:
    floored = replace(BUDGET, epsilon_floor=BUDGET.epsilon(3))
    telemetry = make_telemetry(PrivacySettings(floored, "coordinate", "agreed"), SIZE)
    play(telemetry)
    value = registry_of(telemetry).get_sample_value
    for unit in ("coordinate", "vector"):
        assert value("pausefl_client_epsilon_next", {"client": "a", "unit": unit}) == 0
    assert value("pausefl_client_epsilon_spent", {"client": "a", "unit": "nothing"}) is None


def test_two_servers_in_one_process_do_not_share_their_metrics(make_telemetry: MakeTelemetry) -> None:
    one, other = make_telemetry(private()), make_telemetry(private())
    one.rejected("client a was refused")
    assert registry_of(other).get_sample_value("pausefl_rejected_updates_total") == 0


def test_a_resumed_run_tells_at_once_what_its_log_knows(make_telemetry: MakeTelemetry) -> None:
    """Everything except current connections, refusals, and times."""
    gone_on, left_alone = make_telemetry(private(), SIZE), make_telemetry(private(), SIZE)
    evaluation = Evaluation("test", subset=True, n_examples=100, accuracy=0.75, loss=1.0)
    state = replay(RunState.start(All(2), 1, tau_min_s=TAU_MIN_S), records(), gone_on.replayed)
    gone_on.resumed(state, (), [(3, evaluation)], 40)
    commit(left_alone)
    left_alone.evaluated(3, evaluation)
    assert samples_of(registry_of(gone_on)) == samples_of(registry_of(left_alone))
    assert gone_on.now.leakage.points.tolist() == left_alone.now.leakage.points.tolist()
    assert gone_on.now.status.startswith("waiting")


def test_a_models_time_is_that_of_its_commit_and_jobs_that_ends_broke_off_count(make_telemetry: MakeTelemetry) -> None:
    """The first model, which a run has evaluated that ended before round 1, took none. Nor do later failed attempts."""
    telemetry = make_telemetry(private(), SIZE)
    state = replay(RunState.start(All(2), 1, tau_min_s=TAU_MIN_S), records(), telemetry.replayed)
    total_s, at_work_s = state.total_latency_s, telemetry.now.clients.at_work_s
    failed, late = replace(records()[1].failed_attempts[0], round=4), LogEvent("late", "b")
    replay(state, (), telemetry.replayed, unfinished=[failed])
    telemetry.resumed(state, (late,), [(t, Evaluation("test", True, 100, 0.125, 2.0)) for t in (0, 3)], None)
    assert telemetry.now.accuracy["test"].points.tolist() == [[0, 0, 0, 0.125], [3, total_s, 21.0, 0.125]]
    telemetry.broken_off({"b": 1.5})
    state.broken_off_s = {"b": 0.5, "c": 0.25}
    telemetry.finished(state, "all steps done", (late,))  # told again
    assert telemetry.now.events["late"] == 2 + 5 + 1 + 1, "of round 2, its failed attempts, that of round 4, and since"
    assert (telemetry.now.clients.at_work_s - at_work_s).tolist() == pytest.approx([0.125, 2.125, 0.375])


def samples_of(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(s.name, frozenset(s.labels.items())): s.value for m in registry.collect() for s in m.samples}


def test_with_many_clients_only_those_that_matter_most_have_series(make_telemetry: MakeTelemetry) -> None:
    """Client k of ten has a round trip of 1 + k s and 10 − k releases. The two slowest and two greatest ε are shown."""
    telemetry, names = make_telemetry(private()), [f"c{k}" for k in range(10)]
    joins = tuple(LogEvent("joined", name, n_examples=1) for name in names)
    seen = tuple(observation(name, 10 - k, 1.0 + k) for k, name in enumerate(names))
    record = RoundRecord(1, 1, tuple(names), None, seen, joins, 1.0, 0.0, 1.0, 0.003)
    replay(RunState.start(All(10), 1), [record], telemetry.round_committed)

    def shown(**limits: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for metric in registry_of(telemetry, **limits).collect():
            for sample in metric.samples:
                if "client" in sample.labels:
                    found.setdefault(metric.name, set()).add(sample.labels["client"])
        return found

    everybody = shown(client_series_max=10, client_series_top=2)
    assert set(map(frozenset, everybody.values())) == {frozenset(names)}
    few = shown(client_series_max=9, client_series_top=2)
    assert few.keys() == everybody.keys() >= {"pausefl_client_latency_seconds", "pausefl_client_epsilon_next"}
    assert set(map(frozenset, few.values())) == {frozenset({"c8", "c9", "c0", "c1"})}
    value = registry_of(telemetry, client_series_max=0).get_sample_value
    assert [value("pausefl_clients_latency_seconds", {"quantile": q}) for q in ("0", "1")] == [2.0, 20.0]
    median = pytest.approx((BUDGET.spent(5) + BUDGET.spent(6)) / 2)
    assert value("pausefl_clients_epsilon_spent", {"quantile": "0.5", "unit": "coordinate"}) == median


def test_a_picture_once_taken_never_changes(make_telemetry: MakeTelemetry) -> None:
    """Other threads read it without a lock while rounds go on."""
    telemetry, pictures, scrapes = make_telemetry(private()), [], []

    def take(record: RoundRecord, state: RunState) -> None:
        telemetry.round_committed(record, state)
        pictures.append(telemetry.now)
        scrapes.append(samples_of(registry_of(telemetry)))

    replay(RunState.start(All(2), 1), records(), take)
    telemetry.pinged(0, 0.1)
    for picture, scrape in zip(pictures, scrapes, strict=True):
        telemetry.now = picture
        assert samples_of(registry_of(telemetry)) == scrape
    assert scrapes[0] != scrapes[1]


def test_a_long_run_keeps_a_curve_of_bounded_length() -> None:
    curve = Curve(np.empty((0, 2)))
    for t in range(1, 10_001):
        curve = curve.add(t, 2 * t)
    assert 256 < len(curve.points) <= 512
    assert (np.diff(curve.points[:, 0]) == curve.stride).all()
    assert curve.points[0].tolist() == [1, 2]
    assert 10_000 - curve.points[-1, 0] < curve.stride


LINGERING = MetricsSettings(linger_s=3600.0)


def samples_at(url: str) -> dict[str, float]:
    """The metrics without labels."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = str(answer.read(), "utf-8").splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if re.match(r"\w+ ", line))}


def scrape(url: str) -> dict[str, float]:
    """The metrics without labels, once the run is over."""
    samples: dict[str, float] = {}

    def is_over() -> bool:
        samples.update(samples_at(url))
        return bool(samples["pausefl_finished"])

    wait_for(is_over, "the end of the run", 20)
    return samples


async def test_the_end_can_be_scraped_once_results_are_written(tmp_path: Path) -> None:
    kept: list[RunResult] = []
    expected, served_at = list[float](), list[str]()

    def keep(result: RunResult) -> None:
        expected.append(samples_at(served_at[0])["pausefl_expected_clients"])
        kept.append(result)

    async with federation(tmp_path, All(2), metrics=LINGERING, keep=keep) as run, clients() as some:
        served_at.append((await run.event("metrics"))["url"])
        some.start_all("ab", await run.port)
        samples = await asyncio.to_thread(scrape, served_at[0])
        assert ([result.state.round for result in kept], expected) == ([3], [0])
        assert (samples["pausefl_round"], samples["pausefl_expected_clients"]) == (3, 0)
        signal.raise_signal(signal.SIGINT)
        assert (await run.finished()).stopped_because == "all rounds done"


async def test_a_run_that_somebody_ended_does_not_linger(tmp_path: Path) -> None:
    async with federation(tmp_path, metrics=LINGERING) as run:
        await run.port
        signal.raise_signal(signal.SIGTERM)
        assert (await run.finished()).stopped_because == "stopped by SIGTERM"


async def test_an_end_is_not_in_order_before_results_are_written(tmp_path: Path) -> None:
    def fail(_: RunResult) -> None:
        raise OSError("no space is left")

    async with federation(tmp_path, All(2), metrics=LINGERING, keep=fail) as run, clients() as some:
        some.start_all("ab", await run.port)
        with pytest.raises(PauseflError, match=f"^run directory {tmp_path}: .* \\(no space is left\\)$"):
            await run.finished()


async def test_a_resumed_run_is_measured_before_anybody_is_back(tmp_path: Path) -> None:
    """With the failed attempts at its next round, and with the jobs that its last end broke off."""
    async with federation(tmp_path, All(2)) as run, clients() as some:
        some.start_all("ab", await run.port)
        total_s = (await run.finished()).state.total_latency_s
    missed = Miss("a", "timeout", 1.0, 2.0, at_work_s=500.0)
    with closing(Store(tmp_path / "run.db")) as store:
        store.save_failed_attempt(RoundRecord(4, 1, ("a",), round_latency_s=2.0, misses=(missed,), elapsed_s=77.0))
        store.save_late_events(4, [LogEvent("late", "a")], is_end=True)
        store.add_broken_off(3, {"b": 1000.0})
    async with federation(tmp_path, All(2), rounds=5, metrics=MetricsSettings()) as run:
        samples = await asyncio.to_thread(samples_at, (await run.event("metrics"))["url"])
    names = ("round", "round_trip_seconds_count", "failed_attempts_total", "elapsed_seconds", "late_updates_total")
    assert [samples[f"pausefl_{name}"] for name in names] == [3, 6, 1, 77.0, 1]
    assert samples["pausefl_total_latency_seconds"] == pytest.approx(total_s + 2.0)
    assert samples["pausefl_at_work_seconds_total"] > 1500


async def test_what_stays_open_is_left_over_and_what_closes_late_is_not() -> None:
    before, descriptor = count_held(), os.open("/dev/null", os.O_RDONLY)
    task = asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.sleep(0)
    assert await left_over(before, patience_s=0.1) == {"tasks": 1, "descriptors": 1}
    asyncio.get_running_loop().call_later(0.05, task.cancel)
    asyncio.get_running_loop().call_later(0.1, os.close, descriptor)
    assert await left_over(before, patience_s=5.0) == {"tasks": 0, "descriptors": 0}
