"""run.db: every field is read back, rounds that are taken back keep their ε, and views add up."""

import asyncio
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_process.host_monitor import HostReport
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.wire import digest
from pausefl_server.actor import ActorStopped
from pausefl_server.host_limits import DOUBTS
from pausefl_server.records import Evaluation, LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.seals import SCHEMA_VERSION
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import StoreActor
from rigs.databases import layout, opened_connections
from rigs.log import fresh_store, observation, query, record, theta

FINITE = st.floats(allow_nan=False)
COUNTS = st.integers(0, 2**63 - 1)
NAMES = st.text(max_size=20)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    float: FINITE,
    float | None: st.none() | FINITE,
    int: COUNTS,
    str: NAMES,
    bool: st.booleans(),
    tuple[str, ...]: st.lists(NAMES, max_size=3).map(tuple),
    Mapping[str, float]: st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
}


def records_of(cls: type[Any], **drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A record with every field drawn, by the field's type unless `drawn` gives a strategy for it."""
    types = {name: kind for name, kind in get_type_hints(cls).items() if name not in drawn and name != "__slots__"}
    return st.builds(cls, **{name: BY_TYPE[types[name]] for name in types}, **drawn)


HOSTS = records_of(HostReport)
SUSPECT = st.lists(st.sampled_from([*DOUBTS]), max_size=3).map(tuple)
OBSERVATIONS = records_of(Observation, timing=records_of(Timing), host=HOSTS, suspect=SUSPECT)
KINDS = st.sampled_from(["joined", "left", "missed", "rejected", "reconciled", "retired", "capped"])
RECORDS = records_of(
    RoundRecord,
    round=st.integers(1, 2**62),
    attempt=st.integers(1, 2**62),
    weights=st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5).map(tuple),
    observations=st.lists(OBSERVATIONS, max_size=4, unique_by=lambda o: o.client_id).map(
        # SQLite orders text by its UTF-8 bytes, which is Python's order of code points.
        lambda found: tuple(sorted(found, key=lambda o: o.client_id))
    ),
    events=st.lists(records_of(LogEvent, kind=KINDS), max_size=5).map(tuple),
    misses=st.lists(records_of(Miss, kind=st.just("timeout")), max_size=1).map(tuple),
    host=HOSTS,
    failed_attempts=st.just(()),
)


@given(st.lists(RECORDS, max_size=3, unique_by=lambda r: r.round))
def test_every_field_of_every_record_comes_back(records: list[RoundRecord]) -> None:
    with fresh_store() as (store, path):
        for r in records:
            store.commit_round(r)
        in_order = sorted(records, key=lambda r: r.round)
        assert store.rounds() == in_order
        store.close()
        with closing(Store(path)) as again:
            assert again.rounds() == in_order


@given(st.lists(st.tuples(st.sampled_from(["validation", "test"]), st.booleans(), COUNTS, FINITE, FINITE), max_size=6))
def test_the_last_opinion_on_a_split_stays(rows: list[tuple[Any, ...]]) -> None:
    evaluations = [Evaluation(*row) for row in rows]
    with fresh_store() as (store, _):
        for e in evaluations:
            store.save_evaluations(3, [e])
        last = {(e.split, e.subset): e for e in evaluations}
        assert {(e.split, e.subset): e for _, e in store.evaluations()} == last
        assert len(store.evaluations()) == len(last)


def test_a_commit_is_whole_or_not_at_all() -> None:
    with fresh_store() as (store, _):
        store.commit_round(record(1, observation("a")))
        with pytest.raises(sqlite3.IntegrityError):
            store.commit_round(record(2, observation("a"), observation("a"), events=(LogEvent("joined", "a"),)))
        assert ([r.round for r in store.rounds()], store.late_events()) == ([1], [])


