"""The client table is a fold over the log: what each record does to it, and that replaying gives it back."""

import copy
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing


def observation(client_id: str, latency_s: float = 0.5, **changes: object) -> Observation:
    fields = {"n_examples": 10, "participation": 0, "epsilon": 0.0, "epsilon_spent": 0.0} | changes
    return Observation(client_id=client_id, timing=Timing(latency_s), latency_s=latency_s, **fields)  # type: ignore[arg-type]


def record(round: int, chosen: tuple[str, ...], *observations: Observation) -> RoundRecord:
    return RoundRecord(round, 0, chosen, None, observations, (), 0.0, 0.0, 0.0, "")


def table_of(*ids: str, seed: int = 1) -> ClientTable:
    table = ClientTable(seed=seed)
    table.apply_events([LogEvent("joined", i, n_examples=10) for i in ids], round=1)
    return table


def test_a_table_made_of_some_columns_has_the_others_at_their_defaults() -> None:
    built = ClientTable(ids=["a", "b"], row_of={"a": 0, "b": 1}, n_examples=np.array([3, 4]))
    joined = ClientTable()
    joined.apply_events([LogEvent("joined", "a", n_examples=3), LogEvent("joined", "b", n_examples=4)], round=1)
    for field in dataclasses.fields(ClientTable):
        if field.name not in {"connected", "tie_key"}:
            np.testing.assert_array_equal(getattr(built, field.name), getattr(joined, field.name))
    built.apply_round(record(1, ("b",), observation("b")))
    assert built.chosen.tolist() == [0, 1]


def test_rows_are_sorted_by_id_and_newcomers_appended() -> None:
    table = table_of("c", "a", "b")
    table.apply_events([LogEvent("joined", "z"), LogEvent("joined", "0")], round=7)
    assert table.ids == ["a", "b", "c", "0", "z"]
    assert table.joined_round.tolist() == [1, 1, 1, 7, 7]
    assert [table.row_of[i] for i in table.ids] == [0, 1, 2, 3, 4]


def test_columns_grow_together() -> None:
    table = table_of("a", "b", "c")
    columns = [getattr(table, f.name) for f in dataclasses.fields(table)]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    assert len(arrays) > 10
    assert {len(array) for array in arrays} == {3}


def test_three_counts_are_kept_apart() -> None:
    """Chosen twice, answered once, and its ledger tells of five releases."""
    table = table_of("a", "b")
    table.apply_round(record(1, ("a", "b"), observation("a", participation=5, epsilon_spent=30.0)))
    table.apply_round(record(2, ("a",)))
    assert (table.chosen.tolist(), table.measured.tolist(), table.released.tolist()) == ([2, 1], [1, 0], [5, 0])


def test_a_client_drawn_twice_counts_twice_but_is_measured_once() -> None:
    table = table_of("a", "b")
    table.apply_round(record(1, ("a", "a"), observation("a")))
    assert (table.chosen[0], table.measured[0]) == (2, 1)


def test_latencies_are_kept_as_inverses_so_that_tau_min_may_fall() -> None:
    table = table_of("a")
    for t, latency_s in enumerate((0.5, 0.25), start=1):
        table.apply_round(record(t, ("a",), observation("a", latency_s)))
    assert table.effective_tau_min_s == 0.25
    mean = table.effective_tau_min_s * table.inverse_latency_sum[0] / table.measured[0]
    assert mean == pytest.approx((0.25 / 0.5 + 0.25 / 0.25) / 2)


def test_a_latency_that_a_stop_touched_is_in_no_estimate_while_its_choice_and_its_epsilon_count() -> None:
    table, untouched = table_of("a", "b"), table_of("a", "b")
    answer = observation("a", 90.0, participation=1, epsilon_spent=2.0, teaches=False)
    missed = Miss("b", "timeout", waited_s=90.0, latency_s=90.0, teaches=False)
    table.apply_round(dataclasses.replace(record(1, ("a", "b"), answer), misses=(missed,)))
    counted = {"chosen": [1, 1], "untaught": [1, 0], "epsilon_spent": [2.0, 0.0]}
    counted |= {name: [1, 0] for name in ("released", "proven", "used")}
    for field in dataclasses.fields(ClientTable):
        expected = counted.get(field.name, getattr(untouched, field.name))
        np.testing.assert_array_equal(getattr(table, field.name), expected, err_msg=field.name)


def test_a_ledger_is_only_ever_corrected_upwards() -> None:
    table = table_of("a")
    table.apply_events([LogEvent("reconciled", "a", epsilon_spent=20.0, released=4)], round=2)
    table.apply_events([LogEvent("reconciled", "a", epsilon_spent=10.0, released=2)], round=3)
    table.apply_round(record(3, ("a",), observation("a", participation=3, epsilon_spent=15.0)))
    assert (table.epsilon_spent[0], table.released[0]) == (20.0, 4)


