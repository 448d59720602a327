"""Pisces: utility over staleness, exploration that falls, and outliers that lose their credits."""

import dataclasses
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.pisces import Pisces, is_outlier
from rigs.policies import IDS, Play, context_of

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
    found = is_outlier(np.array(values, np.float64), radius, neighbours)
    assert np.flatnonzero(~found).tolist() == sorted(reached)


def test_an_outlier_without_credits_is_chosen_only_where_others_do_not_suffice() -> None:
    policy, play = Pisces(4, exploration=0.0, exploration_min=0.0), Play(Pisces(4))
    table, state = play.table, play.policy.start()
    table.chosen[:], table.n_examples[:], table.last_loss[:] = 1, 100, 1.0
    table.last_loss[0] = 9.0
    for t in range(1, 9):
        answers = tuple(answered(0, i) for i in IDS[:6])
        state = policy.observe(state, PolicyRound(t, IDS[:6], answers, ()), table)
        assert state.credits[0] == max(0, 5 - t)
        chosen = policy.select(state, context_of(table, t + 1)).rows.tolist()
        assert (0 in chosen) == (t < 5)
    assert (state.credits[1:6] == 5).all()
    few = context_of(table, 9, eligible=np.arange(4))
    assert policy.select(state, few).rows.tolist() == [0, 1, 2, 3]