def test_events_after_the_last_round_wait_for_the_next_one() -> None:
    before, late, more = LogEvent("joined", "a"), LogEvent("left", "a", "gone"), LogEvent("joined", "b")
    with fresh_store() as (store, _):
        store.commit_round(record(1, events=(before,)))
        store.save_late_events(2, [late])
        assert store.late_events() == [late]
        store.save_late_events(2, [late, more])
        assert store.late_events() == [late, more]
        store.commit_round(record(2, events=(late, more)))
        assert (store.late_events(), [r.events for r in store.rounds()]) == ([], [(before,), (late, more)])


def test_a_round_taken_back_is_gone_but_what_was_spent_is_not() -> None:
    with fresh_store() as (store, path):
        given = [LogEvent("given", client_id, job_round=1) for client_id in "abc"]
        first = observation("a", participation=1, epsilon=4.0, epsilon_spent=4.0)
        store.commit_round(record(1, first, events=tuple(given)))
        second = observation("a", participation=2, epsilon=2.0, epsilon_spent=6.0), observation("b", participation=0)
        store.commit_round(record(2, *second, events=(LogEvent("joined", "b"),)))
        store.save_evaluations(2, [Evaluation("test", True, 10, 0.5, 1.0)])
        assert [len(store.add_broken_off(t, {"a": had_s})) for t, had_s in ((1, 1.5), (2, 1.0))] == [1, 2]
        store.go_back_to(1)
        assert ([r.round for r in store.rounds()], store.evaluations()) == ([1], [])
        assert store.add_broken_off(1, {}) == [{"a": 1.5}]
        assert [event.kind for event in store.rounds()[0].events] == ["given", "unsettled", "given"], "b has answered"
        (event,) = store.late_events()  # b has to join again
        assert (event.kind, event.client_id, event.epsilon_spent, event.released) == ("reconciled", "a", 6.0, 2)
        store.close()
        Store(path).close()  # verifies the seals


@pytest.mark.parametrize("is_end", [False, True])
def test_clients_that_came_in_rounds_taken_back_are_to_come_anew(is_end: bool) -> None:
    """Otherwise, all would join in the next round. Joins and departures of earlier clients are kept."""
    with fresh_store() as (store, path):
        came = {1: ("a", "b"), 3: ("c", "a"), 4: ("d",)}
        for t in range(1, 5):
            joined = tuple(LogEvent("joined", client_id) for client_id in came.get(t, ()))
            observed = observation("a"), observation("c", participation=t)
            store.commit_round(record(t, *observed, events=joined))
        store.save_late_events(5, [LogEvent("left", "d"), LogEvent("left", "b")][not is_end :], is_end=is_end)
        store.go_back_to(2)
        kept = [(e.kind, e.client_id) for e in store.late_events()]
        owed = [] if is_end else [("unsettled", "c"), ("unsettled", "d")]
        assert kept == [("joined", "a"), *[("reconciled", "c")] * 2, ("left", "b"), *owed]
        store.close()
        Store(path).close()  # verifies the seals


def test_events_of_rounds_taken_back_wait_until_a_round_knows_of_them() -> None:
    """After a crash before all rounds are played again, the events must not be read a second time."""
    with fresh_store() as (store, path):
        for t, client_id in enumerate("abcd", start=1):
            store.commit_round(record(t, observation(client_id), events=(LogEvent("missed", client_id),)))
        store.save_late_events(5, [LogEvent("late", "d", job_round=t) for t in (1, 2)])
        store.go_back_to(1)
        Store(path).close()  # verifies the seals
        events = tuple(store.late_events())
        counted = [("missed", "b", 1), ("missed", "c", 0), ("missed", "d", 0), ("late", "d", 1), ("late", "d", 0)]
        assert [(e.kind, e.client_id, e.count) for e in events] == counted
        store.commit_round(record(2, observation("a"), attempt=2, events=events))
        assert store.late_events() == []
        store.close()
        with closing(Store(path)) as again:  # verifies the seals
            assert again.late_events() == []
            again.go_back_to(1)
            assert again.attempts() == {2: 3, 3: 2, 4: 2}, "whatever was played since"


