"""What the server believes of a client's releases."""

from dataclasses import replace

import pytest

from pausefl_proto.budget import Budget
from pausefl_proto.errors import WireError
from pausefl_server.release_checks import Release, check_ledger, check_release, is_plausible

BUDGET = Budget(10.0, 0.04)


def reported(i: int) -> Release:
    return Release(i, BUDGET.epsilon(i), BUDGET.spent(i))


def test_a_release_that_fits_is_taken() -> None:
    check_release(reported(3), BUDGET, proven=2, used=2)
    check_release(reported(3), BUDGET, proven=3, used=2)  # known from a hello, its bytes come only now
    check_release(reported(9), BUDGET, proven=2, used=2)  # some were spent where the server could not see
    check_release(Release(), None, proven=0, used=0)


@pytest.mark.parametrize(
    ("release", "budget", "message"),
    [
        (reported(1), None, "in a run without privacy"),
        (Release(), BUDGET, "without a private release"),
        (reported(4), BUDGET, "counts 4 releases, the server knows of 5"),
        (reported(5), BUDGET, "sends release 5 once more"),
        (reported(20_000), BUDGET, "made release 20000, for which its budget leaves nothing"),  # its epsilon is 0
        (reported(6), replace(BUDGET, epsilon_floor=BUDGET.epsilon(5)), "made release 6, for which"),
        (Release(6, BUDGET.epsilon(7), BUDGET.spent(6)), BUDGET, "spent epsilon .* on release 6, the schedule says"),
        (Release(6, BUDGET.epsilon(6), BUDGET.spent(5)), BUDGET, "has spent .* after 6 releases, the schedule says"),
    ],
)
def test_a_release_that_does_not_fit_is_rejected(release: Release, budget: Budget | None, message: str) -> None:
    with pytest.raises(WireError, match=message):
        check_release(release, budget, proven=5, used=5)


def test_a_ledger_older_than_the_log_is_refused() -> None:
    check_ledger(3, BUDGET.spent(3), BUDGET, proven=3)
    check_ledger(0, 0.0, None, proven=0)
    with pytest.raises(WireError, match="counts 2 releases, the server knows of 3: restore the ledger"):
        check_ledger(2, BUDGET.spent(2), BUDGET, proven=3)
    with pytest.raises(WireError, match="the schedule says"):
        check_ledger(3, BUDGET.spent(2), BUDGET, proven=0)


def test_a_ledger_counts_no_more_releases_than_its_schedule_has() -> None:
    floor = replace(BUDGET, epsilon_floor=BUDGET.epsilon(5))
    check_ledger(7, BUDGET.spent(7), floor, proven=0)  # made under another floor: it will be retired
    with pytest.raises(WireError, match="counts 4294967295 releases, more than its schedule has"):
        check_ledger(2**32 - 1, BUDGET.spent(2**32 - 1), BUDGET, proven=0)


def test_what_an_unused_update_cost_is_believed_where_the_schedule_says_so() -> None:
    assert is_plausible(reported(3), BUDGET)
    assert not is_plausible(replace(reported(3), epsilon_spent=BUDGET.spent(4)), BUDGET)
    assert not is_plausible(Release(), BUDGET), "it released nothing"
    assert not is_plausible(reported(3), None)
