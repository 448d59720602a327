"""What the log is to know of an answer: its times as far as they are believed, and what it cost."""

from dataclasses import replace
from typing import Any

import pytest

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import HostLimits
from pausefl_server.records import TIMING_TOLERANCE_S, LogEvent, Observation, Timing
from pausefl_server.release_checks import Release
from pausefl_server.rounds.observations import bounded_timing, observe, with_stop_before
from rigs.coordinator import answer_of
from rigs.settings import server_settings

GBIT_10 = 1_250_000_000
"""Bytes that take a second."""


def observed(
    now_s: float = 7.0,
    settings: dict[str, Any] | None = None,
    release: Release | None = None,
    *,
    is_overdue: bool = False,
    untaught: int = 0,
    **changes: Any,
) -> Observation:
    """The observation of a's answer, which came at 5.0, by a server that knows of three releases."""
    table = ClientTable()
    known = LogEvent("reconciled", "a", released=3, epsilon_spent=3.0)
    table.apply_events([LogEvent("joined", "a", n_examples=10), known], round=1)
    table.untaught[0] = untaught
    update = answer_of("a", 1, release or Release(), arrived_s=5.0, **changes)
    asked = server_settings(8, **(settings or {}))
    return observe(update, bounded_timing(update), table, asked, now_s, is_overdue=is_overdue)


def test_a_latency_is_never_0() -> None:
    assert observed(timing=Timing(0.0)).latency_s == 1e-6


def test_an_update_that_waits_for_the_coordinator_waits_on_the_server() -> None:
    timing = observed(now_s=7.0, timing=Timing(1.0, server_wait_s=0.5)).timing
    assert (timing.server_wait_s, timing.round_trip_s) == (2.5, 1.0)


@pytest.mark.parametrize(("said", "logged"), [(2.0, 3.0), (4.0, 4.0)])
def test_what_is_known_to_be_spent_is_not_talked_down(said: float, logged: float) -> None:
    assert observed(release=Release(4, 1.0, said)).epsilon_spent == logged


@pytest.mark.parametrize(("disclosed", "loss", "labels"), [((), None, {}), (("loss", "labels"), 0.5, {"label_0": 3.0})])
def test_the_undisclosed_is_unlogged(disclosed: tuple[str, ...], loss: float | None, labels: dict[str, float]) -> None:
    found = observed(settings={"disclosed": frozenset(disclosed)}, loss=0.5, statistics={"label_0": 3.0, "drift": 0.0})
    assert (found.loss, found.statistics) == (loss, labels)


@pytest.mark.parametrize(
    ("timing", "wire_bytes", "device_s"),
    [
        (Timing(1.0, train_s=1.0 + TIMING_TOLERANCE_S / 2), 0, 1.0 + TIMING_TOLERANCE_S / 2),  # two clocks, one instant
        (Timing(1.0, train_s=1.0, upload_s=0.25), 0, 0.75),
        (Timing(1.0, train_s=1.0, upload_s=0.25), GBIT_10 // 2, 0.5),
        (Timing(1.0, train_s=0.5, upload_s=0.25), GBIT_10 // 2, 0.5),
        (Timing(1.0, train_s=0.5), 2 * GBIT_10, 0.0),
        (Timing(1.0), 2 * GBIT_10, 0.0),
    ],
)
def test_device_time_leaves_what_the_wire_takes_at_least(timing: Timing, wire_bytes: int, device_s: float) -> None:
    update = answer_of("a", 1, Release(), timing=timing, bytes_down=wire_bytes // 2, bytes_up=wire_bytes // 2)
    bounded = bounded_timing(update)
    assert bounded.device_s == pytest.approx(device_s)
    assert (bounded is timing) == (timing.device_s == device_s), "one that is cut is another"


def test_the_parts_of_a_device_time_are_cut_alike() -> None:
    timing = Timing(4.0, queue_s=1.0, train_s=2.0, privatise_s=1.0, upload_s=1.0)
    bounded = bounded_timing(answer_of("a", 1, Release(), timing=timing))
    assert (bounded.queue_s, bounded.train_s, bounded.privatise_s) == pytest.approx((0.75, 1.5, 0.75))
    assert bounded.round_trip_s == 4.0


STOPPED, SUSPENDED, BUSY = HostReport(stopped_s=4.0), HostReport(suspended_s=4.0), HostReport(loop_lag_s=4.0)


@pytest.mark.parametrize(
    ("changes", "suspect", "teaches"),
    [
        ({}, (), True),
        ({"host": BUSY, "server_host": BUSY}, ("server loop_lag_s", "clients loop_lag_s"), True),
        ({"host": STOPPED}, ("clients stopped_s",), False),
        ({"server_host": SUSPENDED}, ("server suspended_s",), False),
        ({"is_overdue": True}, ("server deadline_s",), False),
        ({"host": STOPPED, "settings": {"limits": HostLimits(learn_from_stops=True)}}, ("clients stopped_s",), True),
        ({"host": STOPPED, "untaught": 2}, ("clients stopped_s",), True),
        ({"host": STOPPED, "server_host": STOPPED, "untaught": 2}, ("server stopped_s", "clients stopped_s"), False),
    ],
    ids=["quiet", "load", "client", "server", "deadline", "asked for", "client, once more", "both"],
)
def test_what_a_stop_touched_teaches_nothing(changes: dict[str, Any], suspect: tuple[str, ...], teaches: bool) -> None:
    """A client whose host stands still by its own account in most of its exchanges is a slow client."""
    found = observed(**changes)
    assert (found.suspect, found.teaches) == (suspect, teaches)


@pytest.mark.parametrize(
    ("timing", "usual_s", "stopped_s"),
    [
        (Timing(4.0, train_s=1.0), 0.0, 5.0),
        (Timing(4.0, train_s=1.0), 3.0, 0.0),
        (Timing(4.0, train_s=4.0), 0.0, 0.0),
        (Timing(4.0, train_s=1.0, reconnect_s=3.0), 0.0, 5.0),
    ],
    ids=["the job waited", "as usual", "over before the job", "its stream broke"],
)
def test_a_stop_before_the_job_counts_where_the_job_waited(timing: Timing, usual_s: float, stopped_s: float) -> None:
    answer = answer_of("a", 1, Release(), timing=timing, still_before_s=5.0)
    assert with_stop_before(answer, usual_s).host.stopped_s == stopped_s
    assert with_stop_before(replace(answer, still_before_s=0.0), usual_s).host.stopped_s == 0.0
