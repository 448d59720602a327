"""The policies that PAUSE and Fed-TS are compared with, checked against their papers, mostly in plain numpy."""

import dataclasses
import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation
from pausefl_server.selection import Policy
from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.baselines import Clustered, Fastest, PowD
from pausefl_server.selection.policies.oort import Oort, scaled_utility
from pausefl_server.selection.policies.pisces import Pisces, Seen, is_outlier
from pausefl_server.selection.policies.pns import Pns, optimal_subset
from pausefl_server.selection.policies.tifl import Tifl
from pausefl_server.selection.terms import losses, quantile_tiers
from rigs.policies import IDS, M, Play, context_of, true_mean_s


def test_fastest_takes_the_least_mean_latencies() -> None:
    assert Play(Fastest(M)).one_round().chosen == IDS[:M]


@pytest.mark.parametrize("sizes", [[500, 300, 100, 50, 30, 20], [1] * 6])
def test_clustered_sampling_is_unbiased_by_data_size(sizes: list[int]) -> None:
    """Each client is drawn m|D_k|/|D| times on average. Above |D|/m examples, it is drawn twice in some rounds."""
    table = ClientTable(seed=1, examples_max=1000)
    table.apply_events([LogEvent("joined", i, n_examples=n) for i, n in zip(IDS, sizes, strict=False)], round=1)
    drawn = np.zeros(6)
    rounds = 4000
    for t in range(1, rounds + 1):
        selection = Clustered(3).select(None, context_of(table, t))
        np.add.at(drawn, selection.rows, 1)
        np.testing.assert_array_equal(selection.weights, [1 / 3] * 3)
    # The variance of a count is below its mean: five standard deviations.
    expected = 3 * np.array(sizes) / sum(sizes) * rounds
    assert (np.abs(drawn - expected) < 5 * np.sqrt(expected)).all()


def test_power_of_choice_is_the_papers_algorithm() -> None:
    """Candidates are drawn by data size. Those with the greatest losses are chosen, and averaged uniformly."""
    play = Play(PowD(M, d=6))
    table = play.table
    table.n_examples[:] = 100 * np.arange(1, 14)
    table.last_loss[:] = np.random.default_rng(1).random(13)
    for t in range(1, 30):
        context = context_of(table, t)
        rows = np.argsort(table.tie_key)
        p = table.n_examples[rows] / table.n_examples.sum()
        candidates = rows[context_of(table, t).rng.choice(13, 6, replace=False, p=p)]
        greatest = candidates[np.argsort(table.last_loss[candidates])[-M:]]
        selection = play.policy.select(None, context)
        assert selection.rows.tolist() == sorted(greatest.tolist())
        np.testing.assert_array_equal(selection.weights, [1 / M] * M)


def test_power_of_choice_takes_m_clients_where_d_is_less() -> None:
    assert len(PowD(M, d=1).select(None, context_of(Play(PowD(M)).table, 1)).rows) == M


def test_power_of_choice_asks_for_the_greatest_loss() -> None:
    play = Play(PowD(M, d=13))
    play.table.last_loss[:] = np.arange(13.0)
    play.table.last_loss[3] = np.nan
    assert PowD(M, d=13).select(None, context_of(play.table, 1)).rows.tolist() == [3, 10, 11, 12]


def test_a_loss_that_was_not_reported_counts_as_the_median_of_those_that_can_be_chosen() -> None:
    table = Play(PowD(M)).table
    table.chosen[:] = 1
    table.last_loss[:5] = [np.nan, 1.0, 2.0, 3.0, 50.0]
    assert losses(context_of(table, 2, eligible=np.arange(4)), np.array([0, 3])).tolist() == [2.0, 3.0]


def test_no_client_is_chosen_for_ever_because_it_reports_no_loss() -> None:
    """The client answers, but reports no loss. It must gain nothing by that."""

    class LossOf3Kept(Play):
        def observation(self, client_id: str, t: int) -> Observation:
            observation = super().observation(client_id, t)
            return dataclasses.replace(observation, loss=None) if client_id == IDS[3] else observation

    policies: list[Policy] = [PowD(M, d=13), Oort(M, cutoff=0.0, known_speeds=False)]
    for policy in policies:
        chosen = LossOf3Kept(policy).rounds(120).table.chosen
        assert chosen[3] < 2 * np.median(chosen), (policy, chosen)