def test_a_claim_counts_until_the_next_one_and_what_is_proven_for_good() -> None:
    """The first claim may have been another's, who took the id."""
    table = table_of("a")
    table.apply_events([LogEvent("joined", "a", n_examples=10, epsilon_spent=50.0, released=7)], round=2)
    table.apply_events([LogEvent("joined", "a", n_examples=10)], round=3)
    assert (table.released[0], table.epsilon_spent[0]) == (0, 0.0)
    table.apply_round(record(3, ("a",), observation("a", participation=4, epsilon_spent=20.0)))
    table.apply_events([LogEvent("joined", "a", n_examples=10, epsilon_spent=15.0, released=3)], round=4)
    assert (table.released[0], table.epsilon_spent[0]) == (4, 20.0)


def test_an_older_release_that_is_merged_later_does_not_free_the_ones_after_it() -> None:
    table = table_of("a")
    table.apply_round(record(2, ("a",), observation("a", participation=5)))
    table.apply_events([LogEvent("merged", "a", released=3)], round=3)
    assert table.known_releases("a") == (5, 5)
    table.apply_events([LogEvent("merged", "a", released=6)], round=3)
    assert table.known_releases("a") == (5, 6)


def test_the_connected_may_be_chosen_unless_they_are_retired() -> None:
    table = table_of("a", "b", "c", "d")
    table.apply_events(
        [LogEvent("left", "b"), LogEvent("retired", "c"), LogEvent("missed", "d"), LogEvent("rejected", "d")], round=2
    )
    assert table.eligible().tolist() == [0, 3]
    table.apply_events([LogEvent("joined", "b", n_examples=40), LogEvent("joined", "c", n_examples=10)], round=3)
    assert table.eligible().tolist() == [0, 1, 3]  # back again; but retired is for good
    assert table.n_examples[1] == 40


def test_coming_back_keeps_the_row_and_its_history() -> None:
    table = table_of("a", "b")
    table.apply_round(record(1, ("a",), observation("a")))
    table.apply_events([LogEvent("left", "a"), LogEvent("joined", "a", n_examples=10)], round=5)
    assert (len(table), table.joined_round[0], table.chosen[0]) == (2, 1, 1)


def test_events_about_strangers_are_ignored() -> None:
    table = table_of("a")
    table.apply_events([LogEvent("left", "stranger"), LogEvent("retired", "stranger")], round=2)
    assert table.ids == ["a"]


def test_forgotten_newcomers_are_newcomers_once_more() -> None:
    table = table_of("b")
    table.apply_events([LogEvent("joined", "a", n_examples=10)], round=2)
    table.forget_rows_from(1)
    table.apply_events([LogEvent("joined", "0", n_examples=10), LogEvent("joined", "a", n_examples=10)], round=2)
    assert (table.ids, table.row_of) == (["b", "0", "a"], {"b": 0, "0": 1, "a": 2})
    assert table.connected.tolist() == [True, True, True]


def test_losses_and_label_counts_are_kept_of_those_who_disclose_them() -> None:
    table = table_of("a", "b")
    assert np.isnan(table.last_loss).all()
    labels = {"label_1": 4.0, "label_0": 3.0, "norm": 9.0}
    table.apply_round(record(1, ("a", "b"), observation("a", loss=0.7, statistics=labels), observation("b")))
    assert table.last_loss[0] == 0.7
    assert np.isnan(table.last_loss[1])
    assert {row: counts.tolist() for row, counts in table.label_counts.items()} == {0: [3.0, 4.0]}


def test_ties_are_broken_by_seed_and_id_alone() -> None:
    one, other = table_of("a", "b", "c"), table_of("b")
    other.apply_events([LogEvent("joined", "a")], round=9)
    assert dict(zip(one.ids, one.tie_key, strict=True))["a"] == dict(zip(other.ids, other.tie_key, strict=True))["a"]
    assert (one.tie_key != table_of("a", "b", "c", seed=2).tie_key).all()


EVENTS = st.builds(
    LogEvent,
    st.sampled_from(["joined", "left", "reconciled", "retired", "missed"]),
    st.sampled_from("abcdef"),
    n_examples=st.integers(0, 50),
    epsilon_spent=st.floats(0, 100),
    released=st.integers(0, 9),
)


@given(
    st.lists(st.tuples(st.lists(EVENTS, max_size=6), st.integers(0, 5)), min_size=1, max_size=12), st.integers(0, 12)
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_folding_a_log_in_two_parts_equals_folding_it_at_once(log: list[tuple[list[LogEvent], int]], cut: int) -> None:
    def fold(table: ClientTable, start: int, stop: int) -> ClientTable:
        for t, (events, chosen) in enumerate(log[start:stop], start=start + 1):
            table.apply_events(events, round=t)
            ids = tuple(table.ids[:chosen])
            table.apply_round(record(t, ids, *(observation(i, 0.1 * t, epsilon_spent=float(t)) for i in ids)))
        return table

    whole = fold(ClientTable(seed=3), 0, len(log))
    parts = fold(copy.deepcopy(fold(ClientTable(seed=3), 0, cut)), cut, len(log))
    for f in dataclasses.fields(whole):
        here, there = getattr(whole, f.name), getattr(parts, f.name)
        same = (
            np.array_equal(here, there, equal_nan=f.name in ("last_loss", "recent_round_trips_s"))
            if isinstance(here, np.ndarray)
            else here == there
        )
        assert same, f.name
