"""How long a round waits: the rule, and that nothing moves a round's deadline."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
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
from rigs.coordinator import MakeRig

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


def test_a_client_that_was_never_seen_has_the_start_value() -> None:
    assert deadline_s({"a": []} | {"b": [0.1]}) == UNSEEN_S


def test_quick_clients_are_waited_for_at_least_the_floor() -> None:
    assert deadline_s({"a": [0.1, 0.2], "b": [0.3]}) == LEAST_S


def test_the_slowest_of_the_chosen_clients_decides() -> None:
    assert deadline_s({"a": [0.1], "b": [20.0], "c": [5.0]}) == FACTOR * 20.0
    table = table_of({"a": [0.1], "b": [20.0], "c": [5.0]})
    assert derived_deadline_s(table, np.array([0, 2])) == FACTOR * 5.0


def test_one_outlier_among_many_round_trips_does_not_count() -> None:
    assert deadline_s({"a": [5.0] * 14 + [100.0]}) == FACTOR * 5.0
    assert deadline_s({"a": [100.0] + [5.0] * 16}) == FACTOR * 5.0, "what is long past is forgotten"


def test_after_a_miss_a_client_is_given_the_start_value_again() -> None:
    assert deadline_s({"a": [0.1, None]}) == UNSEEN_S
    assert deadline_s({"a": [0.1, None, 0.1]}) == LEAST_S
    assert deadline_s({"a": [50.0, None]}) == FACTOR * 50.0


def test_further_attempts_at_a_round_wait_longer_up_to_the_cap() -> None:
    assert deadline_s({"a": []}, failed_attempts=1) == RETRY_FACTOR * UNSEEN_S
    assert deadline_s({"a": []}, failed_attempts=9) == GREATEST_S
    assert deadline_s({"a": [1e4]}) == GREATEST_S
    assert deadline_s({"a": []}, failed_attempts=10**6) == GREATEST_S


def test_stretched_delays_stretch_what_is_not_measured() -> None:
    assert deadline_s({"a": []}, time_scale=4.0) == 4 * UNSEEN_S
    assert deadline_s({"a": [1e4]}, time_scale=4.0) == 4 * GREATEST_S
    assert deadline_s({"a": []}, time_scale=0.1) == UNSEEN_S


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