@pytest.mark.parametrize(("least", "explored"), [(0.0, [4, 2, 1, 0, 0, 0, 0]), (0.5, [4, 2, 2, 2, 2, 1, 0])])
def test_oort_explores_less_and_less(least: float, explored: list[int]) -> None:
    """M = 4 of 13 clients are chosen. The share of unseen ones halves from round to round, down to the minimum."""
    play = Play(Oort(M, exploration=1.0, exploration_decay=0.5, exploration_min=least)).rounds(7)
    seen: set[str] = set()
    for record, new in zip(play.records, explored, strict=True):
        assert len(set(record.chosen) - seen) == new
        assert len(record.chosen) == M
        seen |= set(record.chosen)
    last = [max([r.round for r in play.records if i in r.chosen], default=0) for i in play.table.ids]
    assert play.state.last_round.tolist() == last


def test_oort_explores_more_than_its_share_where_too_few_clients_are_known() -> None:
    assert len(Play(Oort(M, exploration=0.0, exploration_min=0.0)).one_round().chosen) == M


def test_oort_draws_in_proportion_to_utility_among_those_within_the_cutoff() -> None:
    """A loss below 0 counts as 0. Otherwise it would make the utilities of all others nearly equal."""
    policy = Oort(1, exploration=0.0, exploration_min=0.0, cutoff=0.5, known_speeds=False)
    table = Play(policy).table
    table.n_examples[:] = 100
    table.last_loss[:] = [1.0, 0.6, 0.4, -1e9, *[0.0] * 9]
    state = dataclasses.replace(policy.start(), last_round=np.ones(13, np.int64))
    taken = [int(policy.select(state, context_of(table, 1, seed)).rows[0]) for seed in range(500)]
    assert set(taken) == {0, 1}
    assert taken.count(0) / 500 == pytest.approx(1 / 1.6, abs=5 * math.sqrt(0.25 / 500))


@pytest.mark.parametrize("known_speeds", [True, False])
def test_oort_explores_by_size_and_speed(known_speeds: bool) -> None:
    """Unseen clients are drawn in proportion to size × min(1, (T/duration)²). T is the quartile of mean latencies."""
    policy = Oort(1, exploration=1.0, known_speeds=known_speeds, pacer_percentile=25.0)
    table = Play(policy).table
    table.n_examples[:] = 100
    table.n_examples[:3] = [400, 200, 300]
    duration_s = np.array([true_mean_s(i) for i in table.ids])
    preferred_s = np.sort(duration_s)[3]
    speed = np.where(duration_s > preferred_s, (preferred_s / duration_s) ** 2, 1.0) if known_speeds else np.ones(13)
    rounds = 3000
    taken = np.bincount(
        [int(policy.select(policy.start(), context_of(table, t)).rows[0]) for t in range(1, rounds + 1)], minlength=13
    )
    # Candidates are five times as many as are drawn. Ties for the fifth place are broken by the tie key.
    promise = table.n_examples * speed
    tied = np.lexsort((table.tie_key, -promise))[:5]
    expected = np.zeros(13)
    expected[tied] = promise[tied] / promise[tied].sum() * rounds
    assert (np.abs(taken - expected) <= 5 * np.sqrt(expected)).all()


def test_oort_scales_utilities_as_its_authors_code() -> None:
    """Min-max over the clients seen, clipped at the value 95 % up the sorted list, plus the temporal term."""
    utility = np.random.default_rng(2).gamma(2.0, 50.0, 40)
    last_round = np.arange(1, 41)
    low, high, clip = 0.999 * min(utility), max(utility), sorted(utility)[38]
    expected = [
        (min(u, clip) - low) / (high - low) + (0.1 * math.log(50) / last) ** 0.5
        for u, last in zip(utility, last_round, strict=True)
    ]
    assert scaled_utility(utility, last_round, 50) == pytest.approx(np.array(expected))
    # Neither the unit of the loss matters, nor that all utilities are equal.
    assert scaled_utility(1e3 * utility, last_round, 50) == pytest.approx(np.array(expected))
    assert scaled_utility(np.full(3, 7.0), np.ones(3, np.int64), 1) == pytest.approx(np.ones(3))


