"""Repeated events are merged without changing what a fold makes of them."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pausefl.results.tally import RunTally
from pausefl_server.clients import ClientTable
from pausefl_server.monitoring.line_limit import LineLimit
from pausefl_server.records import LogEvent, unsettled
from pausefl_server.rounds.pending_events import PendingEvents
from rigs.clock import Clock


def folded(events: Sequence[LogEvent]) -> ClientTable:
    table = ClientTable(seed=1)
    table.apply_events([LogEvent("joined", client_id, n_examples=1) for client_id in "ab"], 1)
    table.apply_events(events, 2)
    return table


EVENTS = st.builds(
    LogEvent,
    st.sampled_from(["joined", "left", "missed", "rejected", "reconciled", "retired"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["x", "y"]),
)


@given(st.lists(EVENTS, max_size=30))
def test_merged_events_mean_the_same_and_are_few(kinds: list[LogEvent]) -> None:
    events = [
        LogEvent(e.kind, e.client_id, e.detail, n_examples=i, epsilon_spent=float(i), released=i)
        if e.kind in {"joined", "reconciled"}
        else e
        for i, e in enumerate(kinds, 1)
    ]
    pending = PendingEvents(events)
    kept = pending.take()
    # A client has one retirement for each that was given; of all else a few.
    assert len(kept) <= 2 * 6 + sum(event.kind == "retired" for event in events)
    plain, merged = folded(events), folded(kept)
    assert plain.ids == merged.ids
    for name in ("connected", "stated_examples", "retired", "released", "proven", "epsilon_spent"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(merged, name), err_msg=name)
    assert pending.take() == ()


def test_a_flood_of_rejections_is_one_event_that_counts_them() -> None:
    pending = PendingEvents()
    for k in range(733):
        pending.add(LogEvent("rejected", "a", f"reason {k} (999999999 times)"))
    (event,) = pending.take()
    assert (event.detail, event.count) == ("reason 0 (999999999 times)", 733), "a client's own words count nothing"
    pending.put_back([event, LogEvent("rejected", "a", "another")])
    (event,) = pending.waiting()
    assert event.count == 734
    pending.put_back([LogEvent("rejected", "a", "one before")])
    assert [(each.detail, each.count) for each in pending.take()] == [("one before", 735)]
    assert RunTally([], late_events=[event, LogEvent("rejected", "b", "one")]).events["rejected"] == 735


def test_events_put_back_come_before_later_ones() -> None:
    pending = PendingEvents([LogEvent("joined", "a"), LogEvent("retired", "b")])
    taken = pending.take()
    pending.add(LogEvent("left", "a"))
    pending.put_back(taken)
    assert pending.retired() == {"b"}
    assert [event.kind for event in pending.take()] == ["joined", "retired", "left"]


def test_a_hello_is_logged_where_the_last_commit_wrote_that_of_every_client() -> None:
    pending = PendingEvents([LogEvent("joined", "a")])
    assert not pending.has_logged(pending.waiting())
    pending.to_log()
    assert pending.has_logged(pending.waiting())
    pending.add(LogEvent("joined", "b"))
    assert not pending.has_logged(pending.take())
    assert pending.has_logged([LogEvent("left", "a")])


def test_a_job_that_is_owed_is_owed_once_and_said_last() -> None:
    job, missed = unsettled("a", 1, 1), LogEvent("missed", "a")
    assert PendingEvents([job, missed, job]).take() == (missed, job)
    assert PendingEvents([job, missed, unsettled("a", 2, 1)]).take() == (job, missed, unsettled("a", 2, 1))


def test_what_a_stranger_has_spent_waits_until_it_joins() -> None:
    spent = [LogEvent("reconciled", client_id, released=1, epsilon_spent=1.0) for client_id in "abc"]
    pending = PendingEvents([*spent, LogEvent("joined", "b"), LogEvent("missed", "c")])
    assert [(e.kind, e.client_id) for e in pending.take_known({"a": 0})] == [
        ("reconciled", "a"),
        ("reconciled", "b"),
        ("joined", "b"),
        ("missed", "c"),
    ]
    pending.add(LogEvent("joined", "c"))
    assert {e.kind for e in pending.take_known({"a": 0, "b": 1})} == {"reconciled", "joined"}


def test_of_many_lines_of_a_kind_the_first_are_shown_and_the_rest_counted() -> None:
    clock = Clock()
    limit = LineLimit(clock, lines=3, per_s=10.0)
    shown = [line for k in range(100) if (line := limit.admit("rejected", f"line {k}")) is not None]
    assert shown == ["line 0", "line 1", "line 2"]
    assert limit.admit("left", "another kind") == "another kind"
    clock.advance(10.0)
    assert limit.admit("rejected", "line 100") == "line 100 (and 97 more like it before)"
    assert limit.admit("rejected", "line 101") == "line 101"
