"""TiFL: tiers are quantiles of measured latencies, credits bound how often each is drawn, losses weigh them."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.tifl import Tifl, quantile_tiers
from rigs.policies import IDS, Play, context_of, true_mean_s

TIERED = tuple(f"client-{k:02}" for k in range(20))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_tier_with_credits_is_drawn_and_charged_once(tiers: int, m: int, credits: int, seed: int) -> None:
    play = Play(Tifl(m, tiers=tiers, credits=credits, interval=3), IDS, seed)
    for _ in range(30):
        before, can_play = play.state, np.bincount(play.state.of_row[play.state.of_row >= 0], minlength=tiers) >= m
        record = play.one_round()
        assert (play.state.credits >= 0).all()
        if "tier" not in record.details:
            assert (play.state.credits == before.credits).all()
            continue
        tier = int(record.details["tier"])
        assert {int(before.of_row[play.table.row_of[i]]) for i in record.chosen} == {tier}
        assert before.credits[tier] > 0 or not before.credits[can_play].any()
        full = before.credits if before.credits[tier] else np.full(tiers, credits)
        assert (full - play.state.credits == (np.arange(tiers) == tier)).all()


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30), st.integers(1, 6))
def test_tiers_are_quantiles_of_latency(latencies_s: list[float], count: int) -> None:
    table = Play(Tifl(1), [f"client-{k:02}" for k in range(len(latencies_s))]).table
    table.measured[:] = 2
    table.inverse_latency_sum[:] = 2 / np.array(latencies_s)
    tiers = quantile_tiers(table, count)
    sizes = np.bincount(tiers, minlength=count)
    assert np.ptp(sizes) <= 1
    latency_s = np.array(latencies_s)
    for tier in range(count - 1):
        if sizes[tier] and sizes[tier + 1]:
            assert latency_s[tiers == tier].max() <= latency_s[tiers == tier + 1].min() * (1 + 1e-12)


def test_the_first_rounds_profile_and_then_one_tier_plays() -> None:
    play = Play(Tifl(4, tiers=5), TIERED).rounds(25)
    assert sorted(i for record in play.records[:5] for i in record.chosen) == list(TIERED)
    by_speed = sorted(TIERED, key=true_mean_s)
    assert all("tier" in record.details for record in play.records[5:])
    fastest = {i for record in play.records[5:] if record.details["tier"] == 0 for i in record.chosen}
    assert fastest <= set(by_speed[:8])


def test_tiers_of_great_loss_are_drawn_more_often_unless_the_last_ones_loss_fell() -> None:
    policy, play = Tifl(4, tiers=5, credits=10**6), Play(Tifl(4), TIERED)
    table = play.table
    table.chosen[:] = table.measured[:] = 2
    table.inverse_latency_sum[:] = 2 / np.array([true_mean_s(i) for i in table.ids])
    tiers = quantile_tiers(table, 5)
    table.last_loss[:] = np.array([0.1, 0.5, 0.2, 0.4, 0.3])[tiers]
    last = tuple(i for i, tier in zip(table.ids, tiers, strict=True) if tier == 2)
    record = PolicyRound(10, last, tuple(PolicyObservation(i, 1.0, 1, 0.0, 0.0, 0.2) for i in last), ())
    state = policy.observe(dataclasses.replace(policy.start(), of_row=tiers), record, table)
    assert state.weight.tolist() == [1, 5, 2, 4, 3]
    drawn = [int(policy.select(state, context_of(table, t)).details["tier"]) for t in range(2000)]
    expected = state.weight / 15 * 2000
    assert (np.abs(np.bincount(drawn, minlength=5) - expected) < 5 * np.sqrt(expected)).all()
    table.last_loss[:] = np.array([0.5, 0.4, 0.1, 0.2, 0.3])[tiers]
    again = dataclasses.replace(record, round=20)
    assert policy.observe(state, again, table).weight.tolist() == state.weight.tolist()
    assert policy.observe(state, dataclasses.replace(again, round=19), table).formed == 10
    table.last_loss[tiers == 2] = 0.25
    assert policy.observe(state, again, table).weight.tolist() == [5, 4, 2, 1, 3]


def test_a_tier_with_too_few_eligible_clients_is_not_drawn() -> None:
    play = Play(Tifl(4, tiers=5), TIERED).rounds(5)
    play.table.connected[play.state.of_row != 3] = False
    play.table.connected[play.state.of_row == 1] = [True, True, True, False]
    selections = [play.policy.select(play.state, context_of(play.table, t)) for t in range(6, 30)]
    assert {selection.details["tier"] for selection in selections} == {3.0}
