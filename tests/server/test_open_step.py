"""A round while its job is out: how long each client is waited for, and from when its round trip runs."""

import numpy as np
import pytest

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Timing
from pausefl_server.release_checks import Release
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.messages import Dispatch
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.selection.base import Selection
from rigs.coordinator import answer_of
from rigs.settings import server_settings

SENT_S, TIMEOUT_S = 10.0, 30.0

STOPPED = HostReport(stopped_s=4.0)


def open_round(time_scale: float = 1.0) -> OpenStep:
    """A round with the clients a and b."""
    job, chosen = Dispatch(1, 1, (), 0.0, ready_s=SENT_S), Selection(np.array([0, 1]))
    opened = OpenStep(1, needed=2, time_scale=time_scale, elapsed=Elapsed(0.0, SENT_S))
    opened.give(job, chosen, ("a", "b"), sent_s=SENT_S, timeout_s=TIMEOUT_S)
    return opened


@pytest.mark.parametrize(("is_needed", "latency_s"), [(False, 2.0), (True, 15.0)])
def test_a_round_takes_the_wait_for_the_silent_only_where_they_were_needed(is_needed: bool, latency_s: float) -> None:
    opened, table, settings = open_round(2.0), ClientTable(), server_settings(8, time_scale=2.0)
    table.apply_events([LogEvent("joined", client_id, n_examples=10) for client_id in "ab"], round=1)
    opened.take(answer_of("a", 1, Release(), timing=Timing(4.0)), table, settings, now_s=14.0)
    if is_needed:
        assert opened.miss_overdue(40.0) == ["b"]
    else:
        opened.end(40.0)
    record = opened.record("", 40.0, 0.0, HostReport(), settings)
    assert [(miss.kind, miss.waited_s, miss.latency_s) for miss in record.misses] == [
        ("timeout" if is_needed else "unneeded", 30.0, 15.0)
    ]
    assert record.round_latency_s == latency_s


@pytest.mark.parametrize(
    ("late_s", "host", "suspect"),
    [(1.9, HostReport(), ()), (2.1, HostReport(), ("server deadline_s",)), (1.0, STOPPED, ("server stopped_s",))],
)
def test_an_absent_servers_misses_teach_nothing(late_s: float, host: HostReport, suspect: tuple[str, ...]) -> None:
    """Whether its monitor saw that, or it passed its own deadline by more than the deadline."""
    opened, table, settings = open_round(), ClientTable(), server_settings(8)
    table.apply_events([LogEvent("joined", client_id, n_examples=10) for client_id in "ab"], round=1)
    now_s = SENT_S + late_s * TIMEOUT_S
    opened.take(answer_of("a", 1, Release(), arrived_s=now_s), table, settings, now_s)
    opened.miss("b", "timeout", "", now_s)
    record = opened.record("", now_s, 0.0, host, settings)
    assert record.suspect == suspect
    assert [miss.teaches for miss in record.misses] == [not suspect]
    assert [o.teaches for o in record.observations] == [late_s < 2.0], "its own window is what counts"


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