def test_what_is_committed_survives_a_crash_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAL with synchronous = FULL (2): the log is synced at every commit. Only the store's own connection can tell."""
    opened = opened_connections(monkeypatch)
    with fresh_store() as (_, path):
        assert query(path, "PRAGMA journal_mode") == [("wal",)]
        assert opened[0].execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize("version", ["0", str(SCHEMA_VERSION + 1), "new", None])
def test_another_schema_version_is_refused(tmp_path: Path, version: str | None) -> None:
    Store(tmp_path / "run.db").close()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db, db:
        db.execute("DELETE FROM meta WHERE key = 'schema_version'")
        if version is not None:
            db.execute("INSERT INTO meta VALUES ('schema_version', ?)", (version,))
    with pytest.raises(ConfigError, match=rf"run\.db: has schema_version {version}, .* reads {SCHEMA_VERSION}; use"):
        Store(tmp_path / "run.db")


def test_a_log_with_other_tables_has_another_schema_version(tmp_path: Path) -> None:
    """Else logs of earlier versions would be called damaged. Raise the version, then change the digest here."""
    Store(tmp_path / "run.db").close()
    assert (SCHEMA_VERSION, layout(tmp_path / "run.db")) == (7, "a158c0c8eeb28fcc")


def test_a_file_left_empty_by_a_crash_is_begun_afresh(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    with closing(Store(tmp_path / "run.db")) as store:
        store.commit_round(record(1))
        assert len(store.rounds()) == 1


# -- views


def spent(client_id: str, epsilon: float, participation: int = 1) -> Observation:
    return observation(client_id, participation=participation, epsilon=0.5, epsilon_spent=epsilon)


TIMING = Timing(8.0, *(2.0**-k for k in range(1, len(get_type_hints(Timing)))))
LEAKS = [record(1), record(2, spent("a", 3.0), spent("b", 5.0)), record(3, spent("a", 4.0)), record(4, spent("a", 6.0))]
CHOICES = [record(1, chosen=("a", "a", "b")), record(2, chosen=('quote"d', "a"))]
STATISTICS = {"drift": 0.25, "norm": 2.0}
JOINS = [
    record(1, events=(LogEvent("joined", "a"),)),
    record(2, observation("a", statistics=STATISTICS), events=(LogEvent("joined", "b"), LogEvent("left", "a"))),
    record(3, events=(LogEvent("joined", "a"),)),
]


@pytest.mark.parametrize(
    ("records", "sql", "rows"),
    [
        (
            [record(1, observation("a", timing=TIMING, drawn_down_s=0.5, drawn_up_s=0.75))],
            "SELECT device_s, communication_s, propagation_s, drawn_s FROM breakdown",
            [(TIMING.device_s, TIMING.communication_s, TIMING.propagation_s, 1.25)],
        ),
        (
            [record(t, round_latency_s=s, cluster_penalty_s=0.125) for t, s in enumerate((0.5, 0.25, 1.0), start=1)],
            "SELECT round, round_latency_s, total_latency_s, cluster_penalty_s FROM round_latency",
            [(1, 0.5, 0.5, 0.125), (2, 0.25, 0.75, 0.125), (3, 1.0, 1.75, 0.125)],
        ),
        ([record(1, spent("a", 2.5, 3), observation("b"))], "SELECT * FROM leakage", [(1, "a", 3, 0.5, 2.5)]),
        (LEAKS, "SELECT round, max_epsilon_spent FROM greatest_leakage", [(1, 0.0), (2, 5.0), (3, 5.0), (4, 6.0)]),
        (CHOICES, "SELECT * FROM selections ORDER BY client_id", [("a", 3), ("b", 1), ('quote"d', 1)]),
        (CHOICES, "SELECT * FROM choices", [(1, "a", 2), (1, "b", 1), (2, "a", 1), (2, 'quote"d', 1)]),
        (JOINS, "SELECT * FROM joins ORDER BY client_id", [("a", 1), ("b", 2)]),
        (JOINS, "SELECT * FROM statistics", [(2, "a", name, value) for name, value in STATISTICS.items()]),
    ],
)
def test_a_view_tells_of_all_rounds(records: list[RoundRecord], sql: str, rows: list[tuple[Any, ...]]) -> None:
    """The greatest leakage never falls, and includes rounds without answers. A client drawn twice counts twice."""
    with fresh_store() as (store, path):
        for each in records:
            store.commit_round(each)
        assert sorted(query(path, sql)) == rows
    inside = get_type_hints(Timing).keys() - {"round_trip_s", "framing_s", "server_wait_s"}
    assert (TIMING.device_s, TIMING.propagation_s) == (0.21875, 8.0 - sum(getattr(TIMING, name) for name in inside))


def test_a_score_stands_beside_the_latency_it_took_and_keeps_its_tasks_name_for_it() -> None:
    with fresh_store() as (store, path):
        for t in (1, 2):
            store.commit_round(record(t, round_latency_s=0.5))
        for t, score, loss in ((0, 0.1, 2.3), (2, 0.75, math.inf)):
            store.save_evaluations(t, [Evaluation("test", True, 100, score, loss, "R²")])
        rows = query(path, "SELECT round, accuracy, loss, total_latency_s FROM accuracy ORDER BY round")
        assert rows == [(0, 0.1, 2.3, None), (2, 0.75, math.inf, 1.0)]
        assert [e.metric for _, e in store.evaluations()] == ["R²"] * 2
        assert query(path, "SELECT value FROM meta WHERE key = 'metric'") == [("R²",)]


# -- the server optimizer's state


def test_the_optimizers_state_of_the_last_two_rounds_is_kept_where_there_is_one() -> None:
    with fresh_store() as (store, _):
        for t in range(1, 5):
            store.commit_round(record(t), optimizer_state=theta(t, 6))
        for t in (3, 4):
            np.testing.assert_array_equal(store.optimizer_state(t), theta(t, 6), strict=True)
        assert store.optimizer_state(2) is None
        store.commit_round(record(5), optimizer_state=theta(0, 0))
        assert store.optimizer_state(5) is None


# -- the actor
@pytest.fixture
def actor(tmp_path: Path) -> Iterator[tuple[StoreActor, Store, Checkpoint]]:
    with closing(Store(tmp_path / "run.db")) as store, closing(Checkpoint(tmp_path / "checkpoints")) as checkpoint:
        yield StoreActor(store, checkpoint), store, checkpoint


async def test_what_was_asked_is_on_disk_when_the_answer_comes(actor: tuple[StoreActor, Store, Checkpoint]) -> None:
    store_actor, store, checkpoint = actor
    committed = record(1, observation("a"), model_digest=digest(theta(1.0)))
    async with asyncio.TaskGroup() as group:
        group.create_task(store_actor.run())
        await store_actor.commit_round(committed, theta(1.0))
        assert store.rounds() == [committed]
        assert checkpoint.load(1, digest(theta(1.0))) is not None
        await store_actor.ask(lambda store: store.save_evaluations(1, [Evaluation("test", False, 10, 0.5, 1.0)]))
        assert store.evaluations() == [(1, Evaluation("test", False, 10, 0.5, 1.0))]
        await store_actor.ask(lambda store: store.save_late_events(2, [LogEvent("left", "a")]))
        assert store.late_events() == [LogEvent("left", "a")]
        store_actor.stop()
    with pytest.raises(ActorStopped):
        await store_actor.ask(lambda store: store.save_late_events(2, ()))


async def test_a_disk_that_takes_nothing_is_an_error_with_a_reason(actor: tuple[StoreActor, Store, Checkpoint]) -> None:
    store_actor, store, _ = actor
    store.close()
    async with asyncio.TaskGroup() as group:
        group.create_task(store_actor.run())
        with pytest.raises(PauseflError, match="log: cannot be written"):
            await store_actor.commit_round(record(1), theta(1.0))
        store_actor.stop()
