"""A round while its job is out: how long it waits for each client, and from when a round trip runs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.release_checks import Release
from pausefl_server.rounds.deadline import (
    FACTOR,
    GREATEST_S,
    LEAST_S,
    QUANTILE,
    RETRY_FACTOR,
    UNSEEN_S,
    Patience,
    derived_deadline_s,
)
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.messages import Dispatch
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.selection.base import Selection
from rigs.coordinator import MakeRig, answer_of
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


@pytest.mark.parametrize(
    ("handed_over_s", "expected"), [([SENT_S, 15.0], (SENT_S, SENT_S)), ([SENT_S - 1], (None, 16.0))]
)
def test_a_round_trip_runs_from_the_first_hand_over_of_this_rounds_job(
    handed_over_s: list[float], expected: tuple[float | None, float]
) -> None:
    opened = open_round()
    for each_s in handed_over_s:
        opened.lost("a", 20.0, each_s)
        job = opened.returned("a", 16.0)
        assert job is not None
        assert (job.handed_over_s, job.ready_s) == expected


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


Answers = Mapping[str, Sequence[float | None]]
"""Each client's round trips in order; None: a miss."""


def table_of(answers: Answers) -> ClientTable:
    table = ClientTable()
    table.apply_events([LogEvent("joined", client_id, n_examples=1) for client_id in answers], 1)
    for t in range(1, 1 + max(map(len, answers.values()))):
        taken = {c: seconds[t - 1] for c, seconds in answers.items() if t <= len(seconds)}
        seen = tuple(Observation(c, Timing(s), s, 1, 0, 0.0, 0.0) for c, s in taken.items() if s is not None)
        misses = tuple(Miss(c, "timeout", 1.0, 1.0) for c, s in taken.items() if s is None)
        table.apply_round(RoundRecord(t, 1, tuple(taken), None, seen, (), 1.0, 1.0, 0.0, "", misses=misses))
    return table


def deadline_s(answers: Answers, **changes: float) -> float:
    table = table_of(answers)
    return derived_deadline_s(table, np.arange(len(table)), **changes)  # type: ignore[arg-type]


DEADLINES: dict[str, tuple[Answers, dict[str, float], float]] = {
    "never seen": ({"a": [], "b": [0.1]}, {}, UNSEEN_S),
    "quick: the floor": ({"a": [0.1, 0.2], "b": [0.3]}, {}, LEAST_S),
    "the slowest decides": ({"a": [0.1], "b": [20.0], "c": [5.0]}, {}, FACTOR * 20.0),
    "one outlier": ({"a": [5.0] * 14 + [100.0]}, {}, FACTOR * 5.0),
    "what is long past": ({"a": [100.0] + [5.0] * 16}, {}, FACTOR * 5.0),
    "after a miss": ({"a": [0.1, None]}, {}, UNSEEN_S),
    "back after a miss": ({"a": [0.1, None, 0.1]}, {}, LEAST_S),
    "slow, then a miss": ({"a": [50.0, None]}, {}, FACTOR * 50.0),
    "another attempt": ({"a": []}, {"failed_attempts": 1}, RETRY_FACTOR * UNSEEN_S),
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
    assert deadline_s(answers, **changes) == expected_s


def test_clients_that_are_not_chosen_move_no_deadline() -> None:
    table = table_of({"a": [0.1], "b": [20.0], "c": [5.0]})
    assert derived_deadline_s(table, np.array([0, 2])) == FACTOR * 5.0


@given(st.lists(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=40), min_size=1, max_size=8), st.integers(0, 6))
def test_the_rule_is_the_documented_formula(seconds: list[list[float]], failed: int) -> None:
    found = deadline_s({f"c{k}": list(of_client) for k, of_client in enumerate(seconds)}, failed_attempts=failed)
    last = [sorted(of_client[-16:]) for of_client in seconds]
    quantiles = [of_client[math.ceil(QUANTILE * len(of_client)) - 1] for of_client in last]
    expected = RETRY_FACTOR**failed * max(LEAST_S, FACTOR * max(quantiles))
    assert found == pytest.approx(min(GREATEST_S, expected))


def test_a_wait_that_ends_late_goes_on_once_for_as_long_as_it_was_late_and_no_longer_than_it_was() -> None:
    patience = Patience(10.0, now_s=100.0)
    assert [patience.left_s(now_s) for now_s in (104.0, 113.0, 114.0, 116.0, 119.0)] == [6.0, 3.0, 2.0, 0.0, -3.0]
    assert Patience(1.0, now_s=0.0).left_s(60.0) == 1.0
    assert Patience(1.0, now_s=0.0).left_s(1.2) == 0.0, "so late is every wait on a busy machine"


# -- in a run


@pytest.mark.parametrize(("timeout_s", "deadlines_s"), [(None, [UNSEEN_S, LEAST_S]), (7.5, [7.5, 7.5])])
async def test_a_round_waits_as_the_rule_says(rig: MakeRig, timeout_s: float | None, deadlines_s: list[float]) -> None:
    async with rig(rounds=2, round_timeout_s=timeout_s).played_by("ab") as r:
        assert [record.deadline_s for record in r.store.rounds()] == deadlines_s
