"""What follows from a round's answers: observations, the new model, and the client table, a fold over the log."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_process.host_monitor import HostReport
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Release
from pausefl_proto.draws import stable_hash
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import HostLimits
from pausefl_server.model.aggregation import Aggregation, AggregationRule, weighted_mean
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.records import TIMING_TOLERANCE_S, LogEvent, Miss, Observation, Timing
from pausefl_server.rounds.aggregation import AggregatedRound, aggregate
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.messages import Dispatch, Update
from pausefl_server.rounds.observations import bounded_timing, observe, with_stop_before
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.selection.base import Context, Inspection, Policy, Selection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState
from rigs.coordinator import answer_of
from rigs.log import observation, record, table_of
from rigs.settings import server_settings

GBIT_10 = 1_250_000_000
"""Bytes a second on a link of 10 Gbit/s."""


def observed(
    now_s: float = 7.0,
    settings: dict[str, Any] | None = None,
    release: Release | None = None,
    *,
    is_overdue: bool = False,
    untaught: int = 0,
    measured: int = 0,
    **changes: Any,
) -> Observation:
    """The observation of a's answer, which arrived at 5.0 s. The server knows of three releases."""
    table = ClientTable()
    known = LogEvent("reconciled", "a", released=3, epsilon_spent=3.0)
    table.apply_events([LogEvent("joined", "a", n_examples=10), known], round=1)
    table.untaught[0], table.measured[0] = untaught, measured
    update = answer_of("a", 1, release or Release(), arrived_s=5.0, **changes)
    asked = server_settings(8, **(settings or {}))
    return observe(update, bounded_timing(update), table, asked, now_s, is_overdue=is_overdue)


def test_an_update_that_waits_for_the_coordinator_waits_on_the_server_and_a_latency_is_never_0() -> None:
    timing = observed(now_s=7.0, timing=Timing(1.0, server_wait_s=0.5)).timing
    assert (timing.server_wait_s, timing.round_trip_s) == (2.5, 1.0)
    assert observed(timing=Timing(0.0)).latency_s == 1e-6


@pytest.mark.parametrize(("said", "logged"), [(2.0, 3.0), (4.0, 4.0)])
def test_what_is_known_to_be_spent_is_not_talked_down(said: float, logged: float) -> None:
    assert observed(release=Release(4, 1.0, said)).epsilon_spent == logged


@pytest.mark.parametrize(("disclosed", "loss", "labels"), [((), None, {}), (("loss", "labels"), 0.5, {"label_0": 3.0})])
def test_the_undisclosed_is_unlogged(disclosed: tuple[str, ...], loss: float | None, labels: dict[str, float]) -> None:
    stated = dict.fromkeys(("label_0", "drift", "label_\x1b[2J"), 3.0)
    found = observed(settings={"disclosed": frozenset(disclosed)}, loss=0.5, statistics=stated)
    assert (found.loss, found.statistics) == (loss, labels)