def test_oort_is_told_speeds_unless_they_are_unknown() -> None:
    table = Play(Oort(M)).table
    with pytest.raises(ValueError, match="oort needs the true mean latencies, or known_speeds = false"):
        Oort(M).select(Oort(M).start(), context_of(table, 1, oracle=None))
    blind = Oort(M, known_speeds=False)
    assert Oort(M).needs_oracle
    assert not blind.needs_oracle
    assert len(blind.select(blind.start(), context_of(table, 1, oracle=None)).rows) == M


def test_oort_prefers_useful_and_fast_clients() -> None:
    play = Play(Oort(1, exploration=0.0, exploration_min=0.0, cutoff=1.0))
    play.table.chosen[:] = play.table.measured[:] = 1
    play.table.last_loss[:] = 1.0
    play.table.last_loss[6] = 1.05
    play.table.inverse_latency_sum[:] = 10.0
    play.table.n_examples[:] = 100
    state = dataclasses.replace(play.state, last_round=np.ones(13, np.int64))

    def chosen() -> set[int]:
        contexts = [context_of(play.table, t) for t in range(50, 100)]
        return {int(play.policy.select(state, context).rows[0]) for context in contexts}

    assert chosen() == {6}
    play.table.inverse_latency_sum[6:8] = 0.5
    play.table.measured[8], play.table.missed[8] = 20, 19  # which lengthen its duration as much
    assert chosen() == set(range(13)) - {6, 7, 8}


def test_oorts_pacer_takes_a_round_and_its_failed_attempts_for_one() -> None:
    policy, table = Oort(1, pacer_window=2, known_speeds=False), ClientTable(1, 0.05)
    table.apply_events([LogEvent("joined", "a", n_examples=1)], 1)

    def percentile(*gained: float | None) -> float:
        """The percentile after rounds with these gains. None: a failed attempt at the next round."""
        state, t = policy.start(), 1
        for gain in gained:
            answers = () if gain is None else (PolicyObservation("a", 1.0, t, 0.0, 0.0, gain / t),)
            misses = (Miss("a", "timeout", 1.0, 1.0),) if gain is None else ()
            state = policy.observe(state, PolicyRound(t, ("a",), answers, misses), table)
            t += gain is not None
        return state.percentile

    assert percentile(5.0, 5.0, 5.0, 5.0) == 50.0
    assert percentile(5.0, 5.0, 1.0, 1.0, 0.5) == 60.0, "it thinks again after a whole window"
    assert percentile(5.0, 5.0, 1.0, 1.0, 0.5, 0.5) == 70.0
    assert percentile(5.0, 5.0, 5.0, None, None, None, 5.0) == 50.0
    assert percentile(5.0, 5.0, 1.0, 1.0) == percentile(5.0, 5.0, 1.0, None, None, 1.0) == 60.0


TIERED = tuple(f"client-{k:02}" for k in range(20))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=25)
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


def test_retired_clients_fill_no_tier_and_one_that_comes_back_unseen_costs_its_tier_no_credit() -> None:
    play = Play(Tifl(4, tiers=5), TIERED)
    play.table.retired[:5] = True
    assert np.bincount(play.rounds(4).state.of_row + 1).tolist() == [5, 5, 5, 5]
    play = Play(Tifl(1, tiers=5), TIERED)
    play.table.connected[0] = False
    play.rounds(19).table.connected[0] = True
    before = play.state.credits.tolist()
    assert (play.one_round().chosen, play.state.credits.tolist()) == (TIERED[:1], before)


EXPLOITS = Pisces(1, exploration=0.0, exploration_min=0.0)


def answered(staleness: int, client_id: str = IDS[0]) -> PolicyObservation:
    return PolicyObservation(client_id, 1.0, 100, 0.0, 0.0, 1.0, staleness=staleness)


