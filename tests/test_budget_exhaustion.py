"""The forecast of when the clients' budgets end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pausefl_server.rounds.budget_exhaustion import rounds_left


def test_equal_shares_last_as_long_as_there_is_budget() -> None:
    assert rounds_left(np.full(30, 70), np.full(30, 10), m=5) == 420
    assert rounds_left(np.full(4, 70), np.full(4, 10), m=5) == 0


def test_whoever_is_chosen_more_is_used_up_sooner() -> None:
    """Two fast clients take every round: they last 20 rounds, then two others play the 10 that are left to them."""
    assert rounds_left(np.array([20, 20, 10]), np.array([99, 99, 0]), m=2) == 20
    assert rounds_left(np.array([20, 20, 20]), np.array([10, 10, 10]), m=1) == 60


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_forecast_never_promises_more_than_any_policy_could_play(left: list[int], m: int, random: object) -> None:
    chosen = np.array([random.randint(0, 30) for _ in left])  # type: ignore[attr-defined]
    forecast = rounds_left(np.array(left), chosen, m)
    # The best any policy can do is to take those who have most left.
    remaining, played = sorted(left, reverse=True), 0
    while len(remaining) >= m and remaining[m - 1] > 0:
        remaining = sorted([r - 1 for r in remaining[:m]] + remaining[m:], reverse=True)
        played += 1
    assert 0 <= forecast <= played
