"""What clients say of themselves is bounded before it is used."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl.results.tally import RunTally
from pausefl_server.clients import ClientTable
from pausefl_server.model.aggregation import Aggregation, capped_shares
from pausefl_server.records import LogEvent
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.everyone import All
from pausefl_server.selection.terms import generalisation
from rigs.coordinator import MakeRig, update_of
from rigs.log import observation, record
from rigs.policies import FirstTwice, Play, context_of, every_policy, policy_of


def table_of(sizes: dict[str, int], examples_max: int | None = None) -> ClientTable:
    table = ClientTable(1, examples_max=examples_max)
    table.apply_events([LogEvent("joined", i, n_examples=n) for i, n in sizes.items()], round=1)
    return table


def test_a_stated_size_counts_up_to_the_cap_or_without_one_to_five_times_the_median() -> None:
    table = table_of({"a": 100, "b": 10**9}, examples_max=500)
    assert (table.n_examples.tolist(), table.stated_examples.tolist()) == ([100, 500], [100, 10**9])
    table = table_of({"a": 100, "b": 10**9})
    assert table.n_examples.tolist() == [100, 500]
    table.apply_events([LogEvent("joined", "c", n_examples=300)], round=2)
    assert table.n_examples.tolist() == [100, 1500, 300]
    table.apply_events([LogEvent("left", "a")], round=3)
    assert table.n_examples.tolist() == [100, 1500, 300]


def test_an_overstated_size_buys_neither_every_round_nor_the_average() -> None:
    ids = [f"client-{k:02}" for k in range(30)]
    play = Play(policy_of("pause", m=5), ids)
    play.table.apply_events([LogEvent("joined", "client-00", n_examples=10**9)], round=1)
    play.rounds(60)
    assert play.table.chosen[play.table.row_of["client-00"]] < 50
    assert (play.table.n_examples / play.table.n_examples.sum()).max() < 0.2


def test_no_share_in_g_or_of_the_average_exceeds_the_greatest_weight_share() -> None:
    table = table_of({"a": 900, "b": 100}, examples_max=900)
    context = context_of(table, 1, weight_share_max=0.6)
    assert generalisation(context, table.eligible(), 1, 2.0) == pytest.approx([0.6**2, 0.1**2])
    assert capped_shares(np.array([6.0, 3.0, 1.0]), 0.5) == pytest.approx([0.5, 0.375, 0.125])
    assert capped_shares(np.array([6.0, 3.0, 1.0]), 1.0) == pytest.approx([0.6, 0.3, 0.1])
    assert capped_shares(np.array([6.0, 3.0]), 0.4) == pytest.approx([0.5, 0.5])


def test_the_summary_lists_who_was_capped_and_how_often() -> None:
    table = table_of({"a": 100, "b": 10**9})
    events = [LogEvent("capped", "a", "device time")] * 2 + [LogEvent("capped", "b", "weight in the average")]
    assert RunTally((), late_events=events).capped(table) == {
        "a": {"device time": 2},
        "b": {"stated examples": 10**9, "weight in the average": 1},
    }
    assert RunTally(()).capped(table_of({"a": 100, "b": 300})) == {}


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=12), st.floats(0.01, 1))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_capped_shares_are_shares(weights: list[float], share_max: float) -> None:
    shares = capped_shares(np.array(weights), share_max)
    assert shares.sum() == pytest.approx(1)
    assert shares.max() <= max(share_max, 1 / len(weights)) + 1e-9
    assert (np.diff(shares[np.argsort(weights)]) >= -1e-9).all()


async def test_a_client_drawn_twice_has_no_greater_share_than_the_limit(rig: MakeRig) -> None:
    rule = Aggregation(weight_share_max=0.4)
    async with rig(FirstTwice(3), rounds=1, minimum_clients=3, privacy=None, aggregation=rule).running() as r:
        await r.join_all("abc")
        await r.played()
        mean = 0.4 * update_of("a", 1) + 0.3 * update_of("b", 1) + 0.3 * update_of("c", 1)
        np.testing.assert_allclose(r.coordinator.theta - r.theta_0, mean, atol=1e-6)
        assert r.events() == [("capped", "a")]


async def test_a_late_update_adds_nothing_to_its_clients_greatest_share(rig: MakeRig) -> None:
    changes = {"quorum": 0.5, "keeps_late_updates": True, "aggregation": Aggregation(weight_share_max=0.5)}
    async with rig(All(2), rounds=2, privacy=None, **changes).running() as r:
        a, b = await r.join("a", manual=True), await r.join("b", manual=True)
        await b.next_job()
        await a.play(1)
        await a.next_job()
        before = r.coordinator.theta
        r.coordinator.offer(b.update(1, b.release()))
        r.coordinator.offer(b.update(2, b.release()))
        r.coordinator.offer(a.update(2, a.release()))
        await r.played()
        mean = 0.25 * update_of("b", 2) + 0.25 * update_of("b", 1) / math.sqrt(2)
        assert len(r.store.rounds()[1].observations) == 2
        np.testing.assert_allclose(r.coordinator.theta - before, 0.5 * update_of("a", 2) + mean, atol=1e-6)


async def test_a_client_states_label_counts_and_none_of_the_policys_statistics(rig: MakeRig) -> None:
    disclosed = frozenset({"labels"})
    async with rig(All(1), rounds=1, minimum_clients=1, privacy=None, disclosed=disclosed).running() as r:
        a = await r.join("a", manual=True)
        await a.play(1, statistics={"label_0": 3.0, "label_1": 7.0, "cosine": 1e9, "drift": 0.0})
        await r.played()
        ((only,),) = [each.observations for each in r.store.rounds()]
    assert only.statistics == {"label_0": 3.0, "label_1": 7.0}


def test_stated_label_counts_and_losses_count_up_to_a_bound_and_no_count_below_0() -> None:
    """A count below 0 would take the others' labels away."""
    table = table_of({"a": 100})
    stated = observation("a", loss=-1e12, statistics={"label_0": -5.0, "label_1": 1e12, "label_2": 7.0})
    table.apply_round(record(1, stated))
    assert table.label_counts[0].tolist() == [0.0, 1e9, 7.0]
    assert table.last_loss.tolist() == [-1e9]


@every_policy
def test_a_policy_goes_on_whatever_its_log_holds(case: str) -> None:
    """Logs of earlier versions may hold losses and label counts whose products and sums are infinite."""
    play = Play(policy_of(case)).rounds(6)
    last = play.records[-1]
    great = dict.fromkeys(("label_0", "label_1"), 1.7e308)
    stated = [dataclasses.replace(o, loss=1.7e308, statistics=great) for o in last.observations[:2]]
    last = dataclasses.replace(last, observations=(*stated, *last.observations[2:]))
    play.table.apply_round(last)
    play.state = play.policy.observe(play.state, seen_by_policy(last), play.table)
    play.rounds(6)