def test_utility_is_data_times_loss_over_the_mean_of_the_last_five_stalenesses() -> None:
    table, state = Play(EXPLOITS).table, EXPLOITS.start()
    table.chosen[:], table.n_examples[:], table.last_loss[:] = 1, 100, 1.0
    for t, staleness in enumerate((50, 4, 4, 4, 2, 1), 1):
        state = EXPLOITS.observe(state, PolicyRound(t, IDS[:1], (answered(staleness),), ()), table)
    freshness = 1 / (1 + (4 + 4 + 4 + 2 + 1) / 5)
    for loss, chosen in ((0.99 / freshness, False), (1.01 / freshness, True)):
        table.last_loss[0] = loss
        assert (EXPLOITS.select(state, context_of(table, 9)).rows.tolist() == [0]) == chosen
    linear, squared = (dataclasses.replace(EXPLOITS, beta=beta) for beta in (1.0, 2.0))
    table.last_loss[0] = 1.5 / freshness
    assert linear.select(state, context_of(table, 9)).rows.tolist() == [0]
    assert squared.select(state, context_of(table, 9)).rows.tolist() != [0]


def test_a_client_that_is_idle_does_not_turn_stale() -> None:
    table = Play(EXPLOITS).table
    state = EXPLOITS.observe(EXPLOITS.start(), PolicyRound(1, IDS[:1], (answered(3),), ()), table)
    later = EXPLOITS.observe(state, PolicyRound(90, IDS[1:2], (answered(0, IDS[1]),), ()), table)
    assert later.staleness[0, 0] == 3
    assert np.isnan(later.staleness[0, 1:]).all()


@pytest.mark.parametrize(("t", "share"), [(1, 0.3), (51, 0.3 * 0.99**50), (500, 0.1)])
def test_places_explore_with_a_share_that_falls(t: int, share: float) -> None:
    policy, table = Pisces(1), Play(Pisces(1)).table
    table.chosen[:7], table.last_loss[:7] = 1, 1.0
    rounds = 3000
    contexts = [dataclasses.replace(context_of(table, t), rng=np.random.default_rng(i)) for i in range(rounds)]
    explored = sum(int(policy.select(policy.start(), context).rows[0]) >= 7 for context in contexts)
    assert abs(explored - rounds * share) < 5 * np.sqrt(rounds * share * (1 - share))


@given(st.lists(st.floats(0, 5), max_size=25), st.floats(0, 2), st.integers(0, 5))
def test_outliers_are_what_a_search_by_value_leaves_over(values: list[float], radius: float, neighbours: int) -> None:
    """DBSCAN as printed (Ester et al., KDD 1996): clusters grow from core points; what none reaches is noise."""
    near = [[j for j, b in enumerate(values) if abs(a - b) <= radius] for a in values]
    reached: set[int] = set()
    queue = deque(i for i, around in enumerate(near) if len(around) >= neighbours)
    while queue:
        if (i := queue.popleft()) in reached:
            continue
        reached.add(i)
        if len(near[i]) >= neighbours:
            queue.extend(near[i])
    assert np.flatnonzero(~is_outlier(np.array(values, np.float64), radius, neighbours)).tolist() == sorted(reached)


def test_an_outlier_without_credits_is_chosen_only_where_others_do_not_suffice() -> None:
    policy, play = Pisces(4, exploration=0.0, exploration_min=0.0), Play(Pisces(4))
    table, state = play.table, play.policy.start()
    table.chosen[:], table.n_examples[:], table.last_loss[:] = 1, 100, 1.0
    table.last_loss[0] = 9.0
    for t in range(1, 9):
        state = policy.observe(state, PolicyRound(t, IDS[:6], tuple(answered(0, i) for i in IDS[:6]), ()), table)
        assert state.credits[0] == max(0, 5 - t)
        assert (0 in policy.select(state, context_of(table, t + 1)).rows.tolist()) == (t < 5)
    assert (state.credits[1:6] == 5).all()
    assert policy.select(state, context_of(table, 9, eligible=np.arange(4))).rows.tolist() == [0, 1, 2, 3]


