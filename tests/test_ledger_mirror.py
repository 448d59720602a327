"""The server's mirror of the clients' ledgers, and its forecast of when budgets end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_proto.budget import Budget
from pausefl_proto.errors import WireError
from pausefl_server.ledger import Release, check_ledger, check_release, rounds_left

BUDGET = Budget(10.0, 0.04)


def reported(i: int) -> Release:
    return Release(i, BUDGET.epsilon(i), BUDGET.spent(i))


def test_a_release_that_fits_is_taken() -> None:
    check_release(reported(3), BUDGET, mirrored=2, used=2)
    check_release(reported(3), BUDGET, mirrored=3, used=2)  # known from a hello, its bytes come only now
    check_release(reported(9), BUDGET, mirrored=2, used=2)  # some were spent where the server could not see
    check_release(Release(), None, mirrored=0)


@pytest.mark.parametrize(
    ("release", "budget", "message"),
    [
        (reported(1), None, "in a run without privacy"),
        (Release(), BUDGET, "without a private release"),
        (reported(4), BUDGET, "counts 4 releases, the server knows of 5"),
        (reported(5), BUDGET, "sends release 5 once more"),
        (Release(6, BUDGET.epsilon(7), BUDGET.spent(6)), BUDGET, "spent epsilon .* on release 6, the schedule says"),
        (Release(6, BUDGET.epsilon(6), BUDGET.spent(5)), BUDGET, "has spent .* after 6 releases, the schedule says"),
    ],
)
def test_a_release_that_does_not_fit_is_rejected(release: Release, budget: Budget | None, message: str) -> None:
    with pytest.raises(WireError, match=message):
        check_release(release, budget, mirrored=5, used=5)


def test_a_ledger_older_than_the_mirror_is_refused() -> None:
    check_ledger(3, BUDGET.spent(3), BUDGET, mirrored=3)
    check_ledger(0, 0.0, None, mirrored=0)
    with pytest.raises(WireError, match="counts 2 releases, the server knows of 3: restore the ledger"):
        check_ledger(2, BUDGET.spent(2), BUDGET, mirrored=3)
    with pytest.raises(WireError, match="the schedule says"):
        check_ledger(3, BUDGET.spent(2), BUDGET, mirrored=0)


# -- when the budgets will end


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
