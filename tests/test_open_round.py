"""A round while its job is out: how long each client is waited for, and from when its round trip runs."""

import numpy as np
import pytest

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Timing
from pausefl_server.release_checks import Release
from pausefl_server.rounds.messages import Dispatch
from pausefl_server.rounds.open_round import OpenRound
from pausefl_server.selection.base import Selection
from rigs.coordinator import answer_of
from rigs.settings import server_settings

SENT_S, TIMEOUT_S = 10.0, 30.0


def open_round(time_scale: float = 1.0) -> OpenRound:
    """A round with the clients a and b."""
    job, chosen = Dispatch(1, 1, (), 0.0, ready_s=SENT_S), Selection(np.array([0, 1]))
    return OpenRound(
        *(job, chosen, 0.0, ("a", "b"), ()), sent_s=SENT_S, timeout_s=TIMEOUT_S, needed=2, time_scale=time_scale
    )


@pytest.mark.parametrize(("is_needed", "latency_s"), [(False, 2.0), (True, 15.0)])
def test_a_rounds_latency_is_the_wait_for_a_silent_client_only_where_its_answer_was_needed(
    is_needed: bool, latency_s: float
) -> None:
    opened, table, settings = open_round(2.0), ClientTable(), server_settings(8, time_scale=2.0)
    table.apply_events([LogEvent("joined", client_id, n_examples=10) for client_id in "ab"], round=1)
    opened.take(answer_of("a", 1, Release(), timing=Timing(4.0)), table, settings, now_s=14.0)
    if is_needed:
        assert opened.miss_overdue(40.0) == ["b"]
    else:
        opened.end(40.0)
    record = opened.record("", 0.0, HostReport(), settings)
    assert [(miss.kind, miss.waited_s, miss.latency_s) for miss in record.misses] == [
        ("timeout" if is_needed else "unneeded", 30.0, 15.0)
    ]
    assert record.round_latency_s == latency_s


def test_a_client_is_waited_for_after_four_breaks_and_not_after_five() -> None:
    opened = open_round()
    for _ in range(4):
        opened.lost("a", 20.0, None)
        assert opened.due["a"] == 20.0
        assert opened.returned("a", 15.0) is not None
    opened.lost("a", 20.0, None)
    assert opened.returned("a", 15.0) is None
    assert opened.miss_overdue(15.0) == ["a"]
    assert opened.misses["a"].kind == "lost"


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


def test_a_round_trip_runs_from_the_first_time_that_a_client_was_handed_the_job() -> None:
    opened = open_round()
    for handed_over_s in (SENT_S, 15.0):
        opened.lost("a", 20.0, handed_over_s)
        job = opened.returned("a", 16.0)
        assert job is not None
        assert (job.handed_over_s, job.ready_s) == (SENT_S, SENT_S)


def test_an_earlier_rounds_job_starts_no_round_trip_of_this_one() -> None:
    opened = open_round()
    opened.lost("a", 20.0, SENT_S - 1)
    job = opened.returned("a", 16.0)
    assert job is not None
    assert (job.handed_over_s, job.ready_s) == (None, 16.0)


def test_a_server_that_stood_still_waits_for_all_once_more_and_no_further_time() -> None:
    opened = open_round()
    for _ in range(5):
        opened.lost("a", 20.0, None)
    assert opened.miss_overdue(45.0) == ["a"], "it comes and goes"
    assert opened.due == {"b": 50.0}, "as long as the server stood still"
    assert opened.miss_overdue(60.0) == ["b"]
    assert opened.misses["b"].waited_s == 50.0


def test_a_server_that_stood_still_takes_no_clients_time_away() -> None:
    opened = open_round()
    opened.lost("a", 20.0, None)
    assert opened.miss_overdue(20.5) == []
    assert opened.due == {"a": 21.0, "b": 40.0}