@pytest.mark.parametrize(
    ("timing", "wire_bytes", "device_s"),
    [
        (Timing(1.0, train_s=1.0 + TIMING_TOLERANCE_S / 2), 0, 1.0 + TIMING_TOLERANCE_S / 2),  # two clocks may differ
        (Timing(1.0, train_s=1.0, upload_s=0.25), 0, 0.75),
        (Timing(1.0, train_s=1.0, upload_s=0.25), GBIT_10 // 2, 0.5),
        (Timing(1.0, train_s=0.5, upload_s=0.25), GBIT_10 // 2, 0.5),
        (Timing(1.0, train_s=0.5), 2 * GBIT_10, 0.0),
        (Timing(1.0), 2 * GBIT_10, 0.0),
        (Timing(4.0, queue_s=1.0, train_s=2.0, privatise_s=1.0, upload_s=1.0), 0, 3.0),
    ],
)
def test_device_time_leaves_what_the_wire_takes_at_least(timing: Timing, wire_bytes: int, device_s: float) -> None:
    update = answer_of("a", 1, Release(), timing=timing, bytes_down=wire_bytes // 2, bytes_up=wire_bytes // 2)
    bounded = bounded_timing(update)
    assert bounded.device_s == pytest.approx(device_s)
    assert (bounded is timing) == (timing.device_s == device_s), "one that is cut is another"
    kept = device_s / timing.device_s if timing.device_s else 1.0
    assert (bounded.queue_s, bounded.train_s) == pytest.approx((kept * timing.queue_s, kept * timing.train_s))
    assert bounded.round_trip_s == timing.round_trip_s


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
        ({"host": STOPPED, "untaught": 6, "measured": 5}, ("clients stopped_s",), False),
        ({"host": STOPPED, "server_host": STOPPED, "untaught": 2}, ("server stopped_s", "clients stopped_s"), False),
        ({"is_resent": True}, (), False),
        ({"is_resent": True, "untaught": 2}, (), True),
        ({"is_resent": True, "settings": {"signal": "communication"}}, (), True),
        ({"is_resent": True, "timing": Timing(3.0, reconnect_s=1.0)}, (), True),
    ],
)
def test_what_a_stop_touched_teaches_nothing(changes: dict[str, Any], suspect: tuple[str, ...], teaches: bool) -> None:
    """Nor does a round trip without its work, after a restart. But a client that reports many of either is slow."""
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


IDS = ("a", "b", "c", "d", "e")


@dataclass(frozen=True)
class NotTheSecond(Policy):
    """Records each update's row and size, and admits all rows but the second to the model."""

    def select(self, state: Any, context: Context) -> Selection:
        return Selection(context.eligible)

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        shown = [{"row": float(row), "size": float(u.size)} for row, u in zip(rows.tolist(), updates, strict=True)]
        return Inspection([{**of_update, "drawn": random.random()} for of_update in shown], rows != 1)


def aggregated(
    updates: dict[str, Vector],
    settings: ServerSettings,
    weights: FloatArray | None = None,
    late: Sequence[tuple[Update, float]] = (),
    chosen: Sequence[str] = IDS,
) -> AggregatedRound:
    """A round of five clients, of which those in `updates` have answered. The model is zero and has two parameters."""
    state = RunState.start(NotTheSecond(5), 1)
    state.table.apply_events([LogEvent("joined", i, n_examples=10 * (k + 1)) for k, i in enumerate(IDS)], round=1)
    opened = OpenStep(1, needed=5, settings=settings, elapsed=Elapsed(0.0, 0.0))
    opened.give(Dispatch(1, 1, (), 0.0, 0.0), Selection(np.arange(5), weights), chosen, sent_s=0.0, timeout_s=1.0)
    for client_id, vector in updates.items():
        opened.take(answer_of(client_id, 1, Release(), vector=vector), state.table, now_s=1.0)
    size = next(iter(updates.values())).size
    model = GlobalModel.start(np.zeros(size, np.float32), ServerOptimizer(), model_size=2)
    return aggregate(opened, late, state, model, settings)


def random_updates(ids: str, size: int) -> dict[str, Vector]:
    return {i: np.random.default_rng(ord(i)).standard_normal(size, np.float32) for i in ids}


def test_each_update_keeps_its_row_and_its_weight_where_others_are_left_out() -> None:
    updates = random_updates("bcd", 2)
    weights, drawn = np.array([1.0, 2.0, 5.0, 7.0, 16.0]), set[float]()
    for stated, (c, d) in ((weights, (5.0, 7.0)), (None, (30.0, 40.0))):
        found = aggregated(updates, server_settings(2), stated)
        assert {i: o.statistics["row"] for i, o in found.observations.items()} == {"b": 1.0, "c": 2.0, "d": 3.0}
        np.testing.assert_allclose(found.model.theta, (c * updates["c"] + d * updates["d"]) / (c + d), atol=1e-6)
        drawn |= {o.statistics["drawn"] for o in found.observations.values()}
    assert len(drawn) == len(updates)  # a policy draws the same each time


def test_a_control_variate_is_not_shown_or_counted_in_a_norm_and_moves_once_for_a_client_drawn_twice() -> None:
    updates = random_updates("abcd", 4)
    updates["c"][2:] = 1e6
    found = aggregated(updates, server_settings(2, aggregation=Aggregation(norm_limit=30.0)), chosen=(*IDS, "c"))
    assert (found.events, {o.statistics["size"] for o in found.observations.values()}) == ((), {2.0})
    moved = sum(updates[i][2:] for i in "acd") / len(IDS)
    np.testing.assert_allclose(found.model.theta[2:], moved, rtol=1e-6)


def test_a_fresh_and_a_late_update_of_a_client_are_rejected_each_once() -> None:
    """Also the fresh one of a client that was drawn twice, which counts twice where it is used."""
    unit, great = np.ones(2, np.float32), np.full(2, 1000.0, np.float32)
    late = [(answer_of(i, 1, Release(), vector=vector), 1.0) for i, vector in (("c", great), ("a", unit))]
    updates = {"a": unit, "c": great, "d": unit, "e": unit}
    found = aggregated(updates, server_settings(2, aggregation=Aggregation(norm_limit=3.0)), None, late, (*IDS, *"cd"))
    fates = [("rejected", "c"), ("rejected", "c"), ("dropped", "c"), ("merged", "a")]
    assert [(event.kind, event.client_id) for event in found.events] == fates
    assert found.observations["d"].weight == pytest.approx((40 + 40) / (10 + 40 + 40 + 50 + 1))
    np.testing.assert_allclose(found.model.theta, unit)


class Weighing(AggregationRule):
    """A user's own rule, which is "fedavg". What it draws from a shared generator depends on seed and round alone."""

    def combine(self, updates: Sequence[Vector], weights: FloatArray) -> Vector:
        assert random.random() == random.Random(stable_hash(1, "aggregation", "1")).random()
        return weighted_mean(updates, weights)


@pytest.mark.parametrize(
    ("rule", "old"), [("fedavg", 10), (Weighing(), 10), ("norm-clip", 1), ("krum", 1), ({"norm_limit": 1.5}, 1)]
)
def test_rules_see_updates_as_they_came_and_old_ones_count_less_as_in_fedbuff(rule: Any, old: float) -> None:
    """Σ s(τ)w Δ / Σ w of one fresh update and two that are three rounds late: s = 1/2. Krum ignores weights."""
    late = [(replace(answer_of(i, 1, Release(), vector=np.full(2, old, np.float32)), round=-2), 30.0) for i in "cd"]
    settings = server_settings(2, aggregation=Aggregation(**rule) if isinstance(rule, dict) else Aggregation(rule))
    weight = 10.0 if rule == "krum" else 30.0
    found = aggregated({"a": np.ones(2, np.float32)}, settings, None, late)
    np.testing.assert_allclose(found.model.theta, (10 + 2 * weight * old / 2) / (10 + 2 * weight), rtol=1e-6)


def test_a_table_made_of_some_columns_has_the_others_at_their_defaults() -> None:
    built = ClientTable(ids=["a", "b"], row_of={"a": 0, "b": 1}, n_examples=np.array([3, 4]))
    joined = ClientTable()
    joined.apply_events([LogEvent("joined", "a", n_examples=3), LogEvent("joined", "b", n_examples=4)], round=1)
    for field in fields(ClientTable):
        if field.name not in {"connected", "tie_key"}:
            np.testing.assert_array_equal(getattr(built, field.name), getattr(joined, field.name))
    built.apply_round(record(1, observation("b")))
    assert built.chosen.tolist() == [0, 1]


def test_rows_are_sorted_by_id_and_newcomers_appended() -> None:
    table = table_of("c", "a", "b")
    table.apply_events([LogEvent("joined", "z"), LogEvent("joined", "0")], round=7)
    assert (table.ids, table.joined_round.tolist()) == (["a", "b", "c", "0", "z"], [1, 1, 1, 7, 7])
    assert [table.row_of[i] for i in table.ids] == [0, 1, 2, 3, 4]


def test_three_counts_are_kept_apart() -> None:
    """a is chosen twice, answers once, and has made five releases; b is drawn twice in a round, and measured once."""
    table = table_of("a", "b")
    table.apply_round(record(1, observation("a", participation=5, epsilon_spent=30.0), chosen=("a", "b")))
    table.apply_round(record(2, chosen=("a",)))
    table.apply_round(record(3, observation("b"), chosen=("b", "b")))
    assert (table.chosen.tolist(), table.measured.tolist(), table.released.tolist()) == ([2, 3], [1, 1], [5, 0])


def test_latencies_are_kept_as_inverses_so_that_tau_min_may_fall() -> None:
    table = table_of("a")
    for t, latency_s in enumerate((0.5, 0.25), start=1):
        table.apply_round(record(t, observation("a", latency_s=latency_s)))
    assert table.effective_tau_min_s == 0.25
    mean = table.effective_tau_min_s * table.inverse_latency_sum[0] / table.measured[0]
    assert mean == pytest.approx((0.25 / 0.5 + 0.25 / 0.25) / 2)


def test_a_latency_that_a_stop_touched_is_in_no_estimate_while_its_choice_and_its_epsilon_count() -> None:
    table, untouched = table_of("a", "b"), table_of("a", "b")
    answer = observation("a", latency_s=90.0, participation=1, epsilon_spent=2.0, teaches=False)
    missed = Miss("b", "timeout", waited_s=90.0, latency_s=90.0, teaches=False)
    table.apply_round(record(1, answer, chosen=("a", "b"), misses=(missed,)))
    counted = {"chosen": [1, 1], "untaught": [1, 0], "epsilon_spent": [2.0, 0.0]}
    counted |= {name: [1, 0] for name in ("released", "proven", "used")}
    for field in fields(ClientTable):
        expected = counted.get(field.name, getattr(untouched, field.name))
        np.testing.assert_array_equal(getattr(table, field.name), expected, err_msg=field.name)


def test_a_ledger_is_only_ever_corrected_upwards() -> None:
    table = table_of("a")
    table.apply_events([LogEvent("reconciled", "a", epsilon_spent=20.0, released=4)], round=2)
    table.apply_events([LogEvent("reconciled", "a", epsilon_spent=10.0, released=2)], round=3)
    table.apply_round(record(3, observation("a", participation=3, epsilon_spent=15.0)))
    assert (table.epsilon_spent[0], table.released[0], table.known_releases("a")) == (20.0, 4, (4, 3))


def test_a_claim_counts_until_the_next_one_and_what_is_proven_for_good() -> None:
    """The first claim may have come from another client that had taken the id."""
    table = table_of("a")
    table.apply_events([LogEvent("joined", "a", n_examples=10, epsilon_spent=50.0, released=7)], round=2)
    table.apply_events([LogEvent("joined", "a", n_examples=10)], round=3)
    assert (table.released[0], table.epsilon_spent[0]) == (0, 0.0)
    table.apply_round(record(3, observation("a", participation=4, epsilon_spent=20.0)))
    table.apply_events([LogEvent("joined", "a", n_examples=10, epsilon_spent=15.0, released=3)], round=4)
    assert (table.released[0], table.epsilon_spent[0]) == (4, 20.0)


def test_an_older_release_that_is_merged_later_does_not_free_the_ones_after_it() -> None:
    table = table_of("a")
    table.apply_round(record(2, observation("a", participation=5)))
    table.apply_events([LogEvent("merged", "a", released=3)], round=3)
    assert table.known_releases("a") == (5, 5)
    table.apply_events([LogEvent("merged", "a", released=6)], round=3)
    assert table.known_releases("a") == (5, 6)


def test_the_connected_may_be_chosen_unless_they_are_retired_and_strangers_are_ignored() -> None:
    table = table_of("a", "b", "c", "d")
    table.apply_events([LogEvent("left", "stranger"), LogEvent("retired", "stranger")], round=2)
    assert table.ids == [*"abcd"]
    table.apply_events(
        [LogEvent("left", "b"), LogEvent("retired", "c"), LogEvent("missed", "d"), LogEvent("rejected", "d")], round=2
    )
    assert table.eligible().tolist() == [0, 3]
    table.apply_events([LogEvent("joined", "b", n_examples=40), LogEvent("joined", "c", n_examples=10)], round=3)
    assert table.eligible().tolist() == [0, 1, 3]  # b is back; c stays retired
    assert table.n_examples[1] == 40


def test_coming_back_keeps_the_row_and_its_history() -> None:
    table = table_of("a", "b")
    table.apply_round(record(1, observation("a")))
    table.apply_events([LogEvent("left", "a"), LogEvent("joined", "a", n_examples=10)], round=5)
    assert (len(table), table.joined_round[0], table.chosen[0]) == (2, 1, 1)


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
    others = observation("b", statistics={"norm": 9.0})
    table.apply_round(record(1, observation("a", loss=0.7, statistics=labels), others))
    np.testing.assert_array_equal(table.last_loss, [0.7, np.nan])
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
LOGS = st.lists(st.tuples(st.lists(EVENTS, max_size=6), st.integers(0, 5)), min_size=1, max_size=12)


@given(LOGS, st.integers(0, 12))
def test_folding_a_log_in_two_parts_equals_folding_it_at_once(log: list[tuple[list[LogEvent], int]], cut: int) -> None:
    def fold(table: ClientTable, start: int, stop: int) -> ClientTable:
        for t, (events, chosen) in enumerate(log[start:stop], start=start + 1):
            table.apply_events(events, round=t)
            ids = tuple(table.ids[:chosen])
            table.apply_round(record(t, *(observation(i, latency_s=0.1 * t, epsilon_spent=float(t)) for i in ids)))
        return table

    whole = fold(ClientTable(seed=3), 0, len(log))
    parts = fold(copy.deepcopy(fold(ClientTable(seed=3), 0, cut)), cut, len(log))
    for f in fields(whole):
        np.testing.assert_equal(getattr(whole, f.name), getattr(parts, f.name), f.name)