def test_a_loss_is_compared_with_those_of_the_last_five_models_and_costs_its_own_client_alone() -> None:
    policy, table = Pisces(4), Play(Pisces(4)).table
    table.last_loss[:6] = [1.0, 1.0, 1.0, 1.0, 9.0, 9.0]

    def after(state: Seen, t: int, *ids: str, staleness: int = 0) -> Seen:
        return policy.observe(state, PolicyRound(t, ids, tuple(answered(staleness, i) for i in ids), ()), table)

    known = after(policy.start(), 1, *IDS[:4])
    assert after(known, 6, IDS[4]).credits[4] == 5
    assert after(known, 6, IDS[4], staleness=1).credits[4] == 4, "its model is of the version before"
    assert after(known, 5, *IDS[4:6]).credits[4:6].tolist() == [5, 5], "each has m/2 values near"
    assert after(after(policy.start(), 1, *IDS[:3]), 5, IDS[4]).credits[4] == 4, "m losses suffice"
    charged = after(known, 5, IDS[4])
    assert charged.credits[:5].tolist() == [5, 5, 5, 5, 4]
    assert after(charged, 5, IDS[0]).credits[4] == 4


def test_a_step_needs_as_many_updates_as_keep_the_slowest_client_within_the_bound() -> None:
    """Latencies of 1, 0.5 and 4 s: 13 updates come in 4 s, and 4/3 times as many with an unknown client."""
    table = Play(Pisces(4)).table
    table.measured[:3], table.inverse_latency_sum[:3] = 2, [2.0, 4.0, 0.5]
    known, all_ = np.arange(3), np.arange(4)
    cases = ((8, known, 1), (8, all_, 1), (1, all_, 1), (8, all_[3:], 1), (8, known, 3), (0, known, 1))
    needed = [Pisces(4, staleness_bound=b).updates_needed(table, rows, buffer) for b, rows, buffer in cases]
    assert needed == [2, 3, 4, 1, 3, 3]


ONE = np.ones(3, np.float32)


def test_pns_leaves_out_updates_that_oppose_the_others() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        updates = list(rng.standard_normal((6, 8)).astype(np.float32) + rng.uniform(0, 2))
        inside = list(range(6))

        def aligned(rows: list[int], updates: list[Vector] = updates) -> float:
            mean = np.mean([updates[i] for i in rows], axis=0)
            return float(sum(updates[i] @ mean for i in rows))

        while len(inside) > 4:
            worst = max(inside, key=lambda i: aligned([j for j in inside if j != i]))
            if aligned([j for j in inside if j != worst]) <= aligned(inside):
                break
            inside.remove(worst)
        assert np.flatnonzero(optimal_subset(updates, 4)).tolist() == inside


def test_pns_keeps_updates_that_oppose_no_other() -> None:
    assert optimal_subset([0 * ONE] * 5, 4).all()


def test_what_several_clients_lose_in_a_round_goes_to_the_others() -> None:
    policy, table = Pns(4), Play(Pns(4)).table
    table.chosen[:] = 10
    left_out = tuple(PolicyObservation(i, 0.1, 100, 0.0, 0.0, statistics={"excluded": 1.0}) for i in IDS[:2])
    weight = policy.observe(policy.start(), PolicyRound(1, IDS[:2], left_out, ()), table).weight
    np.testing.assert_allclose(weight, [0.36] * 2 + [1 + 2 * 0.64 / 11] * 11)


def test_pns_lowers_the_probability_of_clients_left_out() -> None:
    policy, play = Pns(4), Play(Pns(4))
    play.table.chosen[:] = 10
    weight, excluded = np.ones(len(IDS)), np.zeros(len(IDS))
    state = policy.start()
    for t in range(1, 6):
        observed = tuple(
            PolicyObservation(IDS[k], 0.1, 100, 0.0, 0.0, statistics={"excluded": float(k == 2)}) for k in (1, 2, 3)
        )
        state = policy.observe(state, PolicyRound(t, IDS[1:4], observed, ()), play.table)
        excluded[2] += 1
        lost = weight[2] * min((excluded[2] / 10 + 0.7) ** 2, 1)
        weight[2] -= lost
        weight[np.arange(len(IDS)) != 2] += lost / (len(IDS) - 1)
        np.testing.assert_allclose(state.weight, weight, atol=1e-12)
    assert weight[2] == 0
    rounds = [policy.select(state, context_of(play.table, t)).rows for t in range(1, 200)]
    assert not any(2 in rows for rows in rounds)
    assert policy.inspect(play.table, np.arange(3), [ONE, ONE, -ONE]).admitted.sum() == 3  # ⌈0.8 · 3⌉
